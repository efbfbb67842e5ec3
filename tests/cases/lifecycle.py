"""Cases in prose: one procedure per id, because no data says how to bring a life cycle about."""

import contextlib
import os
from collections.abc import Callable

from agent.core.reasons import Reason
from agent.core.redirect import derive
from agent.node.netns import PROCESS_NETNS, HostNetns, open_netns
from tests.cases.findings import Findings
from tests.cases.model import Case

Procedure = Callable[[Case], Findings]


def _not_meshed(case: Case) -> Findings:
    return _excluded(
        case, Reason.NOT_MESHED, "no table in the netns, and what ADD prints, belong to the agent"
    )


def _native_sidecar(case: Case) -> Findings:
    derivation = derive(case.pod, case.namespace, case.defaults, case.kubernetes_ports)
    failures = [] if derivation.spec else [f"it is not redirected: {derivation.excluded}"]
    return Findings(failures, ["that it is installed at ADD belongs to the CNI gate"])


def _host_network(case: Case) -> Findings:
    findings = _excluded(case, Reason.HOST_NETWORK, "a scan by the agent is not part of this")
    with contextlib.suppress(HostNetns):
        os.close(open_netns(PROCESS_NETNS))
        findings.failures.append("the node's own netns was opened")
    return findings


def _excluded_namespace(case: Case) -> Findings:
    return _excluded(
        case, Reason.NAMESPACE_EXCLUDED, "one function answers both paths; the CNI path is not run here"
    )


def _excluded(case: Case, reason: Reason, note: str) -> Findings:
    """The core leaves the pod alone, for this reason."""
    derivation = derive(case.pod, case.namespace, case.defaults, case.kubernetes_ports)
    have = derivation.excluded or Reason.REDIRECTED
    return Findings([] if have is reason else [f"state is {have}, expected {reason}"], [note])


LIFECYCLE: dict[str, Procedure] = {
    "P01": _not_meshed,
    "P03": _native_sidecar,
    "P04": _host_network,
    "P09": _excluded_namespace,
}
"""Procedures by case id; each brings the case about and says what is not as its `then` demands."""

LATER: dict[str, str] = {
    "C11": "needs the CNI gate",
    "C12": "needs the API-server source",
    "C13": "needs the CNI gate",
    "C14": "needs the CNI gate",
    "C15": "needs the CNI gate",
    "C21": "needs the destination service",
}
"""Why a case without procedure cannot have one yet."""
