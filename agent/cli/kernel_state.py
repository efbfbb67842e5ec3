"""What a visit found in a live pod's kernel state, for people and for scripts."""

import time
from collections.abc import Iterator

import click
import msgspec

from agent.cli.output import age, wrapped
from agent.core.lifecycle import Redirection
from agent.core.reasons import MEANINGS, Phase, Reason
from agent.core.spec import RedirectSpec
from agent.state import PodState


class KernelState(msgspec.Struct, frozen=True, rename="camel"):
    """`equal`: the table was read just now and is as the settings say; None where it is not ours.

    `differences`: what the visit found; put right when `equal`. `attempts`: failures in a row. `culprit`:
    author of the last foreign change. `proxy_listens`: None where nobody looked. `since`: unix seconds.
    `shadowed_by`: chains of others that decide before ours.
    """

    phase: str
    reason: str
    message: str
    remedy: str
    since: float
    mode: str
    netns: str
    equal: bool | None
    differences: tuple[str, ...]
    attempts: int
    drifts: int
    culprit: str
    proxy_listens: bool | None
    shadowed_by: tuple[str, ...]


def wrong(status: Redirection) -> bool:
    """Whether the pod should be redirected and is not, as far as anybody knows."""
    return status.phase in (Phase.FAILED, Phase.PENDING)


def kernel_state(pod: PodState) -> KernelState:
    """From the answer to a visit."""
    status = pod.status
    ours = status.mode == "nftables"
    deaf = any(one.reason is Reason.PROXY_NOT_LISTENING for one in status.complaints)
    return KernelState(
        phase=status.phase,
        reason=status.reason,
        message=status.message,
        remedy=MEANINGS[status.reason].remedy,
        since=status.since,
        mode=status.mode,
        netns=pod.netns,
        equal=not wrong(status) if ours or wrong(status) else None,
        differences=status.differences,
        attempts=status.attempts,
        drifts=status.drifts,
        culprit=status.culprit,
        proxy_listens=not deaf if status.reason is Reason.REDIRECTED else None,
        shadowed_by=tuple(one.subject for one in status.complaints if one.reason is Reason.SHADOWED),
    )


def print_kernel_state(kernel: KernelState, spec: RedirectSpec | None) -> None:
    mode = f" by {kernel.mode}" if kernel.mode else ""
    click.echo(f"  {kernel.phase} ({kernel.reason}){mode} for {age(time.time() - kernel.since)}")
    for line in _lines(kernel, spec):
        click.echo(wrapped(line, "  "))


def _lines(kernel: KernelState, spec: RedirectSpec | None) -> Iterator[str]:
    if kernel.message:
        yield kernel.message
    if kernel.attempts:
        yield f"failed {kernel.attempts} times in a row; it is tried again"
    if kernel.phase != Phase.APPLIED and not kernel.remedy.startswith("nothing"):
        yield f"remedy: {kernel.remedy}"
    if kernel.mode == "iptables":
        yield "kernel: linkerd-init's rules decide, as they were when it ran; ours would do as is said here"
    if kernel.equal:
        yield "kernel: the table is as these settings say, read back just now"
    if kernel.differences:
        done = "found and put right" if kernel.equal else "differs"
        yield f"kernel: {done}: {'; '.join(kernel.differences)}"
    if kernel.culprit:
        yield f"last foreign change by {kernel.culprit}; {kernel.drifts} drifts repaired"
    if kernel.proxy_listens and spec is not None:
        yield f"proxy: listens on {spec.inbound_port} and {spec.outbound_port}"
    for chain in kernel.shadowed_by:
        yield f"shadowed: {chain} decides before our rules"
