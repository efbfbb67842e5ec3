"""Real connections, and what every proxy on their way saw of them."""

import json
import socket
from typing import Any

import msgspec

from tests.demo.network import JOINT, Pod
from tests.demo.stage import APPLICATION_UID, Stage
from tests.demo.tell import Broken, Teller
from tests.lab.netns import inside
from tests.lab.standin import Endpoint

TIMEOUT = 5.0


class Hop(msgspec.Struct, frozen=True):
    """A connection at a proxy: who connects, as the proxy sees it, and where it wanted to go."""

    pod: str
    listener: str
    port: int
    source: Endpoint
    original: Endpoint


class Journey(msgspec.Struct, frozen=True):
    """One connection that was answered. `start`: pod, or "outside". `seen`: by the application."""

    start: str
    uid: int
    source: Endpoint
    destination: Endpoint
    hops: tuple[Hop, ...]
    application: str
    seen: Endpoint

    @property
    def way(self) -> list[str]:
        """Proxies in the order in which the connection meets them."""
        return [f"{hop.listener} proxy of {hop.pod}" for hop in self.hops]


class Conversation:
    """An open connection to a pod's application, by user `uid` of the pod `start`, or of None: outside.

    Broken when it is refused, or ends without an answer.
    """

    def __init__(self, stage: Stage, start: Pod | None, to: Endpoint, uid: int = APPLICATION_UID) -> None:
        self.start, self.destination, self.uid = start, to, uid
        self._stage = stage
        self._socket = inside(start.netns if start else JOINT, self._connect, uid=uid, gid=uid)
        self._answers = self._socket.makefile("r")
        self.source: Endpoint = self._socket.getsockname()

    def _connect(self) -> socket.socket:
        try:
            return socket.create_connection(self.destination, TIMEOUT)
        except OSError as error:
            raise self._broken(error) from error

    def ask(self, line: str = "hello") -> dict[str, Any]:
        """The application's answer to one line."""
        try:
            self._socket.sendall(f"{line}\n".encode())
            answer = self._answers.readline()
        except OSError as error:
            raise self._broken(error) from error
        if not answer:
            raise self._broken("the end of the connection")
        answered: dict[str, Any] = json.loads(answer)
        return answered

    def _broken(self, found: object) -> Broken:
        start = self.start.name if self.start else "a client outside"
        return Broken(f"{start} talks to {endpoint(self.destination)}", "an answer", found)

    def hops(self) -> tuple[Hop, ...]:
        """What the proxies have seen since somebody last asked: each writes before it forwards."""
        hops = []
        for pod in self._stage.pods:
            for line in self._stage.proxy(pod).news():
                pod.seen[line["listener"]] += 1
                original = tuple(line["original"] or ("unknown", 0))
                hops.append(Hop(pod.name, line["listener"], line["port"], tuple(line["peer"]), original))
        return tuple(sorted(hops, key=lambda hop: hop.listener, reverse=True))

    def close(self) -> None:
        self._answers.close()
        self._socket.close()

    def __enter__(self) -> "Conversation":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def travel(stage: Stage, start: Pod | None, to: Pod, port: int = 8080, uid: int = APPLICATION_UID) -> Journey:
    """Connect, ask, and close."""
    with Conversation(stage, start, (to.address, port), uid) as conversation:
        answer = conversation.ask()
        stage.connections += 1
        return Journey(
            start=start.name if start else "outside",
            uid=uid,
            source=conversation.source,
            destination=conversation.destination,
            hops=conversation.hops(),
            application=answer["app"],
            seen=tuple(answer["peer"]),
        )


def follow(tell: Teller, journey: Journey, text: str, *way: str) -> None:
    """Tell a journey, and check the way that it took: the proxies of `way`, none without.

    Every proxy must know where the connection wanted to go, and the first also where it came from.
    """
    start = f"{journey.start} (uid {journey.uid})" if journey.start != "outside" else "a client outside"
    lines = [f"{start} {endpoint(journey.source)} -> {endpoint(journey.destination)}"]
    for hop in journey.hops:
        proxy = f"{hop.listener} proxy of {hop.pod}, port {hop.port}:"
        lines.append(f"  {proxy:<35}from {endpoint(hop.source)}, to {endpoint(hop.original)}")
    lines.append(f"  {f'application of {journey.application}:':<35}from {endpoint(journey.seen)}")
    tell.show("\n".join(lines))
    got = (
        journey.way,
        [hop.original for hop in journey.hops],
        journey.hops[0].source if journey.hops else journey.seen,
    )
    tell.fact(text, got=got, want=(list(way), [journey.destination] * len(way), journey.source))


def endpoint(address: Endpoint) -> str:
    host, port = address
    return f"{host}:{port}"
