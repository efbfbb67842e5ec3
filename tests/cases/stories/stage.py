"""What every story stands on: an agent process, pods as manifests, and waits with a deadline."""

import contextlib
import os
import re
import tempfile
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

import msgspec

from agent.cli.defaults import FLAGS
from agent.core.names import INIT_CONTAINER, NETNS
from agent.core.redirect import derive
from agent.core.spec import NodeDefaults, RedirectSpec
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.lab.agent import JSON, PATIENCE, Agent, agent
from tests.lab.netns import path_of

PLAIN = ("--table-ownership", "off")
BY_EVENT = ("--round", "600", "--compare", "600", "--listeners", "600")
"""Flags of an agent that learns of foreign changes by the kernel's events alone; see `settle_for_events`."""

_FLAGS = FLAGS | {
    "exclude_namespaces": "--exclude-namespaces",
    "takeover": "--takeover",
    "hold_before_proxy": "--before-proxy",
}


def expect(findings: Findings, truth: object, failure: str) -> None:
    """Note a failure, unless it is as it should be."""
    if not truth:
        findings.failures.append(failure)


def number(pattern: str, sentences: Iterable[object], otherwise: int) -> int:
    """The number that a case's sentences name in the group of `pattern`."""
    found = re.search(pattern, " ".join(map(str, sentences)))
    return int(found[1]) if found else otherwise


def wait(
    condition: Callable[[], object], what: str, seconds: float = PATIENCE, *, pause: float = 0.005
) -> None:
    """Until `condition`, asked every `pause` seconds, is true; AssertionError when it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} in {seconds:g} s")
        time.sleep(pause)


def rounds(variable: str, most: int, *, step: int = 1, seconds: float = 9.0) -> Iterator[int]:
    """0, `step`, twice `step`, ... below `most`: at least three of them, and no more after `seconds`.

    Where the environment has the `variable`, it says `most`, and time does not matter.
    """
    exactly = os.environ.get(variable)
    deadline = time.monotonic() + seconds
    for count in range(0, int(exactly) if exactly else most, step):
        if not exactly and count >= 3 * step and time.monotonic() > deadline:
            return
        yield count


@contextlib.contextmanager
def running(case: Case, *flags: str, start: bool = True) -> Iterator[Agent]:
    """An agent with the node settings and the namespace of a case, over a directory of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="pm-story-") as directory,
        agent(Path(directory), *settings(case.defaults), *flags, start=False) as one,
    ):
        one.put(msgspec.to_builtins(case.namespace) | {"kind": "Namespace"})
        yield one.start() if start else one


def settings(defaults: NodeDefaults) -> list[str]:
    """The flags of `pointsman run` that make these node defaults."""
    given: list[str] = []
    for field, flag in _FLAGS.items():
        value = getattr(defaults, field)
        if value == getattr(NodeDefaults(), field):
            continue
        match value:
            case bool() if field == "hold_before_proxy":
                given += [flag, "hold" if value else "redirect"]
            case bool() if field == "ipv6":
                given += [flag, str(value).lower()]
            case bool():
                given.append(flag if value else flag.replace("--", "--no-", 1))
            case frozenset():
                given += [flag, ",".join(sorted(value))]
            case _:
                given += [flag, str(value)]
    return given


def spec_of(case: Case) -> RedirectSpec:
    """What the case's pod shall have, so that a story meets the ports and users that the case names.

    Raises AssertionError for a pod that is not to be redirected.
    """
    derivation = derive(case.pod, case.namespace, case.defaults, case.kubernetes_ports)
    if derivation.spec is None:
        raise AssertionError(f"the pod is not redirected: {derivation.excluded}")
    return derivation.spec


def manifest(
    case: Case,
    netns: str | None,
    name: str = "",
    *,
    annotations: dict[str, str] | None = None,
    status: JSON | None = None,
    spec: JSON | None = None,
) -> JSON:
    """The case's pod in the namespace `netns`, under another `name` and with other fields where given."""
    document: JSON = msgspec.to_builtins(case.pod) | {"kind": "Pod"}
    metadata = document["metadata"]
    metadata["name"] = name or metadata["name"]
    metadata["uid"] = f"uid-of-{metadata['name']}"
    place = {NETNS: str(path_of(netns))} if netns else {}
    metadata["annotations"] = (metadata["annotations"] or {}) | place | (annotations or {})
    document["spec"] |= spec or {}
    document["status"] |= status or {}
    return document


def with_init(pod: JSON, state: JSON) -> JSON:
    """The pod with a container linkerd-init in this state: `running`, or `terminated` with an exit code."""
    others = [each for each in pod["spec"]["initContainers"] or () if each["name"] != INIT_CONTAINER]
    statuses = [{"name": INIT_CONTAINER, "state": state}]
    spec = pod["spec"] | {"initContainers": [{"name": INIT_CONTAINER}, *others]}
    return pod | {"spec": spec, "status": pod["status"] | {"initContainerStatuses": statuses}}


def key(pod: JSON) -> str:
    """`namespace/name`, as the agent is asked for it."""
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"


def settle(one: Agent, pod: JSON, *reasons: str) -> JSON:
    """Put the manifest and wait for one of these reasons; returns the pod's status."""
    one.put(pod)
    one.wait_reason(key(pod), *reasons)
    status: JSON = one.pod(key(pod))["status"]
    return status


def settle_for_events(one: Agent, pod: JSON) -> None:
    """Redirected, and the first look at its listeners over: with BY_EVENT at most one more timer runs out."""
    settle(one, pod, "Redirected")
    one.ask("POST", f"/visit?pod={key(pod)}")


def all_redirected(one: Agent, names: Collection[str]) -> None:
    """Wait until the pods of these names, of any namespace, are redirected."""

    def redirected() -> bool:
        reasons = {pod["name"]: pod["status"]["reason"] for pod in one.state()["pods"]}
        return all(reasons.get(name) == "Redirected" for name in names)

    one.wait(redirected, f"redirection of all {len(names)} pods")


def complaints(one: Agent, name: str, reason: str) -> list[JSON]:
    """Complaints about a pod with this reason."""
    found: list[JSON] = one.pod(name)["status"]["complaints"]
    return [each for each in found if each["reason"] == reason]


def metric(one: Agent, name: str, **labels: str) -> float:
    """Sum of a metric's samples with these labels on the agent's page, 0 when it is not there."""
    lines = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", one.ask("GET", "/metrics"), re.M)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(value) for found, value in lines if all(each in found for each in wanted))
