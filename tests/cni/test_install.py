"""The installer on real directories: which bytes are where, at each moment, also after a kill."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.cni.directory import TEMPORARY, Directory
from agent.cni.install import CannotInstallError, CniSettings, Installer
from agent.core.chain import TYPE
from tests.cni.confs import CALICO, CILIUM, Node, by_rename, in_place, mounted

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="gives files away and mounts: run as root")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_shim_and_entry_are_installed_once(node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    outcome = node.installer().install()

    assert outcome.written == (str(node.bin_dir / TYPE), str(conf))
    assert node.used() == ("10-calico.conflist", ["calico", "portmap", TYPE])
    assert (node.bin_dir / TYPE).read_bytes() == node.shim.read_bytes()
    assert (node.bin_dir / TYPE).stat().st_mode & 0o7777 == 0o755
    assert [path.name for path in node.bin_dir.iterdir()] == [TYPE]
    before = conf.stat(), (node.bin_dir / TYPE).stat()
    assert node.installer().install().written == ()
    assert (conf.stat(), (node.bin_dir / TYPE).stat()) == before


def test_inspect_says_what_is_there_and_changes_nothing(node: Node) -> None:
    installer = node.installer()
    node.put("05-broken.conf", "{")
    node.put("10-calico.conflist", CALICO)
    found = installer.inspect()
    assert (found.file, found.holder, found.chain) == ("10-calico.conflist",) * 2 + (("calico", "portmap"),)
    assert (found.position, found.current, found.installed, found.right) == (None, False, False, False)
    assert (found.shim, found.pending) == ("missing", ("10-calico.conflist",))
    assert [fault.file for fault in found.broken] == ["05-broken.conf"]
    assert node.files() == {"05-broken.conf": "{", "10-calico.conflist": CALICO}

    found = installer.install().inspection
    assert (found.position, found.current, found.installed, found.right) == (2, True, True, True)
    (node.bin_dir / TYPE).chmod(0o644)
    assert installer.inspect().shim == "differs"
    other = node.installer(when_agent_away="deny").inspect()
    assert (other.current, other.installed) == (False, True)


@pytest.mark.parametrize("install_again", [False, True])
def test_f07_install_and_remove_give_back_the_original(node: Node, install_again: bool) -> None:
    conf = node.put("05-cilium.conf", CILIUM)
    before = conf.stat()
    installer = node.installer()
    assert node.used() == ("05-cilium.conf", ["cilium-cni"])
    installer.install()
    assert node.used() == ("05-cilium-pointsman.conflist", ["cilium-cni", TYPE])
    if install_again:
        assert installer.install().written == ()
        assert node.used() == ("05-cilium-pointsman.conflist", ["cilium-cni", TYPE])
    installer.remove()
    assert node.used() == ("05-cilium.conf", ["cilium-cni"])
    assert node.files() == {"05-cilium.conf": CILIUM}
    assert conf.stat() == before  # its owner may look for it at any time


def test_the_list_beside_may_not_be_read_by_more(node: Node) -> None:
    node.put("00-multus.conf", '{"type": "multus", "clusterNetwork": "a"}').chmod(0o600)
    node.installer().install()
    assert (node.conf_dir / "00-multus-pointsman.conflist").stat().st_mode & 0o777 == 0o600


def test_removal_is_byte_for_byte_and_shim_last(node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    installer = node.installer()
    installer.install()
    assert installer.remove().written == (str(conf), str(node.bin_dir / TYPE))
    assert node.files() == {"10-calico.conflist": CALICO}
    assert list(node.bin_dir.iterdir()) == []
    assert installer.remove().written == ()


def test_what_others_wrote_since_stays(node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    installer = node.installer()
    installer.install()
    in_place(conf, conf.read_text().replace('"mtu": 0', '"mtu":  9000'))
    assert installer.install().written == ()
    installer.remove()
    assert conf.read_text() == CALICO.replace('"mtu": 0', '"mtu":  9000')


def test_the_shim_stays_while_something_may_call_it(node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    installer = node.installer()
    installer.install()
    half = conf.read_text()[:-3]
    conf.write_text(half)
    with pytest.raises(
        CannotInstallError, match=r"cannot take our entry out of 10-calico.conflist .* by hand"
    ):
        installer.remove()
    assert conf.read_text() == half
    assert (node.bin_dir / TYPE).exists()


@needs_root
def test_mode_and_owner_of_the_file_are_kept(node: Node) -> None:
    conf = node.put("10-calico.conflist", CALICO)
    conf.chmod(0o640)
    os.chown(conf, 1234, 4321)
    node.installer().install()
    after = conf.stat()
    assert (after.st_mode & 0o7777, after.st_uid, after.st_gid) == (0o640, 1234, 4321)
    node.installer().remove()
    assert (conf.stat().st_mode & 0o7777, conf.stat().st_uid) == (0o640, 1234)


def test_a_symbolic_link_stays_one(node: Node, tmp_path: Path) -> None:
    target = tmp_path / "elsewhere.conflist"
    target.write_text(CALICO)
    (node.conf_dir / "10-calico.conflist").symlink_to(target)
    node.installer().install()
    assert node.used() == ("10-calico-pointsman.conflist", ["calico", "portmap", TYPE])
    assert target.read_text() == CALICO
    node.installer().remove()
    assert (node.conf_dir / "10-calico.conflist").readlink() == target
    assert len(node.files()) == 1


def test_what_cannot_be_read_is_named_and_passed_over(node: Node) -> None:
    os.mkfifo(node.conf_dir / "01-fifo.conf")
    (node.conf_dir / "02-directory.conf").mkdir()
    (node.conf_dir / "03-nowhere.conf").symlink_to("nothing")
    (node.conf_dir / "04-large.conf").write_bytes(b" " * (3 << 20))
    (node.conf_dir / "05-binary.conflist").write_bytes(CALICO.encode().replace(b"calico", b"\xff\xfe"))
    found = node.installer().install().inspection
    assert {fault.file: fault.why for fault in found.broken} == {
        "01-fifo.conf": "it is no regular file",
        "03-nowhere.conf": "it is a symbolic link to nothing",
        "04-large.conf": "it is larger than 2 MiB",
    }
    # Not UTF-8, which Go reads all the same: no byte of it is lost.
    assert found.file == "05-binary.conflist"
    assert b'"\xff\xfe"' in (node.conf_dir / "05-binary.conflist").read_bytes()


def test_only_the_file_that_was_meant_is_edited(node: Node) -> None:
    """Between a look and an edit, what the runtime uses may have become another file."""
    node.put("10-calico.conflist", CALICO)
    assert node.installer().install(only="05-other.conflist").written == ()
    assert len(node.installer().install(only="10-calico.conflist").written) == 2


def test_without_configuration_or_directory_nothing_is_made_up(node: Node) -> None:
    found = node.installer().install().inspection
    assert (found.file, found.installed, found.shim) == ("", False, "current")
    assert node.files() == {}
    node.conf_dir.rmdir()
    assert node.installer().install().written == ()
    assert node.installer().remove().inspection.shim == "missing"
    assert not node.conf_dir.exists()


def test_a_missing_shim_is_said_with_the_target_that_makes_it(node: Node) -> None:
    node.put("10-calico.conflist", CALICO)
    node.shim.unlink()
    with pytest.raises(CannotInstallError, match=r"cannot find the shim .*; run `make shim`"):
        node.installer().install()
    assert node.files() == {"10-calico.conflist": CALICO}
    assert CniSettings().shim.name == TYPE
    assert CniSettings().shim.parent.name == "cni"


@needs_root
@pytest.mark.parametrize("full", [True, False])
def test_a_directory_that_cannot_be_written_leaves_nothing_half_done(node: Node, full: bool) -> None:
    node.installer().install()
    with mounted(node.conf_dir, "size=16k,nr_inodes=8"):
        node.put("10-calico.conflist", CALICO)
        if full:
            (node.conf_dir / "ballast").write_bytes(b"x" * (12 << 10))
            expected = r"cannot write .*/10-calico.conflist: No space left on device; free space"
        else:
            subprocess.run(["mount", "-o", "remount,ro", str(node.conf_dir)], check=True)
            expected = (
                r"cannot write .*/10-calico.conflist: Read-only file system; mount the directory writable"
            )
        with pytest.raises(CannotInstallError, match=expected):
            node.installer().install()
        assert (node.conf_dir / "10-calico.conflist").read_text() == CALICO
        assert {path.name for path in node.conf_dir.iterdir()} <= {"10-calico.conflist", "ballast"}


def test_a_file_that_changes_while_it_is_edited_is_read_again(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exactly between our reading and our writing, as often as three times."""
    conf = node.put("10-calico.conflist", CALICO)
    left = iter(range(1, 4))
    replace = Directory.replace

    def late(self: Directory, name: str, data: bytes, **more: object) -> None:
        if name == conf.name and (number := next(left, 0)):
            (by_rename if number % 2 else in_place)(conf, CALICO.replace('"mtu": 0', f'"mtu": {number}'))
        replace(self, name, data, **more)  # type: ignore[arg-type]

    monkeypatch.setattr(Directory, "replace", late)
    node.installer().install()
    assert json.loads(conf.read_text())["plugins"][0] == {"type": "calico", "mtu": 3}
    assert node.chained()
    assert list(node.files()) == [conf.name]


