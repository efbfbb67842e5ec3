"""Life cycles brought about for real: the agent as a process, pods as network namespaces.

Each procedure carries out the steps of one case and checks what its `then` says of redirection; what belongs
to eBPF or to the API server is a note. Every wait has a deadline of at least a second.
"""

from collections.abc import Callable

from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories import chain, change, drift, gate, install, leftovers, pods, reboot

STORIES: dict[str, Callable[[Case], Findings]] = {
    "P01": pods.not_meshed,
    "P02": leftovers.linkerd_init,
    "P03": pods.native_sidecar,
    "P04": pods.host_network,
    "P06": pods.finished_job,
    "P07": pods.before_the_proxy,
    "P09": pods.excluded_namespace,
    "P10": pods.secondary_interface,
    "C01": install.killed_in_the_middle,
    "C02": leftovers.half_killed_linkerd_init,
    "C03": leftovers.complete_leftover,
    "C05": install.started_before_the_agent,
    "C06": change.changed_under_load,
    "C07": drift.flushed,
    "C08": drift.element_removed,
    "C09": change.upgrade,
    "C10": change.unmeshed,
    "C11": chain.rewritten,
    "C13": reboot.rebooted,
    "C14": gate.deleted_twice,
    "C15": gate.previous_result,
    "C18": drift.overflow,
    "C19": install.leak,
    "C20": drift.plain_tables,
    "C22": install.verified_from_the_node,
}
"""Procedures by case id."""
