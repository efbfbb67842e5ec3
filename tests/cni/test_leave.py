"""A watch that is told to leave, and what an installer finds of itself."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agent.cni.install import CannotInstallError, CniSettings, Installer
from agent.cni.watch import SETTLING, Watch
from agent.core.chain import TYPE
from tests.cni.confs import CALICO, CILIUM, Node, by_rename


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


@contextlib.asynccontextmanager
async def watching(node: Node) -> AsyncIterator[Watch]:
    """A watch that has had its first look."""
    watch = Watch(node.installer(), lambda _reason, _message: None)
    task = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(5):
            while watch.inspection is None:
                await asyncio.sleep(0.01)
        yield watch
    finally:
        task.cancel()
        await asyncio.wait([task])


async def chained(node: Node) -> None:
    async with asyncio.timeout(5):
        while not node.chained():
            await asyncio.sleep(0.01)


async def test_it_leaves_and_stays_away(node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    async with watching(node) as watch:
        await chained(node)
        written = await watch.leave()
        left = node.files(), (node.bin_dir / TYPE).exists()
        by_rename(conf, CALICO + "\n")
        await asyncio.sleep(2 * SETTLING)
        with node.installer().tenancy() as mine:
            assert not mine  # or a second agent would put it back
        assert watch.left
        assert watch.inspection is not None
        assert not watch.inspection.installed
        assert await watch.leave() == ()

    assert written == (str(conf), str(node.bin_dir / TYPE))
    assert left == ({"10-calico.conflist": CALICO}, False)
    assert node.files() == {"10-calico.conflist": CALICO + "\n"}


async def test_it_goes_on_when_it_cannot_leave(node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    async with watching(node) as watch:
        await chained(node)
        broken = node.put("99-old.conflist", f'{{"plugins": [{{"type": "{TYPE}"}}')
        with pytest.raises(CannotInstallError, match=r"99-old\.conflist"):
            await watch.leave()
        assert not watch.left
        await chained(node)
        broken.unlink()
        assert await watch.leave() == (str(conf), str(node.bin_dir / TYPE))


async def test_one_that_looks_on_leaves_nothing(node: Node) -> None:
    node.put("10-calico.conflist", CALICO)
    async with watching(node) as first, watching(node) as second:
        await chained(node)
        with pytest.raises(CannotInstallError, match="another process keeps it"):
            await second.leave()
        assert first.writer
        assert node.chained()


def test_traces_are_what_remove_will_change(node: Node) -> None:
    node.put("05-cilium.conf", CILIUM)
    node.put("10-calico.conflist", CALICO)
    installer = node.installer()
    nothing = installer.traces()
    installer.install()
    traces = installer.traces()

    assert nothing == ()
    assert traces == installer.remove().written
    assert installer.traces() == ()


def test_a_broken_file_that_names_us_is_a_trace(node: Node) -> None:
    conf = node.put("10-calico.conflist", f'{{"plugins": [{{"type": "{TYPE}"}}')

    assert node.installer().traces() == (str(conf),)


def test_without_directories_there_are_no_traces(tmp_path: Path) -> None:
    installer = Installer(CniSettings(conf_dir=tmp_path / "a", bin_dir=tmp_path / "b"))

    assert installer.traces() == ()
    assert list(tmp_path.iterdir()) == []


def test_all_is_removed_where_no_binary_came_with_this_program(node: Node) -> None:
    node.put("10-calico.conflist", CALICO)
    node.installer().install()
    node.shim.unlink()

    assert len(node.installer().remove().written) == 2
    assert node.files() == {"10-calico.conflist": CALICO}
