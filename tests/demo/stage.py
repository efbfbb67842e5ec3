"""The stage: pods with proxy and application, two agents, and a directory that holds all they write.

One agent owns its pods' tables where the kernel can; the other keeps one pod with a plain table, as on
an older kernel.
"""

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agent.state import PodState
from tests.demo.interrupts import Interrupts
from tests.demo.network import JOINT, Pod, lay, remove
from tests.demo.program import Program, children
from tests.demo.tell import Teller
from tests.lab.agent import Agent, Gone
from tests.lab.netns import path_of

HOME = Path("/run/pointsman-demo")
PORTS = (8080, 3306, 5432)
PROXY_UID, APPLICATION_UID = 2102, 1000
STOP_PATIENCE = 5.0


class Stage:
    """`web`, `db` and `job` are pods of `agent`, `shop` is the pod of `plain`.

    `owned`: the kernel lets `agent` own tables. `connections`: those that were followed to their end.
    """

    def __init__(self, interrupts: Interrupts, ownership: str) -> None:
        self.web, self.db, self.job, self.shop = self.pods = tuple(
            Pod(name, number) for number, name in enumerate(("web", "db", "job", "shop"), start=2)
        )
        self.interrupts = interrupts
        self.connections = 0
        self.owned = False
        self.agent = _agent("agent", ownership, "--identity-trust-domain", "cluster.local")
        self.plain = _agent("plain-agent", "off")
        self._proxies: dict[str, Program] = {}
        self._programs: list[Program] = []

    def build(self) -> None:
        """Namespaces first, then proxy and application in each; returns when all of them listen.

        Namespaces that a killed demo has left are removed.
        """
        remove(self.pods)
        lay(self.pods)
        for pod in self.pods:
            proxy = ("tests.lab.standin", "--netns", pod.netns, "--uid", str(PROXY_UID), "--forward")
            application = (
                *("tests.demo.echo", "--netns", pod.netns, "--uid", str(APPLICATION_UID)),
                *("--name", pod.name, *map(str, PORTS)),
            )
            with self.interrupts.shielded():
                self._proxies[pod.name] = Program(HOME / f"{pod.name}-proxy.log", *proxy)
            with self.interrupts.shielded():
                self._programs.append(Program(HOME / f"{pod.name}-application.log", *application))
        for program in (*self._proxies.values(), *self._programs):
            program.wait_until_ready()

    def proxy(self, pod: Pod) -> Program:
        return self._proxies[pod.name]

    def start(self, agent: Agent) -> None:
        """Start one of the two agents, and wait until it is ready."""
        with self.interrupts.shielded():
            agent.start()

    def pointsman(self, tell: Teller, *arguments: str) -> tuple[int, str]:
        """Run the command line, as a user would, and show what it says. Returns exit code and output."""
        tell.command(f"pointsman {' '.join(arguments)}")
        done = subprocess.run(
            [sys.executable, "-m", "agent", *arguments, "--run-dir", str(self.agent.run_dir)],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        tell.show(done.stdout + done.stderr)
        return done.returncode, done.stdout

    def within(self, tell: Teller, pod: Pod, *arguments: str) -> Program:
        """Start the command line in a pod, where it goes on and tells what it sees."""
        tell.command(f"pointsman {' '.join(arguments)}", pod.name)
        log = HOME / f"{pod.name}-{len(self._programs)}.log"
        told = (*arguments, "--run-dir", str(self.agent.run_dir))
        with self.interrupts.shielded():
            self._programs.append(Program(log, "agent", *told, netns=pod.netns))
        return self._programs[-1]

    def close(self) -> None:
        """End every process, whatever state it is in, and delete every namespace."""
        for agent in (self.agent, self.plain):
            if agent.running:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agent.stop(patience=STOP_PATIENCE)
            agent.close()
        for program in (*self._proxies.values(), *self._programs):
            program.close()
        remove(self.pods)

    def remains(self) -> list[str]:
        """What there still is of the stage: nothing, after `close` and the end of `home`."""
        places = [HOME, *map(path_of, (JOINT, *(pod.netns for pod in self.pods)))]
        return [*(str(place) for place in places if place.exists()), *children()]


@contextlib.contextmanager
def home() -> Iterator[None]:
    """HOME for one demo at a time, empty at first and gone at the end.

    RuntimeError when another demo has it. What a killed demo has left is removed.
    """
    HOME.mkdir(mode=0o700, exist_ok=True)
    lock = os.open(HOME, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        _lock(lock)
        for directory in filter(Path.is_dir, HOME.iterdir()):
            with contextlib.suppress(Gone, ProcessLookupError):
                os.kill(Agent(directory).state()["pid"], signal.SIGKILL)
            shutil.rmtree(directory)
        try:
            yield
        finally:
            shutil.rmtree(HOME)
    finally:
        os.close(lock)


def _lock(directory: int) -> None:
    try:
        fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise RuntimeError(f"cannot run the demo: another one is using {HOME}; end that one first") from error


def seen_by(agent: Agent, pod: Pod) -> PodState:
    """The pod as the agent's /state shows it now. LookupError when it knows no such pod."""
    return msgspec.convert(agent.pod(pod.key), PodState)


def _agent(name: str, ownership: str, *flags: str) -> Agent:
    directory = HOME / name
    directory.mkdir()
    return Agent(directory, "--table-ownership", ownership, *flags)
