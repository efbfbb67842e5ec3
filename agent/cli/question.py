"""One connection of one pod: what becomes of it, by which rule, and who said so."""

from collections.abc import Iterable
from ipaddress import ip_address
from typing import Literal

import click
import msgspec

from agent.cli.effective import Setting
from agent.cli.types import IP
from agent.core import names
from agent.core.reasons import Complaint, Reason
from agent.core.spec import RedirectSpec
from agent.core.verdict import Connection, decide

SOMEBODY = 1000
"""User of connections about which nothing else is said."""

_SUBJECTS = {
    "in": {
        names.SKIP_INBOUND_PORTS,
        names.SKIP_SUBNETS,
        names.INBOUND_PORT,
        names.CONTROL_PORT,
        names.ADMIN_PORT,
        names.ENV_INBOUND,
        names.ENV_CONTROL,
        names.ENV_ADMIN,
    },
    "out": {
        names.SKIP_OUTBOUND_PORTS,
        names.OUTBOUND_PORT,
        names.PROXY_UID,
        names.PROXY_GID,
        names.ENV_OUTBOUND,
        names.ENV_OUTBOUND_SINGLE,
    },
}
_REASONS = {
    "in": {Reason.INBOUND_OFF, Reason.SECONDARY_INTERFACE},
    "out": {Reason.OUTBOUND_OFF, Reason.PROXY_UID_SHARED},
}
_PROXY = {"in": "inbound", "out": "outbound"}


class Question(msgspec.Struct, frozen=True):
    """A connection as people describe it: `far` is its destination (out) or source (in, may be None)."""

    direction: Literal["in", "out"]
    port: int
    protocol: str
    far: IP | None
    uid: int | None = None
    gid: int | None = None


class Answer(msgspec.Struct, frozen=True, rename="camel"):
    """`verdict`: "redirected" to the proxy's `port`, its "inbound" or "outbound" one (`to`), or "direct".

    `rule`: id of the rule that decided, "" without rules. `complaints`: those that bear on it.
    """

    connection: str
    verdict: Literal["redirected", "direct"]
    to: str
    port: int | None
    rule: str
    why: str
    setting: Setting | None = None
    complaints: tuple[Complaint, ...] = ()


def answer(
    question: Question,
    spec: RedirectSpec,
    settings: Iterable[Setting],
    complaints: Iterable[Complaint],
    addresses: Iterable[str],
) -> Answer:
    """What the rules of `spec` do. `addresses`: the pod's own. Raises click.UsageError for what is no
    connection, and where the answer depends on something that was not said."""
    connection = _connection(question, spec, addresses)
    verdict = decide(spec, connection)
    direct = verdict.action == "direct"
    return Answer(
        connection=describe(question, connection),
        verdict="direct" if direct else "redirected",
        to="" if direct else _PROXY[connection.direction],
        port=verdict.to_port,
        rule=verdict.rule,
        why=verdict.why,
        setting=next((row for row in settings if row.name == verdict.setting), None),
        complaints=tuple(one for one in complaints if _bears(one, connection, direct)),
    )


def unredirected(question: Question, why: str) -> Answer:
    """The answer for a pod in which nothing is redirected."""
    return Answer(describe(question), "direct", "", None, "", why)


def describe(question: Question, connection: Connection | None = None) -> str:
    """The connection in words."""
    who = ""
    if question.direction == "in":
        far = f" from {question.far}" if question.far else ""
        return f"in to port {question.port} ({question.protocol}){far}"
    if connection is not None:
        group = f", group {connection.gid}" if connection.gid is not None else ""
        who = f" of user {connection.uid}{group}"
        who += ", over lo" if connection.interface == "lo" else ""
    host = f"[{question.far}]" if question.far and question.far.version == 6 else question.far
    return f"out to {host}:{question.port} ({question.protocol}){who}"


def _connection(question: Question, spec: RedirectSpec, addresses: Iterable[str]) -> Connection:
    far = question.far
    own = {ip_address(address.partition("%")[0]) for address in addresses}
    # To the kernel, a connection to 0.0.0.0 or :: is one to the loopback address.
    inside = far is not None and (far.is_loopback or far.is_unspecified or far in own)
    if question.direction == "out":
        return Connection(
            direction="out",
            port=question.port,
            protocol=question.protocol,
            family=_family(far),
            destination=str(far),
            uid=_uid(question, spec),
            gid=question.gid,
            interface="lo" if inside else "eth0",
        )
    if inside:
        raise click.UsageError(f"cannot come in from {far}: it is the pod itself; ask with --out IP:PORT")
    if far is None and spec.skip_subnets:
        raise click.UsageError(
            f"cannot answer without --from IP: connections from {spec.skip_subnets} are skipped"
        )
    return Connection(
        direction="in",
        port=question.port,
        protocol=question.protocol,
        family=_family(far),
        source=str(far) if far is not None else None,
    )


def _family(address: IP | None) -> Literal[4, 6]:
    return 6 if address is not None and address.version == 6 else 4


def _uid(question: Question, spec: RedirectSpec) -> int:
    if question.uid is not None:
        return question.uid
    return SOMEBODY if spec.proxy_uid != SOMEBODY else SOMEBODY + 1


def _bears(complaint: Complaint, connection: Connection, direct: bool) -> bool:
    side = connection.direction
    match complaint.reason:
        case Reason.SHADOWED:
            return True
        case Reason.PROXY_NOT_LISTENING:
            return not direct and complaint.subject.startswith(_PROXY[side])
        case Reason.IPV6_NOT_REDIRECTED:
            return connection.family == 6
    return complaint.reason in _REASONS[side] or complaint.subject in _SUBJECTS[side]
