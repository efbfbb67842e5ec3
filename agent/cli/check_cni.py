"""Checks of the CNI gate: the shim's socket, the node's CNI configuration, and who was let through."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agent.cli.client import Agent
from agent.cli.kernel_state import wrong
from agent.cli.output import age
from agent.cli.report import Category, Check, failed, passed, warning
from agent.cni.install import CannotInstallError, CniSettings, Inspection, Installer
from agent.cni.status import PATIENCE, Listener, ask
from agent.cni.wire import Garbled
from agent.core.reasons import MEANINGS, Phase, Reason
from agent.state import NodeState

INSTALL = "`pointsman install-cni`, or `pointsman run --install-cni`, which also keeps it there"
KEEPER = "the agent puts it back; if this lasts, look in its log for CniInstallFailed or CniConfigContested"


def check_cni(agent: Agent, state: NodeState | None, settings: CniSettings) -> Iterator[Category]:
    """At most one category. `state`: None without an agent, and then a node that has no gate has no need of a
    socket. `settings`: where to look when no agent keeps the configuration."""
    kept = state.cni.chain if state is not None else None
    chain = _inspected(settings) if kept is None else kept
    named = isinstance(chain, Inspection) and chain.position is not None
    checks: list[Check] = []
    if state is not None or named:
        checks += _socket(agent, state, settings.socket)
    if isinstance(chain, Inspection):
        checks += _chain(chain, kept=kept is not None, left=state is not None and state.cni.left)
    elif chain is not None:
        checks.append(chain)
    if state is not None:
        checks += _let_through(state)
    if checks:
        yield Category("pointsman-cni", tuple(checks))


def _inspected(settings: CniSettings) -> Inspection | Check | None:
    """None where there is nothing to look at: no container runtime uses CNI here."""
    if not settings.conf_dir.is_dir():
        return None
    try:
        return Installer(settings).inspect()
    except CannotInstallError as error:
        message, _, remedy = str(error).rpartition("; ")
        return failed(f"the CNI configuration in {settings.conf_dir} can be looked at", message, remedy)


def _socket(agent: Agent, state: NodeState | None, path: Path) -> Iterator[Check]:
    description = f"the CNI shim is answered at {path}"
    try:
        listener = asyncio.run(ask(path))
    except TimeoutError:
        hint = "is the agent stopped, or frozen? ADD waits ten seconds for it, and then does as without one"
        yield failed(description, f"somebody listens, and gives no answer within {PATIENCE:g} s", hint)
    except PermissionError as error:
        yield failed(description, f"cannot connect: {error.strerror}", "run this command as root")
    except OSError as error:
        hint = "start `pointsman run`; until then the entry's whenAgentAway decides about new pods"
        if state is not None:
            hint = "wait a moment, the agent makes it anew; if it stays, its log says why it cannot"
        yield failed(description, f"cannot connect: {error.strerror or error}", hint)
    except (Garbled, EOFError, msgspec.DecodeError) as error:
        hint = "end the process that listens there; `ss -xlp` names it"
        yield failed(description, f"who listens does not answer as an agent does: {error}", hint)
    else:
        yield from _answers(agent, state, listener, description)


def _answers(agent: Agent, state: NodeState | None, listener: Listener, description: str) -> Iterator[Check]:
    who = f"process {listener.pid}" if listener.pid else "a process in another PID namespace"
    if listener.uid != 0:
        hint = "end that process; an agent must run as root"
        yield failed(description, f"{who} of user {listener.uid} listens: the shim counts that as away", hint)
        return
    if state is None:
        yield passed(f"{description}, by {who}")
    elif listener.pid == agent.pid() if listener.pid else state.cni.answering:
        yield passed(f"{description}, by this agent")
    else:
        hint = "nothing during an upgrade, when two agents overlap; else end the other agent"
        yield warning(description, f"{who} answers, and not this agent", hint)
    description = "the answer to STATUS is that pods can be redirected"
    if listener.error is None:
        yield passed(description)
    else:
        yield failed(description, listener.error.msg, listener.error.details)


def _chain(found: Inspection, *, kept: bool, left: bool) -> Iterator[Check]:
    if found.file or not found.broken:
        yield _configuration(found)
    if found.file:
        yield _entry(found, kept, left)
    if found.position is not None:
        yield _shim(found, kept)
    yield from _neighbours(found)
    yield from _broken(found)


def _configuration(found: Inspection) -> Check:
    description = f"the container runtime has a CNI configuration in {found.conf_dir}"
    if found.file:
        return passed(f"{description} ({found.file})")
    meaning = MEANINGS[Reason.CNI_MISSING]
    return failed(description, meaning.meaning, meaning.remedy)


def _entry(found: Inspection, kept: bool, left: bool) -> Check:
    description = f"new pods come by our entry in {found.conf_dir}/{found.holder}"
    chain = ", ".join(found.chain)
    if found.position is None and left:
        return failed(description, "the agent was told to take it out", "restart the agent to have it back")
    if found.position is None and kept:
        return failed(description, f"it is not there ({chain})", KEEPER)
    if found.position is None:
        error = (
            f"it is not there ({chain}): pods start without rules, are found in /proc, and redirected late"
        )
        return warning(description, error, INSTALL)
    if found.current:
        return passed(f"{description} ({chain})")
    hint = "give this command the flags that it was installed with, or install it again with these"
    return warning(description, f"it differs from what the settings say ({chain})", KEEPER if kept else hint)


def _shim(found: Inspection, kept: bool) -> Check:
    description = f"the shim in {found.bin_dir} is that of this version"
    hint = KEEPER if kept else INSTALL
    if found.shim == "missing":
        return failed(description, "it is missing, and our entry names it: no pod can start", hint)
    if found.shim == "differs":
        return warning(description, "it is another version's, or was changed", hint)
    return passed(description)


def _neighbours(found: Inspection) -> Iterator[Check]:
    description = "no other plugin of the chain redirects pods"
    if not found.neighbours:
        yield passed(description)
    for name in found.neighbours:
        error = f"{name} is in {found.conf_dir}/{found.file} as well"
        yield warning(description, error, MEANINGS[Reason.CNI_NEIGHBOUR].remedy)


def _broken(found: Inspection) -> Iterator[Check]:
    """A file that nothing usable comes before leaves containerd without any network."""
    description = f"every file in {found.conf_dir} can be used"
    if not found.broken:
        yield passed(description)
    for fault in found.broken:
        first = not found.file or fault.file < found.file
        harm = "containerd has no network while it comes first" if first else f"{found.file} comes before it"
        error = f"cannot use {fault.file}: {fault.why}; {harm}"
        yield (failed if first else warning)(description, error, MEANINGS[Reason.CNI_BROKEN].remedy)


def _let_through(state: NodeState) -> Iterator[Check]:
    late = [pod for pod in state.pods if pod.let_through]
    astray = [pod for pod in late if wrong(pod.status)]
    count = f" ({len(late) - len(astray)} of {len(late)})" if late else ""
    description = f"every pod that the gate let through has been put right{count}"
    if not astray and not state.cni.strangers:
        yield passed(description)
    for pod in astray:
        mark = failed if pod.status.phase is Phase.FAILED else warning
        error = f"{pod.namespace}/{pod.name}: {pod.status.phase} ({pod.status.reason}): {pod.status.message}"
        yield mark(description, error.removesuffix(": "), MEANINGS[pod.status.reason].remedy)
    for one in state.cni.strangers:
        since = age(time.time() - one.since)
        error = f"{one.namespace}/{one.name}: let through {since} ago, and its source does not know it still"
        hint = "see that the source has the pod, with the UID that the runtime tells; it is redirected then"
        yield warning(description, error, hint)
