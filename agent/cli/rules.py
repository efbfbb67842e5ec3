"""All rules of ours on this node, to be given up: with the running agent, or in its place."""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

import click
import msgspec

from agent.cli.client import Agent
from agent.core.names import NETNS
from agent.core.objects import Pod
from agent.core.reasons import Phase, Reason
from agent.core.ruleset import drain
from agent.files.manifests import ManifestError, parse
from agent.files.source import SUFFIXES
from agent.node import sweep
from agent.node.lock import WriterLock
from agent.node.netns import HostNetns, NetnsMissing
from agent.node.nft.channel import NftError
from agent.node.nft.compile import CompileError, Compiler
from agent.node.nft.datapath import OwnedByAnother, Unverified
from agent.state import NodeState, PodState

FAILURES = (OSError, NftError, HostNetns, OwnedByAnother, Unverified)


class Found(msgspec.Struct, frozen=True):
    """Names of what holds our table: pods, or namespaces where no pod is known. `draining` redirect no
    new connection. `unknown`: where nobody could look or change anything, and why."""

    redirecting: tuple[str, ...] = ()
    draining: tuple[str, ...] = ()
    unknown: dict[str, str] = {}


class Rules(Protocol):
    """`drain` and `remove` return what is left to be done, as `found` does."""

    def found(self) -> Found: ...

    def drain(self) -> Found: ...

    def remove(self) -> Found: ...


class KeptRules:
    """The rules that a running agent keeps. Raises AgentError, as all of `Agent` does."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent

    def found(self) -> Found:
        return _kept(self._agent.state())

    def drain(self) -> Found:
        return _kept(self._agent.drain())

    def remove(self) -> Found:
        return _kept(self._agent.remove())


class BareRules:
    """The rules that are left where no agent runs. `names`: pod by path of its namespace, where known.

    Whoever changes them holds the writer's lock, see `writing`.
    """

    def __init__(self, names: dict[str, str]) -> None:
        self._names = names

    def found(self) -> Found:
        swept = self._search()
        return Found(
            redirecting=tuple(self._names[one.path] for one in swept.held if one.redirects),
            draining=tuple(self._names[one.path] for one in swept.held if not one.redirects),
            unknown={self._names[path]: why for path, why in swept.unreadable.items()},
        )

    def drain(self) -> Found:
        compiler = Compiler()
        try:
            flags = compiler.flags()
            template = compiler.compile(drain())
        except CompileError as error:
            raise click.ClickException(f"{error}; `pointsman check` may tell more") from error
        finally:
            compiler.close()
        return self._each(lambda path: sweep.drain(path, template, flags))

    def remove(self) -> Found:
        return self._each(sweep.remove)

    def _search(self) -> sweep.Sweep:
        return sweep.search(self._names)

    def _each(self, change: Callable[[str], None]) -> Found:
        failed: dict[str, str] = {}
        for one in self._search().held:
            try:
                change(one.path)
            except NetnsMissing:
                continue
            except FAILURES as error:
                failed[self._names[one.path]] = str(error)
        left = self.found()
        return msgspec.structs.replace(left, unknown=left.unknown | failed)


@contextlib.contextmanager
def writing(run_dir: Path) -> Iterator[None]:
    """Hold the writer's lock, so that no agent comes between. Raises click.ClickException."""
    lock = WriterLock(run_dir / "writer.lock")
    try:
        run_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        taken = lock.take()
    except OSError as error:
        raise click.ClickException(
            f"cannot take the writer's lock {lock.path}: {error.strerror}; run this command as root"
        ) from error
    if not taken:
        raise click.ClickException(
            f"cannot take the writer's lock {lock.path}: process {lock.holder()} holds it, and does not "
            "answer; wait until it is ready, or end it"
        )
    try:
        yield
    finally:
        lock.release()


def named_in(directory: Path) -> dict[str, str]:
    """Paths of network namespaces in the manifests of a directory, each with its pod. A manifest that
    cannot be read is named on stderr and passed over."""
    names: dict[str, str] = {}
    for file in sorted(path for path in directory.iterdir() if path.suffix in SUFFIXES and path.is_file()):
        try:
            objects = parse(file.read_text(encoding="utf-8"))
        except (ManifestError, OSError, UnicodeDecodeError) as error:
            click.echo(f"cannot use {file}: {error}; passed over", err=True)
            continue
        pods = (item for item in objects if isinstance(item, Pod) and NETNS in item.annotations)
        names |= {pod.annotations[NETNS]: str(pod.key) for pod in pods}
    return names


def _kept(state: NodeState) -> Found:
    ours = [
        pod for pod in state.pods if pod.status.mode == "nftables" and pod.status.phase is not Phase.FAILED
    ]
    failed = [pod for pod in state.pods if pod.status.phase is Phase.FAILED]
    return Found(
        redirecting=_names(pod for pod in ours if pod.status.reason is not Reason.DRAINING),
        draining=_names(pod for pod in ours if pod.status.reason is Reason.DRAINING),
        unknown={_name(pod): f"{pod.status.reason}: {pod.status.message}" for pod in failed},
    )


def _names(pods: Iterable[PodState]) -> tuple[str, ...]:
    return tuple(sorted(map(_name, pods)))


def _name(pod: PodState) -> str:
    return f"{pod.namespace}/{pod.name}"
