"""One connection as real traffic, held against the verdict of the pure core rule by rule."""

from typing import Literal

import msgspec

from agent.core.ruleset import inbound, outbound
from agent.core.spec import RedirectSpec
from agent.core.verdict import Connection, Verdict, decide
from agent.node.nft.socket import Nft
from tests.cases.datapath import Counted, counted
from tests.lab.pod import Pod
from tests.lab.probe import Arrival, send
from tests.lab.standin import Endpoint, Listener
from tests.lab.way import Probe, Way, laid

_REDIRECTED = {"in": "in_redirect", "out": "out_redirect"}


class Seen(msgspec.Struct, frozen=True):
    """What became of one connection. `place` is settled by counters where the listener is the real target.

    `counted` is how far each counter of the table moved; `verdict` is the core's, for the very packet.
    """

    place: Literal["in", "out", "direct", "refused", "lost"]
    arrival: Arrival
    way: Way
    counted: Counted
    verdict: Verdict


def connection(probe: Probe, *, source: str | None, destination: str | None, forwarded: bool) -> Connection:
    """The core's value for a probe whose addresses are known."""
    return Connection(
        direction=probe.direction,
        port=probe.port,
        protocol=probe.protocol,
        family=probe.family,
        source=source,
        destination=destination,
        uid=probe.uid,
        gid=probe.gid,
        interface=probe.interface,
        syn=probe.syn,
        local=not forwarded,
    )


def observe(pod: Pod, standin: tuple[Listener, ...], nft: Nft, spec: RedirectSpec, probe: Probe) -> Seen:
    """Make the connection through the rules that are installed. Raises NotOnAWireError."""
    with laid(pod, probe) as way:
        before = counted(nft)
        arrival = send(pod, standin, probe, way)
        after = counted(nft)
    moved = {name: after[name] - before.get(name, 0) for name in after if after[name] != before.get(name, 0)}
    packet = connection(probe, source=way.source, destination=way.destination, forwarded=way.forwarded)
    place = arrival.place
    if arrival.at_target and place in _REDIRECTED and not moved.get(_REDIRECTED[place]):
        place = "direct"
    return Seen(place, arrival, way, moved, decide(spec, packet))


def disagreements(seen: Seen, spec: RedirectSpec, probe: Probe) -> list[str]:
    """Where kernel and verdict differ: place, port, original destination, or the rule that decided."""
    verdict = seen.verdict
    if seen.place != verdict.action:
        detail = f" ({seen.arrival.detail})" if seen.arrival.detail else ""
        return [f"on the wire it is {seen.place}{detail}, the verdict is {verdict.action} by {verdict.rule}"]
    found: list[str] = []
    if verdict.to_port is not None and seen.arrival.port != verdict.to_port:
        found.append(f"it arrives at port {seen.arrival.port}, the verdict is {verdict.to_port}")
    wanted = original(probe, seen.way)
    if seen.arrival.original is not None and seen.arrival.original != wanted:
        found.append(f"its original destination is {seen.arrival.original}, expected {wanted}")
    expected = _counter_of(verdict, spec)
    if seen.counted != expected:
        found.append(f"it moves the counters {seen.counted}, rule {verdict.rule} moves {expected}")
    return found


def original(probe: Probe, way: Way) -> Endpoint:
    """Where the connection wants to go."""
    return way.destination, probe.port or 0


def _counter_of(verdict: Verdict, spec: RedirectSpec) -> Counted:
    for rule in (*inbound(spec), *outbound(spec)):
        if rule.id == verdict.rule:
            return {rule.counter: 1} if rule.counter else {}
    return {}
