"""A node's CNI directories, and others who write there."""

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from agent.cni.install import CniSettings, Installer
from agent.core.chain import TYPE

CALICO = """\
{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "mtu": 0
    },
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
"""
CILIUM = '{"cniVersion": "0.3.1", "name": "cilium", "type": "cilium-cni"}\n'
SUFFIXES = (".conf", ".conflist", ".json")


class Node:
    """`conf_dir` and `bin_dir` below `root`, and the shim that is to be installed."""

    def __init__(self, root: Path) -> None:
        self.conf_dir, self.bin_dir, self.shim = root / "net.d", root / "bin", root / "image" / TYPE
        self.conf_dir.mkdir()
        self.shim.parent.mkdir()
        self.shim.write_bytes(b"\x7fELF version one" * 1000)

    def settings(self, **values: Any) -> CniSettings:
        return CniSettings(conf_dir=self.conf_dir, bin_dir=self.bin_dir, shim=self.shim, **values)

    def installer(self, **values: Any) -> Installer:
        return Installer(self.settings(**values))

    def put(self, name: str, text: str) -> Path:
        path = self.conf_dir / name
        path.write_text(text)
        return path

    def files(self) -> dict[str, str]:
        """Everything in the directory of configurations, hidden files included."""
        return {path.name: path.read_text() for path in self.conf_dir.iterdir() if path.is_file()}

    def used(self) -> tuple[str, list[str]]:
        """The file that containerd takes, the first by name, and the types in its chain. Raises what it would
        refuse."""
        name = min(path.name for path in self.conf_dir.iterdir() if path.name.endswith(SUFFIXES))
        document = json.loads((self.conf_dir / name).read_text())
        plugins = document["plugins"] if name.endswith(".conflist") else [document]
        return name, [plugin["type"] for plugin in plugins]

    def chained(self) -> bool:
        """Whether the runtime calls us last, and finds the binary."""
        try:
            return self.used()[1][-1] == TYPE and os.access(self.bin_dir / TYPE, os.X_OK)
        except (ValueError, KeyError, OSError):
            return False


def in_place(path: Path, text: str) -> None:
    """Open, truncate, write, close."""
    with path.open("w") as file:
        file.write(text)


def by_rename(path: Path, text: str) -> None:
    other = path.with_name(f".{path.name}.new")
    other.write_text(text)
    other.rename(path)


@contextlib.contextmanager
def mounted(path: Path, options: str) -> Iterator[None]:
    """A small filesystem of its own at `path`, until the end."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
