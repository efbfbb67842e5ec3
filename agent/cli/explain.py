"""`pointsman explain`: why a pod's connections go where they go."""

from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from agent.cli import defaults, options
from agent.cli.arrival import Arrival, arrival
from agent.cli.client import Agent
from agent.cli.effective import Setting, print_origins, print_settings, settings
from agent.cli.kernel_state import KernelState, kernel_state, print_kernel_state, wrong
from agent.cli.manifests import Entry, derivations, pick
from agent.cli.output import print_complaints, print_json, printable, wrapped
from agent.cli.question import Answer, Question, answer, unredirected
from agent.cli.types import IP, Endpoint, Id, IpAddress, PodName, Port
from agent.core.names import PodKey
from agent.core.plan import MESSAGES
from agent.core.reasons import Complaint, Phase, Reason
from agent.core.spec import RedirectSpec
from agent.node.trial import Trial
from agent.state import PodState


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """One pod. `arrival`, `kernel` and `trial` only of a live one, `answer` only where a connection was asked
    about; `left_alone`: why nothing is redirected, "" where something is."""

    namespace: str
    name: str
    left_alone: str
    settings: tuple[Setting, ...]
    complaints: tuple[Complaint, ...]
    arrival: Arrival | None = None
    kernel: KernelState | None = None
    trial: Trial | None = None
    answer: Answer | None = None


@click.command("explain")
@click.argument("pod", type=PodName(), required=False)
@options.files
@click.option("--out", "destination", type=Endpoint(), help="A connection from the pod to IP:PORT.")
@click.option("--uid", type=Id(), help="User of the socket, as the pod sees it. [default: not the proxy's]")
@click.option("--gid", type=Id(), help="Group of the socket, as the pod sees it.")
@click.option("--in", "port", type=Port(), help="A connection from outside to this port of the pod.")
@click.option("--from", "origin", type=IpAddress(), help="Source of --in.")
@click.option("--protocol", type=click.Choice(["tcp", "udp"]), default="tcp", show_default=True)
@options.run_dir
@options.output("text", "json")
@click.option(
    "--try", "wants_trial", is_flag=True, help="Of a live pod: try a connection from inside it, and see."
)
@defaults.options
@click.pass_context
def command(
    ctx: click.Context,
    /,
    pod: PodKey | None,
    files: tuple[str, ...],
    run_dir: Path,
    form: str,
    wants_trial: bool,
    **values: Any,
) -> None:
    """Explain where the connections of a pod go, and who said so.

    POD is NAMESPACE/POD: asked of the running agent, and compared with the kernel just now. With -f, the
    pods of manifests are explained without an agent; the flags of `run` then stand for the node's
    settings. Without --out or --in: all settings of the pod.

    Ends with 1 when the pod is not redirected as it should be.
    """
    question = _question(**{name: values.pop(name) for name in _QUESTION})
    if files:
        if wants_trial:
            raise click.UsageError("cannot use --try with -f: only a live pod can be tried")
        entries = pick(derivations(files, defaults.node_defaults(values)), pod)
        explained = [(_written(entry, question), entry.derivation.spec) for entry in entries]
        bad = False
    elif pod is not None:
        _refuse_defaults(ctx, values)
        state = Agent(run_dir).visit(str(pod))
        tried = Agent(run_dir).trial(str(pod)) if wants_trial else None
        explained = [(_live(state, question, tried), state.spec)]
        bad = wrong(state.status) or (tried is not None and tried.result == "escaped")
    else:
        raise click.UsageError("cannot explain without a pod; name NAMESPACE/POD, or add -f POD.yaml")
    if form == "json":
        print_json([one for one, _ in explained] if files else explained[0][0])
    else:
        for number, (one, spec) in enumerate(explained):
            click.echo("\n" if number else "", nl=False)
            _print(one, spec)
    ctx.exit(1 if bad else 0)


_QUESTION = ("destination", "uid", "gid", "port", "origin", "protocol")


