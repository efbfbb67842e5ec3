"""The running agent, asked through its unix socket by HTTP.

Every failure is an `AgentError`: uncaught, click prints its message and ends with exit code 1.
"""

import http.client
import socket
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote, urlencode

import click
import msgspec

from agent.cni.server import peer
from agent.core.discovery.explanation import Explanation
from agent.node.leftovers import Leftover
from agent.node.trial import Trial
from agent.state import NodeState, PodState

TIMEOUT = 70.0
"""Seconds for one answer: longer than the agent takes before it gives up by itself."""

ALIVE = 15.0
"""Seconds in which an agent that is not stopped or frozen says that it is alive; a hung one has ended."""

T = TypeVar("T")


class AgentError(click.ClickException):
    """The agent did not do what it was asked for; the message says why and what to do."""


class AgentAwayError(AgentError):
    """Nobody answers on the socket."""


class AgentDeniedError(AgentError):
    """The socket is there, and this user may not use it."""


class PodUnknownError(AgentError):
    """The agent keeps no pod of that name."""


class RefusedError(AgentError):
    """The agent will not do it now."""


class Agent:
    """The agent whose socket is in `run_dir`. One connection per question. `alive`: seconds in which it has
    to say that it is alive."""

    def __init__(self, run_dir: Path, alive: float = ALIVE) -> None:
        self.path = run_dir / "agent.sock"
        self._alive = alive

    def state(self) -> NodeState:
        """The whole node."""
        return self._ask("GET", "/state", NodeState)

    def visit(self, pod: str) -> PodState:
        """One pod (`NAMESPACE/NAME`), compared in full just now. PodUnknownError."""
        return self._ask("POST", f"/visit?pod={quote(pod)}", PodState)

    def trial(self, pod: str) -> Trial:
        """Try a connection from inside a pod. PodUnknownError, RefusedError."""
        return self._ask("POST", f"/trial?pod={quote(pod)}", Trial)

    def leftovers(self, pod: str) -> tuple[Leftover, ...]:
        """What linkerd-init left in a pod. PodUnknownError, RefusedError."""
        return self._ask("GET", f"/leftovers?pod={quote(pod)}", tuple[Leftover, ...])

    def cleanup(self, pod: str) -> tuple[str, ...]:
        """Remove these, and name what was removed. PodUnknownError, RefusedError."""
        return self._ask("POST", f"/cleanup?pod={quote(pod)}", tuple[str, ...])

    def unchain(self) -> tuple[str, ...]:
        """Take shim and entry out of the node's network. Paths of what it changed. RefusedError."""
        return self._ask("POST", "/unchain", tuple[str, ...])

    def drain(self) -> NodeState:
        """Redirect no new connection of any pod from now on. RefusedError."""
        return self._ask("POST", "/drain", NodeState)

    def remove(self) -> NodeState:
        """Delete the drain tables. RefusedError."""
        return self._ask("POST", "/remove", NodeState)

    def explanation(self, question: str, path: str, token: str) -> Explanation:
        """What an answer of the destination service says besides its messages. `question`: "endpoints" or
        "profile". RefusedError."""
        query = urlencode({"question": question, "path": path, "token": token})
        try:
            return self._ask("GET", f"/explain-destination?{query}", Explanation)
        except PodUnknownError as error:
            raise AgentError(
                f"cannot get an explanation of the agent at {self.path}: it is of another version"
            ) from error

    def pid(self) -> int:
        """PID of the process that listens, as this one sees it: 0 in another PID namespace, and where
        nobody listens."""
        connection = _Connection(self.path, ALIVE)
        try:
            connection.connect()
            return peer(connection.sock)[0]
        except OSError:
            return 0
        finally:
            connection.close()

    def _ask(self, method: str, target: str, kind: type[T]) -> T:
        self._exchange("GET", "/live", self._alive)
        status, body = self._exchange(method, target, TIMEOUT)
        words = body.decode(errors="replace").strip()
        match status:
            case 200:
                try:
                    return msgspec.json.decode(body, type=kind)
                except msgspec.DecodeError as error:
                    raise AgentError(
                        f"cannot read the agent's answer to {target}: {error}; is it of another version?"
                    ) from error
            case 404 if target.partition("?")[2]:
                raise PodUnknownError(f"{words}; `pointsman redirections` lists what it keeps")
            case 409:
                raise RefusedError(words)
            case 503:
                raise AgentError(f"cannot get an answer to {target}: {words}; look at the agent's log")
        raise AgentError(
            f"cannot get an answer to {target}: status {status}; is the agent of another version? its log "
            "may tell more"
        )

    def _exchange(self, method: str, target: str, seconds: float) -> tuple[int, bytes]:
        connection = _Connection(self.path, seconds)
        try:
            connection.request(method, target)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except PermissionError as error:
            raise AgentDeniedError(
                f"cannot reach the agent at {self.path}: {error.strerror}; run this command as root"
            ) from error
        except TimeoutError as error:
            raise AgentError(
                f"cannot get an answer of the agent at {self.path} within {seconds:g} s; is it stopped, or "
                "frozen? its log may tell more"
            ) from error
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "strerror", None) or error
            raise AgentAwayError(
                f"cannot reach the agent at {self.path}: {reason}; is `pointsman run` running, with the same "
                "--run-dir?"
            ) from error
        finally:
            connection.close()


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("agent", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
