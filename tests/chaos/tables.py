"""A pod's table as nft itself lists it, so that what is whole is not judged by the agent's own reader."""

import contextlib
import os
import subprocess
from pathlib import Path

from agent.core.names import TABLE
from agent.core.objects import Namespace, Pod
from agent.core.redirect import derive
from agent.core.ruleset import drain, render
from agent.core.spec import NodeDefaults
from tests.lab.netns import inside, netns

SKIP_OUT = "config.linkerd.io/skip-outbound-ports"
SKIP_IN = "config.linkerd.io/skip-inbound-ports"
OFF = {"pointsman.io/redirect": "disabled"}

Listing = tuple[str, ...]
"""The blocks of a table, sorted, without handles, counts and owner; () when there is no table."""

ABSENT: Listing = ()


def nft(name: str, *command: str, script: str | None = None) -> str:
    """Output of nft in the namespace `name`. RuntimeError with its own words when it fails."""
    done = inside(
        name,
        lambda: subprocess.run(
            ("nft", *command), input=script, capture_output=True, text=True, check=False, timeout=30
        ),
    )
    if done.returncode:
        raise RuntimeError(f"cannot run nft {' '.join(command)}: {done.stderr.strip()}")
    return done.stdout


def listing(name: str) -> Listing:
    """Our table in the namespace `name`."""
    try:
        text = nft(name, "-s", "list", "table", "inet", TABLE)
    except RuntimeError as error:
        if "No such file" in str(error):
            return ABSENT
        raise
    # The head names flags and owner, and a change in place moves sets behind others.
    body = text[text.index("\n") + 1 : text.rindex("}")]
    lines = [line for line in body.splitlines() if not line.startswith(("\tflags ", "\t# "))]
    return tuple(sorted(block.strip() for block in "\n".join(lines).split("\n\n")))


def loaded(text: str, *commands: str) -> Listing:
    """The listing of a text after some commands, loaded by nft into a namespace of its own."""
    with netns() as name:
        nft(name, "-f", "-", script=text)
        for command in commands:
            nft(name, command)
        return listing(name)


def text_of(pod: Pod, namespace: Namespace | None = None) -> str:
    """The text that a pod shall have once it was redirected: the drain table when it is opted out."""
    spec = derive(pod, namespace, NodeDefaults()).spec
    return drain() if spec is None else render(spec)


def words(found: Listing) -> str:
    """A listing for the message of a failed test."""
    return "\n\n".join(found) or "no table"


def held_namespaces(pid: int) -> list[int]:
    """Inodes of the network namespaces that a process holds open by a descriptor, of its own none."""
    own = Path("/proc/self/ns/net").stat()
    held = []
    for entry in os.scandir(f"/proc/{pid}/fd"):
        with contextlib.suppress(FileNotFoundError):
            status = entry.stat()
            if status.st_dev == own.st_dev and status.st_ino != own.st_ino:
                held.append(status.st_ino)
    return sorted(held)
