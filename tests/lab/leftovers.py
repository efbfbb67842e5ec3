"""What a run may leave behind on the machine: one line for each thing, to be compared before and after.

    before = everything(marks)
    ...
    assert not remaining(before, marks)

`marks` are words that name this run: directories and prefixes of names. What other runs have on the same
machine at the same time is not looked at, but in places that no run may touch at all.
"""

import contextlib
import subprocess
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.lab.cgroups import hierarchies

FORBIDDEN = (
    "/etc/cni",
    "/opt/cni",
    "/opt/containerd",
    "/run/containerd",
    "/run/pointsman",
    "/var/lib/cni",
    "/var/lib/containerd",
    "/var/lib/kubelet",
)
"""Where a runtime, its plugins and an agent keep things by default; a test has them elsewhere."""

_RUNTIME_CGROUPS = ("k8s.io", "kubepods")
"""Cgroups that a runtime makes at the root when it is not told otherwise."""


def everything(marks: Iterable[str]) -> frozenset[str]:
    """One line for each network namespace, mount, cgroup, process, link, rule set and file of this run."""
    marks = tuple(marks)
    return frozenset(
        [
            *_namespaces(marks),
            *_mounts(marks),
            *_cgroups(marks),
            *_processes(marks),
            *_network(),
            *_files(),
        ]
    )


def remaining(before: frozenset[str], marks: Iterable[str], seconds: float = 3.0) -> list[str]:
    """What was not there `before` and still is after `seconds`: the kernel removes some in its own time."""
    marks = tuple(marks)
    deadline = time.monotonic() + seconds
    while left := everything(marks) - before:
        if time.monotonic() > deadline:
            break
        time.sleep(0.05)
    return sorted(left)


def _named(text: str, marks: tuple[str, ...]) -> bool:
    return any(mark in text for mark in marks)


def _namespaces(marks: tuple[str, ...]) -> Iterator[str]:
    with contextlib.suppress(FileNotFoundError):
        for path in Path("/run/netns").iterdir():
            # A runtime's own names carry no mark.
            if _named(path.name, marks) or path.name.startswith("cni-"):
                yield f"network namespace {path}"


def _mounts(marks: tuple[str, ...]) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if _named(line, marks):
            yield f"mount {line.split(' ')[4]}"


def _cgroups(marks: tuple[str, ...]) -> Iterator[str]:
    for hierarchy in hierarchies():
        for directory in hierarchy.iterdir():
            if directory.is_dir() and (_named(directory.name, marks) or directory.name in _RUNTIME_CGROUPS):
                yield f"cgroup {directory}"


def _processes(marks: tuple[str, ...]) -> Iterator[str]:
    for place in Path("/proc").iterdir():
        if not place.name.isdecimal():
            continue
        # Those that end meanwhile leave nothing.
        with contextlib.suppress(OSError):
            command = (place / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            # A zombie has given back everything but its number, which is up to process 1.
            zombie = (place / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            if not zombie and _named(command + (place / "cgroup").read_text(), marks):
                yield f"process {place.name} {command or (place / 'comm').read_text()}".rstrip()


def _network() -> Iterator[str]:
    """Of the machine's own network namespace, which no test touches."""
    for what, command in {
        "link": ("ip", "-o", "link"),
        "route": ("ip", "route"),
        "rule set": ("nft", "list", "tables"),
    }.items():
        for line in subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines():
            yield f"{what} {line.split(':')[1].strip() if what == 'link' else line.strip()}"


def _files() -> Iterator[str]:
    for place in FORBIDDEN:
        path = Path(place)
        if path.exists():
            yield f"file {path}"
            yield from (f"file {below}" for below in path.rglob("*"))