def _question(
    *,
    destination: tuple[IPv4Address | IPv6Address, int] | None,
    uid: int | None,
    gid: int | None,
    port: int | None,
    origin: IP | None,
    protocol: str,
) -> Question | None:
    if destination is not None and port is not None:
        raise click.UsageError("cannot explain two connections at once; give --out or --in")
    if destination is None and (uid is not None or gid is not None):
        raise click.UsageError("cannot use --uid or --gid without --out IP:PORT: inbound rules see no user")
    if port is None and origin is not None:
        raise click.UsageError("cannot use --from without --in PORT")
    if destination is not None:
        return Question("out", destination[1], protocol, destination[0], uid, gid)
    return Question("in", port, protocol, origin) if port is not None else None


def _refuse_defaults(ctx: click.Context, values: dict[str, Any]) -> None:
    """The running agent has settings of its own; others must not seem to count."""
    for parameter in ctx.command.params:
        given = ctx.get_parameter_source(parameter.name or "") is ParameterSource.COMMANDLINE
        if given and parameter.name in values:
            raise click.UsageError(
                f"cannot use {parameter.opts[0]} on a live pod: the agent's own setting counts; "
                "add -f POD.yaml"
            )


def _written(entry: Entry, question: Question | None) -> Explanation:
    derivation, pod = entry.derivation, entry.pod
    spec, excluded = derivation.spec, derivation.excluded
    rows = settings(spec, derivation.origins, derivation.shadowed) if spec else ()
    left_alone = f"{MESSAGES[excluded]} ({excluded})" if excluded else ""
    return Explanation(
        namespace=pod.key.namespace,
        name=pod.key.name,
        left_alone=left_alone,
        settings=rows,
        complaints=derivation.complaints,
        answer=_answer(
            question,
            spec=spec,
            rows=rows,
            complaints=derivation.complaints,
            addresses=pod.ips,
            left_alone=left_alone,
        ),
    )


def _live(pod: PodState, question: Question | None, tried: Trial | None) -> Explanation:
    status = pod.status
    rows = settings(pod.spec, pod.origins, pod.shadowed) if pod.spec else ()
    drained = status.reason is Reason.DRAINING
    left_alone = f"{status.message} ({status.reason})" if pod.spec is None or drained else ""
    return Explanation(
        namespace=pod.namespace,
        name=pod.name,
        left_alone=left_alone,
        settings=rows,
        complaints=pod.complaints,
        arrival=arrival(pod),
        kernel=kernel_state(pod),
        trial=tried,
        answer=_answer(
            question,
            spec=pod.spec,
            rows=rows,
            complaints=status.complaints,
            addresses=pod.addresses,
            left_alone=left_alone,
        ),
    )


def _answer(
    question: Question | None,
    *,
    spec: RedirectSpec | None,
    rows: tuple[Setting, ...],
    complaints: tuple[Complaint, ...],
    addresses: tuple[str, ...],
    left_alone: str,
) -> Answer | None:
    if question is None:
        return None
    if spec is None or left_alone:
        return unredirected(question, left_alone)
    return answer(question, spec, rows, complaints, addresses)


def _print(one: Explanation, spec: RedirectSpec | None) -> None:
    click.echo(printable(f"{one.namespace}/{one.name}"))
    if one.answer is not None:
        _print_answer(one.answer, in_force=one.kernel is None or one.kernel.phase == Phase.APPLIED)
    if one.kernel is not None:
        print_kernel_state(one.kernel, spec)
    if one.arrival is not None and one.answer is None:
        click.echo(wrapped(one.arrival.sentence, "  "))
    if one.trial is not None:
        click.echo(wrapped(f"tried: {one.trial.result}: {one.trial.why}", "  "))
    if one.kernel is None and one.left_alone:
        click.echo(wrapped(f"left alone: {one.left_alone}", "  "))
    if one.answer is None:
        if one.settings:
            print_settings(one.settings)
        print_complaints(one.complaints)


def _print_answer(found: Answer, *, in_force: bool) -> None:
    click.echo(f"  {found.connection}")
    to = f" to the proxy's {found.to} port {found.port}" if found.port else ""
    click.echo(
        f"  {found.verdict}{to}" + ("" if in_force or not found.rule else ", once its rules are in force")
    )
    click.echo(wrapped(f"because {found.why}", "  "))
    if found.rule:
        click.echo(f"  rule {found.rule}")
    if found.setting is not None:
        print_origins(found.setting, "  ")
    print_complaints(found.complaints)