def test_files_that_a_killed_installer_left_are_swept(node: Node) -> None:
    node.put("10-calico.conflist", CALICO)
    node.bin_dir.mkdir()
    for directory in (node.conf_dir, node.bin_dir):
        (directory / f"{TEMPORARY}0123").write_text("half")
        (directory / ".somebody-elses").write_text("")
    node.installer().install()
    left = {path.name for directory in (node.conf_dir, node.bin_dir) for path in directory.iterdir()}
    assert left == {"10-calico.conflist", ".somebody-elses", TYPE}

    (node.bin_dir / TYPE).rename(node.bin_dir / f"{TEMPORARY}4567")
    node.installer().remove()
    assert [path.name for path in node.bin_dir.iterdir()] == [".somebody-elses"]


def test_a_lock_that_is_not_given_back_is_said(node: Node) -> None:
    node.put("10-calico.conflist", CALICO)
    with Directory(node.conf_dir) as held:
        assert held.try_lock()
        with pytest.raises(CannotInstallError, match="another process holds its lock"):
            node.installer().install()
    node.installer().install()


LOOP = """
import sys
from pathlib import Path
from agent.cni.install import CniSettings, Installer
conf_dir, bin_dir, first, second = map(Path, sys.argv[1:])
print("ready", flush=True)
while True:
    for shim, away in ((first, "allow"), (second, "deny")):
        settings = CniSettings(conf_dir=conf_dir, bin_dir=bin_dir, shim=shim, when_agent_away=away)
        Installer(settings).install()
    Installer(settings).remove()
"""


