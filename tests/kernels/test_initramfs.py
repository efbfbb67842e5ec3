"""What a guest starts from: the order of its modules, and the archive as the kernel reads it."""

import lzma
from pathlib import Path

from tests.kernels.initramfs import initramfs, load_order

DEPENDENCIES = """\
kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko
kernel/net/9p/9pnet_virtio.ko: kernel/net/9p/9pnet.ko kernel/virtio/virtio-ring.ko kernel/virtio/virtio.ko
kernel/net/9p/9pnet.ko:
kernel/virtio/virtio-ring.ko: kernel/virtio/virtio.ko
kernel/virtio/virtio.ko:
kernel/virtio/virtio_pci.ko: kernel/virtio/virtio-ring.ko kernel/virtio/virtio.ko
kernel/fs/netfs/netfs.ko:
kernel/fs/overlayfs/overlay.ko.xz:
kernel/fs/xfs/xfs.ko:
"""


def unpacked(archive: bytes) -> dict[str, bytes]:
    """Content by name. Format "newc": 110 characters of header, name and content, each padded to 4 bytes."""
    found: dict[str, bytes] = {}
    offset = 0
    while True:
        assert archive[offset : offset + 6] == b"070701"
        fields = [int(archive[at : at + 8], 16) for at in range(offset + 6, offset + 110, 8)]
        size, name_size = fields[6], fields[11]
        name = archive[offset + 110 : offset + 110 + name_size].rstrip(b"\0").decode()
        if name == "TRAILER!!!":
            return found
        start = (offset + 110 + name_size + 3) & ~3
        found[name] = archive[start : start + size]
        offset = (start + size + 3) & ~3


def test_a_module_comes_once_and_after_all_that_it_needs() -> None:
    wanted = ("9pnet_virtio", "9p", "virtio_ring", "overlay", "built_in")
    order = [Path(path).name.split(".")[0] for path in load_order(DEPENDENCIES, wanted)]
    assert sorted(order) == ["9p", "9pnet", "9pnet_virtio", "netfs", "overlay", "virtio", "virtio-ring"]
    for later, earlier in (
        ("virtio-ring", "virtio"),
        ("9pnet_virtio", "virtio-ring"),
        ("9pnet_virtio", "9pnet"),
        ("9p", "9pnet"),
        ("9p", "netfs"),
    ):
        assert order.index(later) > order.index(earlier)


def test_the_archive_holds_busybox_init_and_the_modules_in_their_order(tmp_path: Path) -> None:
    for line in DEPENDENCIES.splitlines():
        module = tmp_path / line.split(":")[0]
        module.parent.mkdir(parents=True, exist_ok=True)
        content = f"this is {module.name}".encode()
        module.write_bytes(lzma.compress(content) if module.suffix == ".xz" else content)
    (tmp_path / "modules.dep").write_text(DEPENDENCIES)
    busybox = tmp_path / "busybox"
    busybox.write_text("any program")
    init = Path(__file__).with_name("init")
    found = unpacked(initramfs(busybox, tmp_path, init))
    assert found["init"] == init.read_bytes()
    assert found["bin/busybox"] == b"any program"
    modules = sorted(name for name in found if name.startswith("modules/"))
    assert len(modules) == 8
    assert found[modules[0]] == b"this is virtio.ko"
    assert found[modules[-1]] == b"this is overlay.ko.xz"
