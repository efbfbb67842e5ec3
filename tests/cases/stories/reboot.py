"""A node that boots: its chain has our plugin, and all of its pods start before any agent runs."""

import contextlib
import shutil
import time
from collections.abc import Iterator

import msgspec

from agent.core.names import NETNS
from tests.cases.findings import Findings
from tests.cases.model import Case
from tests.cases.stories.node import sandbox, table
from tests.cases.stories.runtime import PREVIOUS, Container, Runtime, container, gated, result, wired
from tests.cases.stories.stage import all_redirected, manifest, number
from tests.cni.shim import Done
from tests.lab.addresses import Addresses
from tests.lab.agent import JSON, PATIENCE, SLOWNESS, Agent
from tests.lab.netns import netns, path_of

MOST = 100
_UID = "5b0c1e7a-94d2-4f0e-8c3b-2f6d7a1e9c%02x"
"""As the API server makes them, and as they are in the names of cgroups."""
_OWN_POD = ("linkerd-cni", "linkerd-cni-")
"""Namespace of the agent's own pods, and the beginning of their names."""
_EXEMPT = ("kube-system", "kube-public")
"""Namespaces that nothing may hold back; of these, one that is not the case's own."""


class _Pod(msgspec.Struct, frozen=True):
    """One pod of the node. `before` is its object as the boot finds it: with the address of before."""

    container: Container
    before: JSON
    meshed: bool
    previous: str

    @property
    def name(self) -> str:
        return self.container.key.name


def rebooted(case: Case) -> Findings:
    """C13: under both policies the agent's own pod starts, then all others, and the meshed have rules."""
    findings = Findings()
    count = min(number(r"(\d+) pods", case.text.steps, 30), MOST)
    patience = number(r"\((\d+) s\)", case.then, 10) * SLOWNESS
    exempt = next(name for name in _EXEMPT if name != case.pod.metadata.namespace)
    for policy, story in (("allow", _let_through), ("deny", _held_back)):
        flags = ("--when-agent-away", policy, "--exempt-namespaces", exempt)
        with (
            gated(case, *flags, "--agent-pod", "/".join(_OWN_POD)) as (one, runtime),
            _pods(case, count) as pods,
            netns() as place,
        ):
            _power_cut(one)
            for pod in pods:
                one.put(pod.before)
            rescuers = [container(place, _named(*_OWN_POD)), container(place, _named(exempt, "coredns-"))]
            begun = time.monotonic()
            done = _start(runtime, pods, *rescuers)
            failures = [
                f"{each.key} cannot start: {ended}"
                for each, ended in zip(rescuers, done[count:], strict=True)
                if (ended.code, ended.out) != (0, PREVIOUS.encode())
            ]
            failures += story(one, runtime, pods, done[:count])
            took = time.monotonic() - begun
        if took > patience:
            failures.append(f"validators give up before the last pod is redirected, after {took:.1f} s")
        findings.failures += [f"{policy}: {failure}" for failure in failures]
        findings.notes.append(f"{policy}: {count} pods, every fifth not meshed, all right after {took:.1f} s")
    return findings


@contextlib.contextmanager
def _pods(case: Case, count: int) -> Iterator[list[_Pod]]:
    """So many pods, each with the address that its neighbour had before."""
    supply = Addresses(case.addresses.values())
    addresses = [supply.fresh(4) for _ in range(count)]
    with contextlib.ExitStack() as stack:
        pods = []
        for index, address in enumerate(addresses):
            place, meshed = stack.enter_context(wired(address)), index % 5 != 4
            now, before = (_object(case, index, each, meshed) for each in (address, addresses[index - 1]))
            pods.append(_Pod(container(place, now), before, meshed, result("1.0.0", address)))
        yield pods


def _object(case: Case, index: int, address: str, meshed: bool) -> JSON:
    status = {"podIP": address, "podIPs": [{"ip": address}]}
    spec = {} if meshed else {"containers": [{"name": "app"}], "initContainers": []}
    found = manifest(case, None, f"web-{index}", status=status, spec=spec)
    found["metadata"]["uid"] = _UID % index
    return found