def test_a_kill_at_any_moment_leaves_a_whole_configuration(node: Node, tmp_path: Path) -> None:
    """Installed, changed and removed in a loop, and killed fifty times: what the runtime reads is always
    whole, and never names a binary that is not there, or not whole."""
    second = tmp_path / "second"
    second.write_bytes(b"\x7fELF version two" * 2000)
    whole = {node.shim.read_bytes(), second.read_bytes()}
    dice = random.Random(7)
    for round_ in range(50):
        name, text = ("10-calico.conflist", CALICO) if round_ % 2 else ("05-cilium.conf", CILIUM)
        for path in node.conf_dir.iterdir():
            if not path.name.startswith(TEMPORARY):
                path.unlink()
        node.put(name, text)
        argv = [sys.executable, "-c", LOOP, *map(str, (node.conf_dir, node.bin_dir, node.shim, second))]
        with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"ready\n"
            time.sleep(dice.random() * 0.05)
            child.send_signal(signal.SIGKILL)
        _, types = node.used()
        assert types in (
            ["calico", "portmap"],
            ["calico", "portmap", TYPE],
            ["cilium-cni"],
            ["cilium-cni", TYPE],
        )
        if TYPE in types:
            assert (node.bin_dir / TYPE).read_bytes() in whole
            assert os.access(node.bin_dir / TYPE, os.X_OK)
    node.installer().remove()
    assert node.files() == {"10-calico.conflist": CALICO}
    assert not any(path.name.startswith(TEMPORARY) for path in node.bin_dir.iterdir())


def test_many_at_once_are_one_after_the_other(node: Node) -> None:
    node.put("10-calico.conflist", CALICO)
    program = (
        "import sys; from pathlib import Path; from agent.cni.install import CniSettings, Installer;"
        "Installer(CniSettings(conf_dir=Path(sys.argv[1]), bin_dir=Path(sys.argv[2]),"
        " shim=Path(sys.argv[3]))).install()"
    )
    argv = [sys.executable, "-c", program, *map(str, (node.conf_dir, node.bin_dir, node.shim))]
    children = [subprocess.Popen(argv, cwd=Path(__file__).parents[2]) for _ in range(8)]
    assert [child.wait() for child in children] == [0] * 8
    assert node.used() == ("10-calico.conflist", ["calico", "portmap", TYPE])
    assert Installer(node.settings()).inspect().right
    assert list(node.files()) == ["10-calico.conflist"]
