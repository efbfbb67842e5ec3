"""Debian packages: the tools that a guest is made with, and a kernel that is unpacked, not installed."""

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import msgspec

TOOLS = {"qemu-system-x86_64": "qemu-system-x86", "busybox": "busybox-static", "depmod": "kmod"}
"""Each program, and the package that brings it."""
LATEST = "linux-image-amd64"
"""The package that depends on the release's newest kernel."""
_DIRECTORIES = ("arch", "crypto", "drivers/net", "drivers/virtio", "fs", "lib", "net")
_WANTED = (
    "./boot/vmlinuz-*",
    "./lib/modules/*/modules.*",
    *(f"./lib/modules/*/kernel/{directory}/*" for directory in _DIRECTORIES),
)


class Kernel(msgspec.Struct, frozen=True):
    """An unpacked kernel: its release, its image, and the directory of its modules."""

    release: str
    image: Path
    modules: Path


def install_tools() -> None:
    """Install what is missing of TOOLS. Raises RuntimeError when apt cannot."""
    missing = [package for program, package in TOOLS.items() if shutil.which(program) is None]
    if missing:
        _run("apt-get", "update", "-qq")
        _run("apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing)


def kernel(package: str, cache: Path) -> Kernel:
    """The kernel of `package`; for LATEST that which it depends on now. Once unpacked it stays in `cache`.

    Raises RuntimeError when it cannot be had.
    """
    root = cache / package
    if not root.exists():
        _unpack(package, root)
    (image,) = (root / "boot").iterdir()
    release = image.name.removeprefix("vmlinuz-")
    return Kernel(release, image, root / "lib" / "modules" / release)


def _latest() -> str:
    found = re.search(r"Depends: (linux-image-\S+)", _run("apt-cache", "depends", LATEST))
    if found is None:
        raise RuntimeError(f"cannot find the kernel of {LATEST}: name one by --package")
    return found[1]


def _unpack(package: str, root: Path) -> None:
    """Make `root` of what a guest needs of a package. A run that is cut short leaves none."""
    root.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=root.parent) as scratch:
        _run("apt-get", "update", "-qq")
        name = _latest() if package == LATEST else package
        _run("apt-get", "download", "-qq", name, directory=scratch)
        (archive,) = Path(scratch).glob("*.deb")
        content = Path(scratch) / "content.tar"
        with content.open("wb") as output:
            subprocess.run(["dpkg-deb", "--fsys-tarfile", archive], stdout=output, check=True)
        unpacked = Path(scratch) / "unpacked"
        unpacked.mkdir()
        _run("tar", "-x", "-f", str(content), "-C", str(unpacked), "--wildcards", *_WANTED)
        (modules,) = (unpacked / "lib" / "modules").iterdir()
        _run("depmod", "-b", str(unpacked), modules.name)
        unpacked.rename(root)


def _run(*command: str, directory: str | None = None) -> str:
    """Output of a command. Raises RuntimeError with what it wrote."""
    done = subprocess.run(
        command,
        cwd=directory,
        env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"cannot run {' '.join(command[:4])!r}: {done.stderr.strip() or done.returncode}")
    return done.stdout
