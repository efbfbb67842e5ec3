"""The real agent as a process: started, asked through its socket, stopped or killed.

`Agent` belongs to a directory that holds its manifests, its run directory and its log, so a second
agent of the same directory is a successor (the writer's lock is shared), and the same agent can be
started again.
"""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.lab.netns import path_of

PATIENCE = 10.0
"""Seconds that anything may take before a wait fails."""

SLOWNESS = float(os.environ.get("SLOWNESS", "1"))
"""How many times longer every wait here may take: for a machine that is emulated."""

JSON = dict[str, Any]


class Gone(Exception):  # noqa: N818
    """The agent does not answer on its socket."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("agent", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Agent:
    """One agent process over `directory`. `flags` are added to `pointsman run`.

    `prefix` is put before the command, and must become it (nsenter), so that the PID is the agent's.
    """

    def __init__(
        self, directory: Path, *flags: str, name: str = "agent", prefix: tuple[str, ...] = ()
    ) -> None:
        self.directory = directory
        self.manifests = directory / "manifests"
        self.run_dir = directory / "run"
        self.log = directory / f"{name}.log"
        self.manifests.mkdir(exist_ok=True)
        self.run_dir.mkdir(exist_ok=True)
        self._flags = flags
        self._prefix = prefix
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start(self, *, wait: bool = True) -> "Agent":
        """Start the process; `wait`: until it is ready."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self._prefix,
                    sys.executable, "-m", "agent", "run",
                    "--source", f"files:{self.manifests}",
                    "--run-dir", str(self.run_dir),
                    "--admin-address", "",
                    "--diagnostics-address", "",
                    "--log-format", "json",
                    *self._flags,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )  # fmt: skip
        if wait:
            self.wait(self._ready, "readiness")
        return self

    def _ready(self) -> bool:
        """This very process answers, not one that it is to succeed, and it is ready."""
        state = self.state()
        return state["pid"] == self.pid and not state["notReady"]

    def stop(self, *, patience: float = PATIENCE) -> int:
        """SIGTERM and wait for its end. Returns the exit status."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        return self._process.wait(patience * SLOWNESS)

    def kill(self) -> None:
        """SIGKILL, of this very process."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        if self.running:
            self.kill()

    def ask(self, method: str, path: str, timeout: float = PATIENCE) -> Any:
        """JSON answer of the agent's socket. Gone when it does not answer, LookupError for a 404."""
        connection = _Connection(self.run_dir / "agent.sock", timeout * SLOWNESS)
        try:
            connection.request(method, path)
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            raise Gone(str(error)) from error
        finally:
            connection.close()
        if answer.status == http.client.NOT_FOUND:
            raise LookupError(body.decode())
        return json.loads(body) if answer.headers["Content-Type"] == "application/json" else body.decode()

    def state(self) -> JSON:
        state: JSON = self.ask("GET", "/state")
        return state

    def pod(self, name: str) -> JSON:
        """State of the pod `namespace/name`. LookupError when the agent has none."""
        for pod in self.state()["pods"]:
            if f"{pod['namespace']}/{pod['name']}" == name:
                found: JSON = pod
                return found
        raise LookupError(name)

    def reason(self, name: str) -> str:
        try:
            reason: str = self.pod(name)["status"]["reason"]
        except LookupError:
            return "NoSuchPod"
        return reason

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = PATIENCE) -> None:
        """Until `condition` is true; AssertionError with the log's end when it is not in time."""
        seconds *= SLOWNESS
        deadline = time.monotonic() + seconds
        while True:
            with contextlib.suppress(Gone, LookupError):
                if condition():
                    return
            if time.monotonic() > deadline:
                state = self.state()["pods"] if self.running else "not running"
                raise AssertionError(f"no {what} in {seconds} s; state {state}; log:\n{self.tail()}")
            if self._process is not None and self._process.poll() is not None:
                raise AssertionError(f"the agent ended with {self._process.returncode}:\n{self.tail()}")
            time.sleep(0.02)

    def wait_reason(self, name: str, *reasons: str, seconds: float = PATIENCE) -> None:
        self.wait(lambda: self.reason(name) in reasons, f"{' or '.join(reasons)} for {name}", seconds)

    def lines(self) -> list[JSON]:
        """Its log so far; a line that is not JSON (a traceback) is under the key `text`."""
        lines: list[JSON] = []
        for line in self.log.read_text(errors="replace").splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                lines.append({"text": line})
        return lines

    def events(self, event: str) -> list[JSON]:
        """Log lines of one event."""
        return [line for line in self.lines() if line.get("event") == event]

    def tail(self) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-25:])

    def put(self, manifest: JSON) -> None:
        """Write or replace one manifest, as a whole."""
        metadata = manifest["metadata"]
        name = f"{manifest['kind']}-{metadata.get('namespace', 'default')}-{metadata['name']}.yaml"
        temporary = self.manifests / f".{name}"
        temporary.write_text(yaml.safe_dump(manifest))
        temporary.rename(self.manifests / name)

    def drop(self, manifest: JSON) -> None:
        metadata = manifest["metadata"]
        (
            self.manifests
            / f"{manifest['kind']}-{metadata.get('namespace', 'default')}-{metadata['name']}.yaml"
        ).unlink()


@contextlib.contextmanager
def agent(
    directory: Path, *flags: str, name: str = "agent", start: bool = True, prefix: tuple[str, ...] = ()
) -> Iterator[Agent]:
    """An agent that is killed at the end, if it still runs."""
    one = Agent(directory, *flags, name=name, prefix=prefix)
    try:
        if start:
            one.start()
        yield one
    finally:
        one.close()


def pod_manifest(
    name: str,
    netns: str | None = None,
    *,
    annotations: JSON | None = None,
    uid: str | None = None,
    namespace: str = "default",
    meshed: bool = True,
    **spec: Any,
) -> JSON:
    """A pod with an application and, if `meshed`, a proxy container; `netns`: name of its namespace."""
    metadata: JSON = {"name": name, "namespace": namespace, "annotations": dict(annotations or {})}
    if netns is not None:
        metadata["annotations"]["pointsman.io/netns"] = str(path_of(netns))
    if uid is not None:
        metadata["uid"] = uid
    status = spec.pop("status", {})
    containers = [{"name": "app"}, *([{"name": "linkerd-proxy"}] if meshed else [])]
    return {
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": containers, **spec},
        "status": status,
    }


def descriptors(pid: int) -> int:
    """Open descriptors of a process."""
    return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
