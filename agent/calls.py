"""Every call of the shim: taken, answered here or by the agent that writes, counted and logged.

During an upgrade two agents overlap. The successor takes over the shim's socket once it knows all that it
needs, which is before it may write; until then it has the writer answer wherever rules may be needed. A call
that the writer cuts off as it ends is made again, by then perhaps to this agent itself.
"""

import asyncio
import secrets
import time
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, Counter, Histogram

from agent.cni.server import Server, answers, relay, sweep
from agent.cni.wire import Call, Garbled
from agent.core.cni import CniError, Code, Request, Verb, error_object, parse, version_of
from agent.gate import PATIENCE, Gate
from agent.node.enforcer import Enforcer
from agent.node.lock import WriterLock

TAKE_OVER_RETRY = 0.1
RELAY_RETRY = 0.05
PRUNE_PERIOD = 2.0
BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)

FAULT = "report the traceback in the agent's log"

log = structlog.get_logger("cni")


class Calls:
    """The agent's side of the shim's socket, from `run` to `close`."""

    def __init__(
        self, gate: Gate, enforcer: Enforcer, lock: WriterLock, run_dir: Path, registry: CollectorRegistry
    ) -> None:
        self.instance = secrets.token_hex(4)
        self._gate = gate
        self._enforcer = enforcer
        self._lock = lock
        self._run_dir = run_dir
        self._server = Server(self.answer, run_dir / "cni.sock", self._private(self.instance))
        self.open = False
        self._requests = Counter(
            "pointsman_cni_requests",
            "Calls of the CNI shim, by what came of them.",
            ["command", "result"],
            registry=registry,
        )
        self._duration = Histogram(
            "pointsman_cni_request_duration_seconds",
            "Time from a call of the CNI shim to its answer.",
            ["command"],
            buckets=BUCKETS,
            registry=registry,
        )

    async def run(self) -> None:
        """Open the sockets, each when it is time, and keep the attachments free of what has ended."""
        while not await self._prepared():
            await asyncio.sleep(PRUNE_PERIOD)
        while not await self._fit():
            await asyncio.sleep(TAKE_OVER_RETRY)
        self._take_over()
        while True:
            await self._gate.prune()
            self._gate.announce_again()
            await self._look_after()
            await asyncio.sleep(PRUNE_PERIOD)

    async def _prepared(self) -> bool:
        try:
            for pattern in ("cni-*.sock", ".cni-*.new"):
                await asyncio.to_thread(sweep, self._run_dir, pattern)
            self._server.open_private()
        except OSError as error:
            log.error("cannot answer the CNI shim; tried again", error=str(error))
            return False
        return True

    async def _look_after(self) -> None:
        try:
            reachable = await asyncio.to_thread(self._server.reachable)
        except OSError as error:
            log.warning("cannot find out who answers the CNI shim; tried again", error=error.strerror)
            return
        if not reachable:
            log.warning("the shim's socket is gone, or another file lies in its place; made anew")
            self._take_over()
        self.open |= reachable

    def _take_over(self) -> None:
        try:
            self._server.open_public()
        except OSError as error:
            # Agent and pods do without it: new ones are found late, as if no agent ran.
            self.open = False
            log.error("cannot answer the CNI shim; tried again", error=str(error))
        else:
            self.open = True
            log.info("answering the CNI shim", socket=str(self._run_dir / "cni.sock"))

    async def close(self) -> None:
        self.open = False
        await self._server.close()
        await asyncio.to_thread(self._gate.close)

    async def answer(self, call: Call) -> bytes:
        """The error object for a call, b"" when it succeeds."""
        began = time.monotonic()
        command, who = call.environment.get("CNI_COMMAND", ""), ""
        try:
            request = parse(call.environment, call.stdin)
            who = str(request.attachment.pod or request.attachment.container_id)
            result, body = await self._answer(request, call)
        except CniError as error:
            result = "refused" if error.code in (Code.LATER, Code.UNAVAILABLE) else "invalid"
            log.warning("call refused", command=command, pod=who, error=error.message)
            body = error_object(version_of(call.stdin), error)
        except Exception:
            # A call without an answer would count as an agent that is away, and pass.
            log.exception("unexpected failure of a call", command=command, pod=who)
            result = "failed"
            fault = CniError(Code.LATER, f"cannot answer {command} for {who}: a fault of pointsman", FAULT)
            body = error_object(version_of(call.stdin), fault)
        seconds = time.monotonic() - began
        command = command if command in list(Verb) else "other"
        self._requests.labels(command, result).inc()
        self._duration.labels(command).observe(seconds)
        log.debug("call answered", command=command, pod=who, result=result, ms=round(seconds * 1000, 2))
        return body

    async def _answer(self, request: Request, call: Call) -> tuple[str, bytes]:
        duty, gate = self._enforcer.duty, self._gate
        deadline = asyncio.get_running_loop().time() + PATIENCE
        match request.verb:
            case Verb.ADD if not duty.writer and not duty.policy.observe:
                if gate.unmeshed(gate.admit(request)):
                    return "unmeshed", b""
                body = await self._relayed(call, deadline)
                if body is not None:
                    return "relayed", body
                return await gate.add(request, deadline), b""
            case Verb.ADD:
                return await gate.add(request, deadline), b""
            case Verb.DEL:
                return await gate.delete(request), b""
            case Verb.CHECK:
                return await gate.check(request), b""
            case Verb.STATUS:
                return await gate.status(), b""
            case Verb.GC:
                return await gate.collect(request), b""

    async def _relayed(self, call: Call, deadline: float) -> bytes | None:
        """The writer's answer; None once this agent is the writer. CniError when neither comes in time."""
        problem: Exception | None = None
        try:
            async with asyncio.timeout_at(deadline):
                while not self._enforcer.duty.writer:
                    instance = self._lock.instance()
                    if instance not in ("", self.instance):
                        try:
                            return await relay(self._private(instance), call)
                        except (OSError, Garbled, EOFError) as error:
                            problem = error
                    await asyncio.sleep(RELAY_RETRY)
        except TimeoutError:
            writer = self._lock.holder() or "unknown"
            words = f"cannot have the writing agent (process {writer}) answer: {problem or 'it does not'}"
            remedy = "is that process hung? end it: this agent then writes, and answers"
            raise CniError(Code.LATER, words, remedy) from None
        return None

    async def _fit(self) -> bool:
        """Whether this agent may take the shim's calls. From a predecessor that lives, only when it knows
        as much; when nobody answers, at once."""
        knows = self._enforcer.duty.listed and self._enforcer.settled()
        if knows and not self._enforcer.duty.policy.observe:
            return True
        try:
            return not await asyncio.to_thread(answers, self._run_dir / "cni.sock")
        except OSError:
            # Out of descriptors: nothing is known, and nothing is taken from anybody.
            return False

    def _private(self, instance: str) -> Path:
        return self._run_dir / f"cni-{instance}.sock"