def _named(namespace: str, prefix: str) -> JSON:
    return {"metadata": {"namespace": namespace, "name": f"{prefix}x7f2p", "uid": _UID % 255}}


def _power_cut(one: Agent) -> None:
    """The agent is gone, and so is what was on a tmpfs."""
    one.kill()
    shutil.rmtree(one.run_dir)
    one.run_dir.mkdir()


def _start(runtime: Runtime, pods: list[_Pod], *others: Container) -> list[Done]:
    """ADD for all of them at once."""
    calls = [runtime.call("ADD", pod.container, previous=pod.previous) for pod in pods]
    return runtime.at_once(calls + [runtime.call("ADD", each) for each in others])


def _let_through(one: Agent, runtime: Runtime, pods: list[_Pod], done: list[Done]) -> Iterator[str]:
    """All have passed; the agent finds each by its process, once its object names its new address."""
    for pod, each in zip(pods, done, strict=True):
        if (each.code, each.out) != (0, pod.previous.encode()):
            yield f"ADD for {pod.name} is {each}"
    with _processes(pods) as objects:
        one.start(wait=False)
        one.wait(one.state, "answer of the agent")
        for each in objects:
            one.put(each)
        yield from _all_right(one, pods)


@contextlib.contextmanager
def _processes(pods: list[_Pod]) -> Iterator[list[JSON]]:
    """A process of each pod; yields their objects, which name the netns where no cgroup can be made."""
    objects = [pod.container.pod for pod in pods]
    with contextlib.ExitStack() as running:
        try:
            for pod in pods:
                running.enter_context(sandbox(pod.container.pod["metadata"]["uid"], pod.container.netns))
        except OSError:
            for pod in pods:
                annotations = pod.container.pod["metadata"]["annotations"]
                annotations[NETNS] = str(path_of(pod.container.netns))
        yield objects


def _held_back(one: Agent, runtime: Runtime, pods: list[_Pod], done: list[Done]) -> Iterator[str]:
    """None has passed; the kubelet tries again, and whoever passes then has its rules."""
    for pod, each in zip(pods, done, strict=True):
        if each.code != 1 or each.error["code"] != 11 or pod.name not in each.error["msg"]:
            yield f"ADD for {pod.name} without an agent is {each}, expected error 11"
    one.start(wait=False)
    left, deadline = _anew(runtime, pods), time.monotonic() + PATIENCE * SLOWNESS
    while left and time.monotonic() < deadline:
        done = _start(runtime, left)
        passed = [pod for pod, each in zip(left, done, strict=True) if each.code == 0]
        bare = [pod.name for pod in passed if pod.meshed and not table(pod.container.netns)]
        if bare:
            yield f"without rules pass {', '.join(bare)}"
        left = _anew(runtime, [pod for pod in left if pod not in passed])
    if left:
        yield f"held back for ever: {', '.join(pod.name for pod in left)}"
    yield from _all_right(one, pods)


def _anew(runtime: Runtime, pods: list[_Pod]) -> list[_Pod]:
    """As a runtime does after a failed ADD: DEL for each, and another sandbox for the same pod."""
    runtime.at_once([runtime.call("DEL", pod.container) for pod in pods])
    sandboxes = [container(pod.container.netns, pod.container.pod) for pod in pods]
    return [msgspec.structs.replace(pod, container=each) for pod, each in zip(pods, sandboxes, strict=True)]


def _all_right(one: Agent, pods: list[_Pod]) -> Iterator[str]:
    """The meshed pods have rules, each in its own netns, and the others have none."""
    all_redirected(one, [pod.name for pod in pods if pod.meshed])
    inodes = {pod["name"]: pod["netnsInode"] for pod in one.state()["pods"]}
    for pod in pods:
        place = pod.container.netns
        if bool(table(place)) is not pod.meshed:
            yield f"{pod.name} is {'' if pod.meshed else 'not '}meshed, and its table says otherwise"
        if pod.meshed and inodes[pod.name] != path_of(place).stat().st_ino:
            yield f"{pod.name} is redirected in a netns that is not its own"
