"""What every story stands on: an agent process, pods as manifests, and the kernel's own view of a pod."""

import contextlib
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from agent.cli.defaults import FLAGS
from agent.core.names import INIT_CONTAINER, NETNS, TABLE
from agent.core.redirect import NodeDefaults, RedirectSpec, derive
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.lab.agent import JSON, PATIENCE, Agent, agent
from tests.lab.netns import inside, path_of, run

BY_EVENT = ("--round", "600", "--compare", "600")
"""Flags of an agent that learns of changes by the kernel's events alone."""
PLAIN = ("--table-ownership", "off")

_NETFILTER = "12"
_PLAIN_FLAGS = {
    "exclude_namespaces": "--exclude-namespaces",
    "takeover": "--takeover",
    "hold_before_proxy": "--before-proxy",
}


def expect(findings: Findings, truth: object, failure: str) -> None:
    """Note a failure, unless it is as it should be."""
    if not truth:
        findings.failures.append(failure)


def wait(
    condition: Callable[[], object], what: str, seconds: float = PATIENCE, *, pause: float = 0.005
) -> None:
    """Until `condition`, asked every `pause` seconds, is true; AssertionError when it is not in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"no {what} in {seconds:g} s")
        time.sleep(pause)


@contextlib.contextmanager
def running(case: Case, *flags: str, start: bool = True) -> Iterator[Agent]:
    """An agent with the node settings and the namespace of a case, over a directory of its own."""
    with tempfile.TemporaryDirectory(prefix="pm-story-") as directory:
        with agent(Path(directory), *settings(case.defaults), *flags, start=False) as one:
            one.put(msgspec.to_builtins(case.namespace) | {"kind": "Namespace"})
            yield one.start() if start else one


def settings(defaults: NodeDefaults) -> list[str]:
    """The flags of `pointsman run` that make these node defaults."""
    given: list[str] = []
    for field, flag in (FLAGS | _PLAIN_FLAGS).items():
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


def complaints(one: Agent, name: str, reason: str) -> list[JSON]:
    """Complaints about a pod with this reason."""
    found: list[JSON] = one.pod(name)["status"]["complaints"]
    return [each for each in found if each["reason"] == reason]


def metric(one: Agent, name: str, **labels: str) -> float:
    """Sum of a metric's samples with these labels on the agent's page, 0 when it is not there."""
    lines = re.findall(rf"^{name}(?:{{(.*)}})? (\S+)$", one.ask("GET", "/metrics"), re.M)
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    return sum(float(value) for found, value in lines if all(each in found for each in wanted))


def nft(netns: str, *command: str) -> str:
    """Output of one nft command inside a pod, as a container with NET_ADMIN would run it.

    Raises RuntimeError with what nft wrote when it is refused.
    """
    return run("ip", "netns", "exec", netns, "nft", *command)


def table(netns: str) -> str:
    """Our table with all handles, without counter values and owner; "" when there is none."""
    command = ["ip", "netns", "exec", netns, "nft", "-as", "list", "table", "inet", TABLE]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    lines = (line.split(" progname")[0] for line in done.stdout.splitlines())
    return "\n".join(line for line in lines if not line.startswith("\tflags "))


def content(netns: str) -> str:
    """Our table without its handles: equal where the rules are."""
    return re.sub(r" # handle \d+", "", table(netns))


class Socket(NamedTuple):
    """A program's netfilter socket in a namespace; `drops`: messages that its full queue could not take."""

    portid: int
    drops: int


def netfilter_sockets(netns: str) -> list[Socket]:
    """The sockets by which programs speak to nf_tables in a namespace."""
    lines = inside(netns, lambda: Path("/proc/thread-self/net/netlink").read_text()).splitlines()[1:]
    rows = [line.split() for line in lines]
    return [Socket(int(row[2]), int(row[8])) for row in rows if row[1] == _NETFILTER and row[2] != "0"]


def descriptors_of(pid: int, inode: int) -> int:
    """How many descriptors of a process lead to the namespace with this inode."""
    found = 0
    for entry in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += entry.stat().st_ino == inode
    return found


@contextlib.contextmanager
def sandbox(uid: str, netns: str | None) -> Iterator[None]:
    """A process of the pod `uid`, in a cgroup as containerd makes it; `netns` None: on the node's network.

    Raises OSError where no cgroup can be made.
    """
    mount = next(path for path in (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")) if path.exists())
    top = mount / f"pm-{os.getpid()}-{uid}"
    made = [top, top / "kubepods", top / "kubepods" / f"pod{uid}", top / "kubepods" / f"pod{uid}" / ("5f" * 32)]
    with contextlib.ExitStack() as stack:
        for directory in made:
            directory.mkdir()
            stack.callback(_remove, directory)
        process = _start(netns)
        stack.callback(process.wait)
        stack.callback(process.kill)
        (made[-1] / "cgroup.procs").write_text(str(process.pid))
        yield


def _start(netns: str | None) -> "subprocess.Popen[Any]":
    def start() -> "subprocess.Popen[Any]":
        return subprocess.Popen(["sleep", "300"])

    return inside(netns, start) if netns else start()


def _remove(directory: Path) -> None:
    """rmdir; the kernel takes a moment until a killed process has left its cgroup."""

    def removed() -> bool:
        try:
            directory.rmdir()
        except OSError:
            return False
        return True

    wait(removed, f"end of cgroup {directory}")
