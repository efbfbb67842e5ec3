"""The watch beside others who write: real files, real inotify, real time."""

import asyncio
import contextlib
import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from agent.cni import watch
from agent.cni.contest import Contest
from agent.cni.directory import Directory
from agent.cni.events import Events
from agent.cni.install import Installer, Outcome
from agent.cni.watch import Watch
from agent.core.chain import TYPE
from agent.core.reasons import Reason
from tests.cni.confs import CALICO, CILIUM, Node, by_rename, in_place, mounted

SOON = 1.0
"""Seconds within which an entry has to be back."""
ROOT = Path(__file__).parents[2]
HALF = CALICO[: len(CALICO) // 2]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


class Watched:
    """A running watch, and what it told."""

    def __init__(self, node: Node, **settings: Any) -> None:
        self.node = node
        self.told: list[tuple[Reason, str]] = []
        self.watch = Watch(node.installer(**settings), lambda *words: self.told.append(words))
        self._task = asyncio.create_task(self.watch.run())

    @property
    def reasons(self) -> list[Reason]:
        return [reason for reason, _ in self.told]

    async def stop(self) -> None:
        """Raises what the watch ended with, if it did of its own."""
        self._task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._task

    async def chained(self, seconds: float = SOON) -> None:
        await until(self.node.chained, seconds)

    async def heard(self, *reasons: Reason) -> None:
        """Exactly these; a file is written a moment before it is told of."""
        with contextlib.suppress(AssertionError):
            await until(lambda: self.reasons == [*reasons], 1)
        assert self.reasons == [*reasons]

    async def told_of(self, reason: Reason, seconds: float = 2.0) -> str:
        await until(lambda: reason in self.reasons, seconds)
        return next(message for told, message in self.told if told is reason)


async def until(true: Callable[[], bool], seconds: float = SOON) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, f"not within {seconds} s"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def watching(node: Node, **settings: Any) -> AsyncIterator[Watched]:
    one = Watched(node, **settings)
    try:
        yield one
    finally:
        await one.stop()


@asynccontextmanager
async def installed(
    node: Node, name: str = "10-calico.conflist", text: str = CALICO
) -> AsyncIterator[Watched]:
    """A watch whose entry stands, and whose first looks are over."""
    node.put(name, text)
    async with watching(node) as one:
        await one.chained(5)
        await asyncio.sleep(0.2)
        assert one.told == []
        yield one


def move_and_write(path: Path, text: str) -> None:
    path.rename(path.with_suffix(".bak"))
    path.write_text(text)


def delete_and_write(path: Path, text: str) -> None:
    path.unlink()
    path.write_text(text)


def by_link(path: Path, text: str) -> None:
    target = path.parent.parent / "linked.conflist"
    target.write_text(text)
    link = path.with_name(".link")
    link.symlink_to(target)
    link.rename(path)


def held_open(path: Path, text: str) -> None:
    """Written to, and never closed."""
    file = path.open("r+")
    file.truncate(0)
    file.write(text)
    file.flush()
    kept.append(file)


def other_directory(path: Path, text: str) -> None:
    new = path.parent.with_name("new")
    new.mkdir()
    (new / path.name).write_text(text)
    path.parent.rename(path.parent.with_name("old"))
    new.rename(path.parent)


def directory_anew(path: Path, text: str) -> None:
    shutil.rmtree(path.parent)
    path.parent.mkdir()
    path.write_text(text)


kept: list[Any] = []


@pytest.mark.parametrize(
    "change",
    [
        by_rename,
        in_place,
        move_and_write,
        delete_and_write,
        by_link,
        held_open,
        other_directory,
        directory_anew,
    ],
)
async def test_f03_an_overwritten_entry_is_put_back_once(
    node: Node, change: Callable[[Path, str], None]
) -> None:
    text = CALICO.replace('"mtu": 0', '"mtu": 1400')
    async with installed(node) as one:
        change(node.conf_dir / "10-calico.conflist", text)
        await one.chained()
        name, _ = node.used()
        assert json.loads((node.conf_dir / name).read_text())["plugins"][0]["mtu"] == 1400
        await asyncio.sleep(0.3)
        await one.heard(Reason.CNI_OVERWRITTEN)
    while kept:
        kept.pop().close()


async def test_chmod_and_our_own_writes_lead_to_no_write(node: Node) -> None:
    async with installed(node) as one:
        conf = node.conf_dir / "10-calico.conflist"
        before = conf.stat()
        conf.chmod(0o600)
        in_place(node.conf_dir / "README", "not a configuration")
        in_place(node.conf_dir / "99-other.conflist", CALICO)
        await asyncio.sleep(0.5)
        after = conf.stat()
        assert (after.st_ino, after.st_mtime_ns, after.st_mode & 0o777) == (
            before.st_ino,
            before.st_mtime_ns,
            0o600,
        )
        assert TYPE not in (node.conf_dir / "99-other.conflist").read_text()
        assert one.told == []


async def test_what_is_no_change_as_json_is_left_as_it_is(node: Node) -> None:
    async with installed(node) as one:
        conf = node.conf_dir / "10-calico.conflist"
        compact = json.dumps(json.loads(conf.read_text()))
        in_place(conf, compact)
        await asyncio.sleep(0.5)
        assert conf.read_text() == compact
        assert one.told == []


async def test_an_edited_entry_is_put_back(node: Node) -> None:
    async with installed(node) as one:
        conf = node.conf_dir / "10-calico.conflist"
        before = conf.read_text()
        in_place(conf, before.replace('"allow"', '"deny"'))
        await until(lambda: conf.read_text() == before)
        assert "10-calico.conflist was overwritten" in await one.told_of(Reason.CNI_OVERWRITTEN)


async def test_a_removed_or_changed_shim_is_put_back(node: Node) -> None:
    async with installed(node) as one:
        shim = node.bin_dir / TYPE
        for harm in (shim.unlink, lambda: shim.write_bytes(b"x"), lambda: shim.chmod(0o600)):
            await asyncio.sleep(0.2)  # so that its own event is needed
            harm()
            await until(lambda: one.node.installer().inspect().right)
        await asyncio.sleep(0.1)
        await one.heard(*[Reason.CNI_OVERWRITTEN] * 3)
        assert str(shim) in one.told[0][1]


async def test_f06_a_file_made_between_watch_and_look_is_seen(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Just after the watch was set up and just before the look, and just after the look; with every other
    reason to look again far away."""
    monkeypatch.setattr(watch, "PERIOD", 60.0)
    monkeypatch.setattr(watch, "SETTLING", 60.0)
    renew, inspect = Events.renew, Installer.inspect

    def renewed(self: Events) -> None:
        renew(self)
        if not node.files():
            node.put("10-calico.conflist", CALICO)

    monkeypatch.setattr(Events, "renew", renewed)
    async with watching(node) as one:
        await one.chained(2)

    monkeypatch.setattr(Events, "renew", renew)
    node.installer().remove()
    (node.conf_dir / "10-calico.conflist").unlink()

    def inspected(self: Installer) -> Any:
        found = inspect(self)
        if not node.files():
            node.put("10-calico.conflist", CALICO)
        return found

    monkeypatch.setattr(Installer, "inspect", inspected)
    async with watching(node) as one:
        await one.chained(2)


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a user namespace: run as root")
async def test_without_inotify_the_rescan_does_it(node: Node) -> None:
    """In a user namespace, whose limit is its own."""
    conf = node.put("10-calico.conflist", CALICO)
    place = ("--conf-dir", node.conf_dir, "--bin-dir", node.bin_dir, "--shim", node.shim)
    agent = shlex.join([sys.executable, "-m", "agent", "install-cni", "--watch", *map(str, place)])
    script = f"echo 0 > /proc/sys/user/max_inotify_instances && exec {agent}"
    argv = ["unshare", "--user", "--map-root-user", "sh", "-c", script]
    said = node.conf_dir.parent / "said"
    with said.open("wb") as stderr, subprocess.Popen(argv, cwd=ROOT, stderr=stderr) as child:
        try:
            await until(node.chained, 10)
            by_rename(conf, CALICO)
            await until(node.chained, 5)
            await until(lambda: "CniConfigOverwritten" in said.read_text())
            await until(lambda: "raise fs.inotify.max_user_instances" in said.read_text())
        finally:
            child.terminate()


async def test_a_half_written_file_is_given_time(node: Node) -> None:
    other = node.put("87-podman.conflist", CALICO)
    async with installed(node) as one:
        conf = node.conf_dir / "10-calico.conflist"
        with conf.open("w") as file:
            for part in (CALICO[:30], CALICO[30:90], CALICO[90:]):
                file.write(part)
                file.flush()
                await asyncio.sleep(0.08)
        await one.chained()
        await one.heard(Reason.CNI_OVERWRITTEN)
        assert other.read_text() == CALICO


async def test_a_file_that_stays_broken_is_named_once_and_left(node: Node) -> None:
    other = node.put("87-podman.conflist", CALICO)
    async with installed(node) as one:
        conf = node.conf_dir / "10-calico.conflist"
        in_place(conf, HALF)
        message = await one.told_of(Reason.CNI_BROKEN)
        assert f"cannot use {conf}: " in message
        assert message.endswith("left as it is")
        # What a runtime falls back to, if it does, calls us.
        await until(lambda: TYPE in other.read_text())
        await asyncio.sleep(0.5)
        assert conf.read_text() == HALF
        assert one.reasons.count(Reason.CNI_BROKEN) == 1
        with capture_logs() as logs:
            in_place(conf, CALICO)
            await one.chained()
        assert [line["reason"] for line in logs if line["event"] == "CNI configuration settled"] == [
            "CniConfigBroken"
        ]


async def test_the_list_beside_follows_what_it_continues(node: Node) -> None:
    async with installed(node, "05-cilium.conf", CILIUM) as one:
        conf, beside = node.conf_dir / "05-cilium.conf", node.conf_dir / "05-cilium-pointsman.conflist"
        by_rename(conf, CILIUM.replace('"type"', '"mtu": 9000, "type"'))
        await until(lambda: '"mtu": 9000' in beside.read_text())
        before = beside.read_text()
        in_place(conf, HALF)
        await asyncio.sleep(0.6)
        assert beside.read_text() == before
        in_place(conf, CILIUM)
        await until(lambda: "mtu" not in beside.read_text())
        await one.heard(Reason.CNI_BROKEN)
        beside.unlink()
        await one.chained()
        await one.heard(Reason.CNI_BROKEN, Reason.CNI_OVERWRITTEN)
        conf.unlink()
        await until(lambda: not beside.exists(), 2)


async def test_it_waits_for_a_configuration_and_says_so_once(node: Node) -> None:
    node.conf_dir.rmdir()
    async with watching(node) as one:
        assert "yet" in await one.told_of(Reason.CNI_MISSING)
        node.conf_dir.mkdir()
        await asyncio.sleep(0.6)
        await one.heard(Reason.CNI_MISSING)
        assert one.watch.inspection is not None
        assert not one.watch.inspection.installed
        node.put("10-calico.conflist", CALICO)
        await one.chained()
        assert (node.bin_dir / TYPE).exists()
        await asyncio.sleep(0.1)
        await one.heard(Reason.CNI_MISSING)
        assert one.watch.inspection.right


async def test_a_neighbour_is_reported_and_left(node: Node) -> None:
    """Also when its installer moves it to the end, as linkerd-cni's does after every change."""
    text = json.dumps({"name": "a", "plugins": [{"type": "calico"}, {"type": "linkerd-cni", "linkerd": {}}]})
    conf = node.put("10-a.conflist", text)
    async with watching(node) as one:
        assert "linkerd-cni" in await one.told_of(Reason.CNI_NEIGHBOUR)
        plugins = json.loads(conf.read_text())["plugins"]
        moved = json.dumps({"name": "a", "plugins": [plugins[0], plugins[2], plugins[1]]})
        in_place(conf, moved)
        await asyncio.sleep(0.5)
        assert conf.read_text() == moved
        await one.heard(Reason.CNI_NEIGHBOUR)


async def test_c11_the_entry_is_back_before_a_second(node: Node) -> None:
    async with installed(node) as one:
        began = time.monotonic()
        by_rename(node.conf_dir / "10-calico.conflist", CALICO)
        await one.chained()
        assert time.monotonic() - began < SOON
        await one.told_of(Reason.CNI_OVERWRITTEN)


REWRITER = """
import sys, time
from pathlib import Path
path, text = Path(sys.argv[1]), sys.argv[2]
while True:
    if "pointsman-cni" in path.read_text():
        other = path.with_name(".other")
        other.write_text(text)
        other.rename(path)
    time.sleep(0.001)
"""


async def test_a_fight_is_said_once_and_costs_a_bounded_number_of_writes(node: Node) -> None:
    async with installed(node) as one:
        conf = node.conf_dir / "10-calico.conflist"
        writes: list[float] = []
        install = one.watch._installer.install

        def counted(only: str | None = None) -> Outcome:
            outcome = install(only)
            writes.extend([time.monotonic()] * len(outcome.written))
            return outcome

        one.watch._installer.install = counted  # type: ignore[method-assign]
        with subprocess.Popen([sys.executable, "-c", REWRITER, str(conf), CALICO]) as rewriter:
            await one.told_of(Reason.CNI_CONTESTED, 5)
            began = time.monotonic()
            await asyncio.sleep(7)
            late = [at for at in writes if at > began]
            rewriter.kill()
        assert 1 <= len(late) <= 3  # after 1, 2 and 4 s
        assert one.reasons.count(Reason.CNI_CONTESTED) == 1
        assert one.reasons.count(Reason.CNI_OVERWRITTEN) == len(writes)
        await one.chained(8)


def test_pauses_grow_and_a_contest_ends_in_quiet() -> None:
    contest, now, pauses = Contest(), 1000.0, []
    for _ in range(14):
        contest = contest.wrote(now)
        pauses.append(contest.pause(now))
        now += contest.pause(now) + 0.01
    assert pauses == [0.0] * 5 + [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0, 30.0]
    assert contest.calmed(now + 20).rounds == 9
    assert contest.calmed(now + 70) == Contest()
    slow = Contest()
    for number in range(100):
        slow = slow.wrote(number * 3.0)
    assert slow.rounds == 0


async def test_two_versions_at_once_do_not_fight(node: Node) -> None:
    """An upgrade: the next one looks on, is content with what is there, and takes over with its settings."""
    async with installed(node) as old:
        conf = node.conf_dir / "10-calico.conflist"
        before = conf.stat()
        async with watching(node, when_agent_away="deny") as new:
            await until(lambda: new.watch.inspection is not None)
            await asyncio.sleep(0.5)
            assert conf.stat() == before
            assert new.watch.inspection is not None
            assert (new.watch.inspection.installed, new.watch.inspection.current) == (True, False)
            assert (old.watch.writer, new.watch.writer) == (True, False)
            by_rename(conf, CALICO)
            await old.told_of(Reason.CNI_OVERWRITTEN)
            assert '"allow"' in conf.read_text()
            await old.stop()
            await until(lambda: '"deny"' in conf.read_text())
            assert (old.reasons, new.told) == ([Reason.CNI_OVERWRITTEN], [])


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts: run as root")
async def test_a_directory_that_cannot_be_written_is_reported_and_retried(node: Node) -> None:
    with mounted(node.conf_dir, "size=64k,nr_inodes=16"):
        node.put("10-calico.conflist", CALICO)
        subprocess.run(["mount", "-o", "remount,ro", str(node.conf_dir)], check=True)
        async with watching(node) as one:
            message = await one.told_of(Reason.CNI_UNWRITABLE)
            assert "Read-only file system; mount the directory writable" in message
            await asyncio.sleep(0.5)
            await one.heard(Reason.CNI_UNWRITABLE)
            subprocess.run(["mount", "-o", "remount,rw", str(node.conf_dir)], check=True)
            await one.chained(6)
            assert {path.name for path in node.conf_dir.iterdir()} == {"10-calico.conflist"}


async def test_the_end_changes_nothing(node: Node) -> None:
    async with installed(node):
        pass
    assert node.chained()
    with node.installer().tenancy() as mine:
        assert mine


async def test_a_cancelled_watch_ends_what_it_has_begun(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    replace = Directory.replace
    slow = asyncio.Event()
    loop = asyncio.get_running_loop()

    def slowly(self: Directory, name: str, data: bytes, **more: object) -> None:
        loop.call_soon_threadsafe(slow.set)
        time.sleep(0.3)
        replace(self, name, data, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Directory, "replace", slowly)
    node.put("10-calico.conflist", CALICO)
    async with watching(node):
        await asyncio.wait_for(slow.wait(), 5)
    assert node.chained()
