"""The demo as a process: told to its end, kept, interrupted, broken and killed. Root."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.demo.stage import HOME
from tests.lab.agent import SLOWNESS

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

ROOT = Path(__file__).parents[2]
MARK = f"POINTSMAN_DEMO_TEST={os.getpid()}"
PATIENCE = 60.0 * SLOWNESS


class Demo:
    """A running demo whose output is read line by line. Everything that comes of it carries MARK."""

    def __init__(self, *flags: str) -> None:
        name, value = MARK.split("=")
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.demo", *flags],
            cwd=ROOT,
            env={**os.environ, name: value},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def read_until(self, start: str) -> None:
        """Up to the line that starts so."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line.rstrip())
            if line.startswith(start):
                return
        raise AssertionError(f"no line {start!r} in:\n{self.text}")

    def end(self, number: signal.Signals | None = None) -> int:
        """Exit status, after the signal if there is one."""
        if number is not None:
            self.process.send_signal(number)
        rest, _ = self.process.communicate(timeout=PATIENCE)
        self.lines += rest.splitlines()
        return self.process.returncode

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@contextlib.contextmanager
def demo(*flags: str) -> Iterator[Demo]:
    one = Demo(*flags)
    try:
        yield one
    finally:
        if one.process.poll() is None:
            one.end(signal.SIGTERM)


def remains() -> list[str]:
    """Namespaces, files and processes of a demo, wherever they are."""
    found = [str(path) for path in Path("/run/netns").glob("pm-demo-*")]
    found += [str(HOME)] if HOME.exists() else []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if MARK.encode() in environ.read_bytes().split(b"\0"):
                found.append(f"{environ.parent}: {(environ.parent / 'cmdline').read_text()}")
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    assert remains() == [], "end the demo that is running"
    yield
    assert remains() == []


@pytest.mark.parametrize("ownership", ["auto", "off"])
def test_the_story_is_told_to_its_end(ownership: str) -> None:
    began = time.monotonic()
    with demo("--table-ownership", ownership) as one:
        assert one.end() == 0, one.text
    assert time.monotonic() - began < PATIENCE
    headings = [line for line in one.lines if re.match(r"\d+\. ", line)]
    assert len(headings) == 11
    assert "\033" not in one.text
    told = " ".join(one.text.split())
    for words in (
        "ok default/web is redirected in both directions",
        "through both proxies, with original destination and source",
        "ok port 3306 meets no proxy",
        "ok outbound is not: it leaves job in clear text",
        "removed nft table ip nat chain PROXY_INIT_REDIRECT",
        "found: table missing",
        "rule missing in chain output",
        "ok updated in place after",
        "ok adopted as it is",
        "ok a name that is not there yet gets an answer as well",
        "added 10.244.1.3:8080 (db): TLS as db.default.serviceaccount.identity.linkerd.cluster.local, hint",
        "ok is answered in full: readiness decides",
        "not opaque, by default opaque ports -> opaque, by annotation of the Pod",
        "-> no TLS",
        "removed 10.244.1.4:8080 (job)",
        "rule out-skip-port",
        'pointsman_destination_updates_total{method="Get"} 6.0',
        'pointsman_drift_total{kind="table"} 1.0',
        "ok nothing is left behind",
    ):
        assert words in told
    owned = "pointsman_owned_tables 1.0" in told
    assert ("Operation not permitted" in told) is owned
    assert ("claimed by one message" in told) is owned
    claims = sum(line.startswith("   ok  ") for line in one.lines)
    assert re.search(rf"^Verified: {claims} claims in \d+ s\.", one.lines[-1])
    if ownership == "off":
        assert not owned


def test_kept_everything_that_is_suggested_works() -> None:
    with demo("--keep") as one:
        one.read_until("Everything keeps running")
        suggested = len(one.lines)
        one.read_until("Ctrl-C ends it")
        commands = [line.strip() for line in one.lines[suggested:] if line.startswith("   ")]
        outputs = {}
        for what, command in zip(commands[::2], commands[1::2], strict=True):
            if shutil.which(command.split()[0]) is None:
                continue
            done = subprocess.run(
                command, shell=True, cwd=ROOT, capture_output=True, text=True, check=False, timeout=20
            )
            assert (done.returncode, done.stderr) == (0, ""), command
            outputs[what] = done.stdout
            time.sleep(0.3)
        assert one.end(signal.SIGINT) == 0, one.text
    assert outputs["# a connection through both proxies"].startswith('{"app": "db", "peer": ["10.244.1.3"')
    assert '"listener": "inbound"' in outputs["# what the proxy of db saw of it"]
    assert "db.default.serviceaccount.identity" in outputs["# what a proxy in web is told"]
    assert '"event": "drift repaired"' in outputs["# how it reports that"]
    assert '"event": "rules updated"' in outputs["# what the agent makes of it"]
    assert one.lines[-1].startswith("Verified: ")


@pytest.mark.parametrize(("number", "moment"), [(signal.SIGINT, "   On the stage"), (signal.SIGTERM, "5. ")])
def test_interrupted_it_removes_everything(number: signal.Signals, moment: str) -> None:
    with demo() as one:
        one.read_until(moment)
        assert one.end(number) == 130, one.text
    assert one.lines[-1] == "Interrupted. Everything is removed."


def test_a_claim_that_does_not_hold_ends_it_with_1() -> None:
    with demo() as one:
        one.read_until("1. ")
        for pid in subprocess.check_output(["ip", "netns", "pids", "pm-demo-db"], text=True).split():
            os.kill(int(pid), signal.SIGKILL)
        assert one.end() == 1, one.text
    assert any(line.startswith("FAILED") for line in one.lines)
    assert any(line.startswith("   expected: an answer") for line in one.lines)


def test_after_a_killed_one_the_next_starts_afresh() -> None:
    with demo() as one:
        one.read_until("8. ")
        assert one.end(signal.SIGKILL) == -signal.SIGKILL
    assert remains() != []
    with demo() as one:
        assert one.end() == 0, one.text


def test_two_at_once_do_not_disturb_each_other() -> None:
    with demo("--keep") as first:
        first.read_until("1. ")
        with demo() as second:
            assert second.end() == 1
        assert second.text.strip().startswith("FAILED  cannot run the demo: another one is using")
        first.read_until("Ctrl-C ends it")
        assert first.end(signal.SIGINT) == 0, first.text
