"""What the benchmarks stand on: empty namespaces, a real agent and its memory, and how figures are put."""

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec

from agent.state import NodeState

NETNS = Path("/run/netns")
START_DEADLINE = 60.0
SETTLE_DEADLINE = 60.0
SETTLE_PAUSE = 1.0
END_DEADLINE = 20.0


class Cost(msgspec.Struct, frozen=True):
    """Milliseconds of one thing that was done: elapsed, and of CPU with all children."""

    wall: float
    cpu: float


def progress(text: str) -> None:
    """Say on stderr what is being done."""
    print(f"  {text}", file=sys.stderr, flush=True)


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that is not exceeded by `share` (0 to 1) of the values."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def verdict(what: str, value: float | None, goal: float, unit: str = "", *, least: bool = False) -> str:
    """One line that holds a figure against its goal: the most that it may be, or with `least` the least."""
    sign = ">=" if least else "<="
    if value is None:
        return f"  not measured  {what} {sign} {goal:g}{unit}"
    met = value >= goal if least else value <= goal
    return f"  {'met   ' if met else 'MISSED'}  {what} {sign} {goal:g}{unit}: {value:.4g}{unit}"


def conclude(**fields: Any) -> None:
    """The last line: one JSON object, numbers to three decimal places."""
    rounded = {key: round(value, 3) if isinstance(value, float) else value for key, value in fields.items()}
    print(json.dumps(rounded), flush=True)


def positive(text: str) -> int:
    """A number of 1 or more, for argparse."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is too small, give 1 or more")
    return value


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Leave in order, with everything removed, on Ctrl-C, SIGTERM, SIGHUP, or when something cannot be done.

    Exits with 2 without root, with 1 for a RuntimeError.
    """
    if os.geteuid() != 0:
        print("cannot make network namespaces: run as root", file=sys.stderr)
        sys.exit(2)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _terminated)
    try:
        yield
    except RuntimeError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("interrupted; everything is removed", file=sys.stderr)
        sys.exit(130)


def _terminated(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


@contextlib.contextmanager
def undisturbed() -> Iterator[None]:
    """Clean up without being interrupted: signals wait until it is done."""
    signals = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def namespaces(count: int, kind: str = "") -> Iterator[list[Path]]:
    """Files of `count` empty network namespaces, `pm-bench-<pid>-<kind><n>`, while the context lasts."""
    made: list[Path] = []
    try:
        for number in range(count):
            made.append(NETNS / f"pm-bench-{os.getpid()}-{kind}{number}")
            subprocess.run(["ip", "netns", "add", made[-1].name], check=True)
        yield list(made)
    finally:
        with undisturbed():
            for path in made:
                if path.exists():
                    subprocess.run(["ip", "netns", "delete", path.name], check=False)


class Agent:
    """A running `pointsman run`."""

    def __init__(self, process: subprocess.Popen[bytes], directory: Path) -> None:
        self.pid = process.pid
        self.run_dir = directory / "run"
        self._process = process
        self._manifests = directory / "manifests"
        self._socket = self.run_dir / "agent.sock"
        self._log = directory / "log"

    def put(self, name: str, uid: str) -> None:
        """Write the manifest of a meshed pod whose namespace only CNI will tell."""
        (self._manifests / f"{name}.json").write_text(json.dumps(_manifest(name, {"uid": uid})))

    def wait_until_known(self, names: Iterable[str]) -> None:
        """Wait until the agent has read the manifests of these pods. RuntimeError when it takes too long."""
        wanted = set(names)
        deadline = time.monotonic() + START_DEADLINE
        while not wanted <= {pod.name for pod in self.state().pods}:
            if time.monotonic() > deadline:
                raise RuntimeError(self._failure(f"does not know {wanted} after {START_DEADLINE:g} s"))
            time.sleep(0.1)

    def state(self) -> NodeState:
        """What the agent says of itself now. Raises OSError while it does not answer."""
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(10)
            client.connect(str(self._socket))
            client.sendall(b"GET /state HTTP/1.0\r\n\r\n")
            answer = b"".join(iter(lambda: client.recv(1 << 16), b""))
        return msgspec.json.decode(answer.partition(b"\r\n\r\n")[2], type=NodeState)

    def wait_until_redirected(self, pods: int) -> NodeState:
        """Wait until the agent is ready and all pods are redirected. RuntimeError when it takes too long."""
        deadline = time.monotonic() + START_DEADLINE
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError, msgspec.DecodeError):
                state = self.state()
                applied = sum(pod.status.phase.value == "Applied" for pod in state.pods)
                if state.writer and not state.not_ready and applied == pods:
                    return state
            self._check_alive()
            time.sleep(0.1)
        raise RuntimeError(self._failure(f"has not redirected {pods} pods after {START_DEADLINE:g} s"))

    def settled_rss_mib(self) -> float:
        """Resident memory of the agent and its children, once its compiler has ended and it is at rest."""
        deadline = time.monotonic() + SETTLE_DEADLINE
        last = math.inf
        while time.monotonic() < deadline:
            tree = _tree(self.pid)
            rss = sum(map(_rss_kib, tree)) / 1024
            if len(tree) == 1 and abs(rss - last) < 0.1:
                return rss
            last = rss
            self._check_alive()
            time.sleep(SETTLE_PAUSE)
        raise RuntimeError(self._failure(f"has not come to rest after {SETTLE_DEADLINE:g} s"))

    def end(self) -> None:
        """Stop the agent; its rules stay."""
        self._process.terminate()
        try:
            self._process.wait(END_DEADLINE)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _check_alive(self) -> None:
        if self._process.poll() is not None:
            raise RuntimeError(self._failure(f"ended with status {self._process.returncode}"))

    def _failure(self, what: str) -> str:
        return f"cannot go on: the agent {what}; its last words:\n{self._log.read_text()[-2000:]}"


