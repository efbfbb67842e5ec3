"""`pointsman diagnostics ... --watch`: a line for each change, through restarts of the agent."""

import contextlib
import queue
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import msgspec

from agent.core.discovery.answers import Address, Ended, Endpoints, Hint, Lack, Override, Profile, RetryBudget
from agent.core.reasons import Reason
from tests.cli.answered import IDENTITY, NAME, ROUTES
from tests.cli.service import Service, Socket, held, on

SECONDS = 20.0
"""How long a test waits for what must come."""


class Watched:
    """The command, running. Lines come without their time of day."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "agent", "diagnostics", *map(str, arguments), "--watch"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._lines: dict[str, queue.Queue[str]] = {"out": queue.Queue(), "err": queue.Queue()}
        self._threads = [
            threading.Thread(target=self._read, args=(stream, self._lines[name]))
            for name, stream in (("out", self.process.stdout), ("err", self.process.stderr))
        ]
        for thread in self._threads:
            thread.start()

    def line(self) -> str:
        timed = self._lines["out"].get(timeout=SECONDS)
        found = re.fullmatch(r"[0-2][0-9]:[0-5][0-9]:[0-6][0-9] (.*)\n", timed)
        assert found is not None, timed
        return found[1]

    def error(self) -> str:
        return self._lines["err"].get(timeout=SECONDS).rstrip("\n")

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(SECONDS)

    def close(self) -> None:
        self.process.kill()
        self.process.wait(SECONDS)
        for thread in self._threads:
            thread.join(SECONDS)

    def rest(self) -> list[str]:
        return list(self._lines["out"].queue)

    @staticmethod
    def _read(stream: IO[str] | None, into: "queue.Queue[str]") -> None:
        for line in stream or ():
            into.put(line)


@contextlib.contextmanager
def watched(*arguments: object) -> Iterator[Watched]:
    made = Watched(*arguments)
    try:
        yield made
    finally:
        made.close()


def pod(number: int, **fields: object) -> Address:
    labels = (("pod", f"web-{number}"), ("zone", "a"))
    return msgspec.structs.replace(Address(f"10.0.0.{number}", 80, labels=labels), **fields)


def web(*addresses: Address) -> Endpoints:
    return Endpoints(True, addresses, (("namespace", "shop"), ("service", "web")))


FULL = {"identity": IDENTITY, "server_name": IDENTITY, "hint": Hint("h2", 4143), "http2": True}
TLS = f"TLS as {IDENTITY}, hint HTTP/2, transport header to port 4143"


def test_endpoints_come_change_and_go(tmp_path: Path) -> None:
    where = on("web")
    with Service() as service, Socket(tmp_path) as agent:

        def tell(answer: Endpoints) -> None:
            agent.tell("endpoints", where, answer)
            service.get("web", answer)

        tell(web(pod(1, **FULL, redirection="redirected")))
        with watched("endpoints", where, "--api-addr", service.address, "--run-dir", tmp_path) as told:
            assert told.line() == f"{where}: has 10.0.0.1:80 (web-1): {TLS}, redirected"

            tell(web(pod(1, **FULL, redirection="redirected"), pod(2)))
            assert told.line() == f"{where}: added 10.0.0.2:80 (web-2): no TLS"

            lost = pod(1, redirection="failed", withheld=Reason.NOT_REDIRECTED)
            tell(web(lost, pod(2, labels=(("pod", "web-2"), ("zone", "b")))))
            assert told.line() == (
                f"{where}: changed 10.0.0.1:80 (web-1): TLS as {IDENTITY} -> no TLS (NotRedirected); "
                "hint HTTP/2 -> nothing; transport header to port 4143 -> nothing; "
                "redirected -> not redirected; parameters of HTTP/2"
            )
            assert told.line() == f"{where}: changed 10.0.0.2:80 (web-2): zone a -> zone b"

            tell(web(pod(2)))
            assert told.line() == f"{where}: changed 10.0.0.2:80 (web-2): zone b -> zone a"
            assert told.line() == f"{where}: removed 10.0.0.1:80 (web-1)"

            tell(Endpoints(exists=True))
            assert told.line() == f"{where}: removed 10.0.0.2:80 (web-2)"
            assert told.line() == f"{where}: no endpoints; the Service exists"

            tell(Endpoints(exists=False))
            assert told.line() == f"{where}: no endpoints; there is no such Service"
            assert told.interrupt() == 0
            told.close()
            assert told.rest() == []


def test_a_restart_of_the_agent_is_lived_through(tmp_path: Path) -> None:
    where = on("web")
    with Service() as service:
        service.get("web", web(pod(1), pod(2)))
        with watched("endpoints", where, "--api-addr", service.address, "--run-dir", tmp_path) as told:
            assert [told.line() for _ in range(2)] == [
                f"{where}: has 10.0.0.1:80 (web-1): no TLS",
                f"{where}: has 10.0.0.2:80 (web-2): no TLS",
            ]
            service.leave("the agent is stopping; connect again")
            assert told.line() == f"{where}: lost: the agent is stopping; connect again; asking again"
            service.get("web", web(pod(2), pod(3)))
            service.come_back()
            assert told.line() == f"{where}: added 10.0.0.3:80 (web-3): no TLS"
            assert told.line() == f"{where}: removed 10.0.0.1:80 (web-1)"
            assert told.error().startswith("Redirection, and the rule that decided opacity, are not on the ")


def test_several_paths(tmp_path: Path) -> None:
    with Service() as service:
        service.get("web", web(pod(1)))
        paths = (on("web"), on("other"))
        with watched("ep", *paths, "--api-addr", service.address, "--run-dir", tmp_path) as told:
            assert {told.line() for _ in paths} == {
                f"{on('web')}: has 10.0.0.1:80 (web-1): no TLS",
                f"{on('other')}: no endpoints; there is no such Service",
            }
            service.get("other", web(pod(9)))
            assert told.line() == f"{on('other')}: added 10.0.0.9:80 (web-9): no TLS"


def test_a_set_in_parts_is_one_answer(tmp_path: Path) -> None:
    where = on("web")
    many = [Address(f"10.1.{n >> 8}.{n & 255}", 80, labels=(("pod", "p" * 200),)) for n in range(20_000)]
    with Service() as service:
        service.get("web", web(*many))
        with watched("endpoints", where, "--api-addr", service.address, "--run-dir", tmp_path) as told:
            assert all(f"{where}: has 10.1." in told.line() for _ in many)
            service.leave("restart")
            assert told.line() == f"{where}: lost: restart; asking again"
            service.get("web", web(*many[1:]))
            service.come_back()
            assert told.line().startswith(f"{where}: removed 10.1.0.0:80")
            told.interrupt()
            told.close()
            assert told.rest() == []


def test_a_profile_changes(tmp_path: Path) -> None:
    where = on("web")
    full = Profile(
        name=NAME,
        opaque=False,
        retry_budget=RetryBudget(),
        rule="default opaque ports",
    )
    with Service() as service, Socket(tmp_path) as agent:

        def tell(answer: Profile) -> None:
            agent.tell("profile", where, answer)
            service.profile("web", answer)

        tell(Profile())
        with watched("profile", where, "--api-addr", service.address, "--run-dir", tmp_path) as told:
            assert told.line() == f"{where}: nothing is known of it"

            tell(full)
            assert [told.line() for _ in range(3)] == [
                f"{where}: Service {NAME}",
                f"{where}: not opaque, by default opaque ports",
                f"{where}: retry budget 0.2 of requests and 10/s within 10 s",
            ]

            tell(msgspec.structs.replace(full, opaque=True, rule="annotation of the Service"))
            assert told.line() == (
                f"{where}: not opaque, by default opaque ports -> opaque, by annotation of the Service"
            )

            split = (Override("a:80", 9_000), Override("b:80", 1_000))
            tell(
                msgspec.structs.replace(
                    full, opaque=True, routes=ROUTES, overrides=split, rule="annotation of the Service"
                )
            )
            assert [told.line() for _ in range(2)] == [
                f"{where}: routes GET <b>, (without a name), (without a name)",
                f"{where}: split a:80 0.9, b:80 0.1",
            ]

            tell(Profile(retry_budget=RetryBudget(), endpoint=pod(1, **FULL, redirection="redirected")))
            assert [told.line() for _ in range(10)] == [
                f"{where}: opaque, by annotation of the Service -> not opaque",
                f"{where}: endpoint 10.0.0.1:80 (web-1)",
                f"{where}: TLS as {IDENTITY}",
                f"{where}: hint HTTP/2",
                f"{where}: transport header to port 4143",
                f"{where}: redirected",
                f"{where}: labels pod=web-1, zone=a",
                f"{where}: no longer: Service {NAME}",
                f"{where}: no longer: routes GET <b>, (without a name), (without a name)",
                f"{where}: no longer: split a:80 0.9, b:80 0.1",
            ]

            opaque = pod(1, **{**FULL, "hint": Hint("opaque", 4143)}, redirection="redirected")
            tell(Profile(opaque=True, retry_budget=RetryBudget(), endpoint=opaque))
            assert [told.line() for _ in range(2)] == [
                f"{where}: not opaque -> opaque",
                f"{where}: hint HTTP/2 -> hint opaque",
            ]

            tell(Profile())
            assert told.line() == f"{where}: nothing is known of it"


def test_a_call_that_is_ended_for_good(tmp_path: Path) -> None:
    with Service() as service:
        service.profile("web", Ended("cannot answer for Service shop/web: it is an ExternalName"))
        arguments = ("profile", on("web"), "--api-addr", service.address, "--run-dir", tmp_path)
        with watched(*arguments) as told:
            assert told.error() == (
                "Destination API error: rpc error: code = InvalidArgument desc = cannot answer for Service "
                "shop/web: it is an ExternalName"
            )
            assert told.process.wait(SECONDS) == 1


def test_an_answer_that_is_held_is_waited_for(tmp_path: Path) -> None:
    where = on("web")
    with Service() as service, Socket(tmp_path) as agent:
        waiting = held(Lack("pod", "web-0", "shop"))
        agent.tell("endpoints", where, waiting)
        service.get("web", waiting)
        arguments = ("--api-addr", service.address, "--run-dir", tmp_path, "--timeout", "0.3")
        with watched("endpoints", where, *arguments) as told:
            assert told.error() == f"No answer about {where} yet: the agent waits for pod shop/web-0"
            service.get("web", web(pod(0)))
            assert told.line() == f"{where}: has 10.0.0.0:80 (web-0): no TLS"
