"""The first file system of a guest: busybox, the modules that reach the host's files, and `init`."""

import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

NEEDED = ("virtio_pci", "9pnet_virtio", "9p", "overlay")
"""Modules by which the guest finds its root file system."""

_DIRECTORY, _FILE = 0o040755, 0o100755
_HEADER_FIELDS = 13


def initramfs(busybox: Path, modules: Path, init: Path) -> bytes:
    """A cpio archive. `modules`: directory of a kernel's modules; `init`: the script that is process 1."""
    order = load_order((modules / "modules.dep").read_text(), NEEDED)
    files = {"init": init.read_bytes(), "bin/busybox": busybox.read_bytes()}
    for place, path in enumerate(order):
        files[f"modules/{place:02}-{Path(path).name}"] = _module(modules / path)
    return cpio(("bin", "modules", "dev", "host", "upper", "new"), files)


def _module(path: Path) -> bytes:
    """Newer kernels than 6.1 come with compressed modules, which busybox does not load."""
    data = path.read_bytes()
    return lzma.decompress(data) if path.suffix == ".xz" else data


def load_order(dependencies: str, wanted: Iterable[str]) -> list[str]:
    """Paths of the wanted modules and all that they need, each after what it needs itself.

    `dependencies` is the text of modules.dep: there a module's needs are listed nearest first. A module
    that is not listed is built into the kernel.
    """
    needs = dict(line.split(":", 1) for line in dependencies.splitlines())
    paths = {Path(path).name.split(".")[0].replace("-", "_"): path for path in needs}
    order: dict[str, None] = {}
    for name in wanted:
        if path := paths.get(name):
            order.update(dict.fromkeys([*reversed(needs[path].split()), path]))
    return list(order)


def cpio(directories: Iterable[str], files: dict[str, bytes]) -> bytes:
    """An archive in the "newc" format, as the kernel unpacks it; every file is executable."""

    def entries() -> Iterator[bytes]:
        for number, name in enumerate(directories, 1):
            yield _entry(number, name, _DIRECTORY, b"")
        for number, (name, data) in enumerate(files.items(), 1000):
            yield _entry(number, name, _FILE, data)
        yield _entry(0, "TRAILER!!!", 0, b"")

    return b"".join(entries())


def _entry(number: int, name: str, mode: int, data: bytes) -> bytes:
    path = name.encode() + b"\0"
    fields = [0] * _HEADER_FIELDS
    fields[0], fields[1], fields[4], fields[6], fields[11] = number, mode, 1, len(data), len(path)
    header = b"070701" + b"".join(b"%08X" % field for field in fields)
    return _padded(header + path) + _padded(data)


def _padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % 4)
