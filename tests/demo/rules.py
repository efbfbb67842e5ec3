"""What nft shows of a pod's network namespace, and nft run in it by somebody else than the agent."""

import re
import subprocess
import time

import msgspec

from tests.demo.network import Pod

TABLE = ("table", "inet", "pointsman")


class Ran(msgspec.Struct, frozen=True):
    """A command that has ended. `at`: unix seconds of its start; `error`: its first line of complaint."""

    pid: int
    status: int
    output: str
    error: str
    at: float


def run_in(pod: Pod, *command: str, script: str | None = None) -> Ran:
    """Run a command in the pod. `ip netns exec` becomes the command, so `pid` is its own."""
    at = time.time()
    with subprocess.Popen(
        ["ip", "netns", "exec", pod.netns, *command],
        stdin=subprocess.PIPE if script else subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        output, errors = process.communicate(script, timeout=10)
    return Ran(process.pid, process.returncode, output, errors.partition("\n")[0], at)


def listing(pod: Pod) -> str:
    """Our table with handles, "" when it is not there."""
    return run_in(pod, "nft", "-a", "list", *TABLE).output


def handles(pod: Pod, *kinds: str) -> list[str]:
    """Lines with a handle of our table, such as `chain output { # handle 1`; of some `kinds` only, if given.

    The table's own line is left out: it names its owner, and that may change.
    """
    lines = (line.strip() for line in listing(pod).splitlines() if "# handle" in line)
    return [line for line in lines if not line.startswith("table") and line.startswith(kinds or "")]


def rule_handle(pod: Pod, rule: str) -> str:
    """Handle of the rule of that id."""
    found = re.search(rf'"pointsman {rule}" # handle (\d+)', listing(pod))
    if found is None:
        raise LookupError(f"cannot find rule {rule} in pod {pod.name}")
    return found[1]


def counter(pod: Pod, name: str) -> int:
    """Connections that a named counter of our table has seen. LookupError without it."""
    found = re.search(rf"counter {name} {{[^}}]*packets (\d+)", listing(pod))
    if found is None:
        raise LookupError(f"cannot find counter {name} in pod {pod.name}")
    return int(found[1])
