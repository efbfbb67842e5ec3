"""Control groups as directories, in every hierarchy that is mounted: those of version 1, and version 2."""

import contextlib
import os
from pathlib import Path


def hierarchies() -> list[Path]:
    """Where cgroup file systems are mounted."""
    lines = (line.split(" ") for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return [Path(line[4]) for line in lines if line[line.index("-") + 1] in ("cgroup", "cgroup2")]


def directories(cgroup: str) -> list[Path]:
    """The directories of a cgroup (`/pm-1/kubepods`) in every hierarchy and all below, the deepest first."""
    return [
        Path(path)
        for hierarchy in hierarchies()
        for path, _, _ in os.walk(hierarchy / cgroup.lstrip("/"), topdown=False)
    ]


def members(cgroup: str) -> set[int]:
    """Every process in a cgroup or below it."""
    pids: set[int] = set()
    for directory in directories(cgroup):
        with contextlib.suppress(OSError):
            pids.update(map(int, (directory / "cgroup.procs").read_text().split()))
    return pids


def remove(cgroup: str) -> None:
    """Remove a cgroup and all below it. Raises OSError when there are processes in them."""
    for directory in directories(cgroup):
        with contextlib.suppress(FileNotFoundError):
            directory.rmdir()