@contextlib.contextmanager
def agent(pods: Sequence[Path], *options: str) -> Iterator[Agent]:
    """A real agent that keeps one meshed pod in each of these namespaces."""
    with tempfile.TemporaryDirectory(prefix="pm-bench-") as directory:
        manifests, run_dir, log = (Path(directory, name) for name in ("manifests", "run", "log"))
        manifests.mkdir()
        for path in pods:
            annotations = {"annotations": {"pointsman.io/netns": str(path)}}
            (manifests / f"{path.name}.json").write_text(json.dumps(_manifest(path.name, annotations)))
        command = [sys.executable, "-m", "agent", "run", "--source", f"files:{manifests}"]
        command += ["--run-dir", str(run_dir), "--admin-address", "", *options]
        with log.open("wb") as output:
            # A session of its own, so that Ctrl-C reaches the benchmark alone and it ends the agent.
            process = subprocess.Popen(command, stdout=output, stderr=output, start_new_session=True)
        running = Agent(process, Path(directory))
        try:
            yield running
        finally:
            with undisturbed():
                running.end()


def _manifest(name: str, metadata: dict[str, Any]) -> dict[str, Any]:
    containers = [{"name": "app"}, {"name": "linkerd-proxy"}]
    metadata = {"name": name, "namespace": "bench", **metadata}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": containers}}


def _tree(root: int) -> list[int]:
    """A process and all that come of it."""
    parents: dict[int, int] = {}
    for status in Path("/proc").glob("[0-9]*/status"):
        with contextlib.suppress(OSError):
            parents[int(status.parent.name)] = _field(status, "PPid")
    tree = [root]
    for pid in tree:
        tree += [child for child, parent in parents.items() if parent == pid]
    return tree


def _rss_kib(pid: int) -> int:
    with contextlib.suppress(OSError):
        return _field(Path(f"/proc/{pid}/status"), "VmRSS")
    return 0


def _field(status: Path, name: str) -> int:
    """A number of /proc/PID/status, 0 where it is not given."""
    for line in status.read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1])
    return 0
