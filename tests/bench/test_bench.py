"""Both benchmarks end with one JSON object of the agreed keys and leave nothing behind. No speed is asked."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.bench import drift
from tests.bench.connector import Count
from tests.bench.stage import percentile, verdict

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

INSTALL = [
    *("bench", "pods", "install_ms", "verify_ms", "iptables_ms", "nft_f_ms", "wall_ratio", "cpu_ratio"),
    *("update_ms", "compare_ms", "round_cpu_ms", "rss_mib_0", "rss_mib_250"),
]
DRIFT = ["bench", "p50_ms", "p99_ms", "events", "escaped_plain", "escaped_owned", "connections"]


def last_line(output: str) -> Any:
    return json.loads(output.splitlines()[-1])


def bench(*arguments: str) -> Any:
    command = [sys.executable, "-m", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    return last_line(done.stdout)


@as_root
def test_install() -> None:
    figures = bench("tests.bench.install", "2")
    assert list(figures) == INSTALL
    assert (figures["bench"], figures["pods"]) == ("install", 2)
    assert all(value > 0 for key, value in figures.items() if key != "bench")


@as_root
def test_drift() -> None:
    figures = bench("tests.bench.drift", "--events", "8", "--pods", "2")
    assert list(figures) == DRIFT
    assert (figures["bench"], figures["events"]) == ("drift", 8)
    assert 0 < figures["p50_ms"] <= figures["p99_ms"]
    assert figures["escaped_owned"] in (0, None)
    assert figures["connections"] > 0


@as_root
def test_an_interrupted_run_leaves_nothing_behind() -> None:
    command = [sys.executable, "-m", "tests.bench.install", "20"]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        ours = f"pm-bench-{process.pid}-*"
        deadline = time.monotonic() + 30
        while not any(Path("/run/netns").glob(ours)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
    assert not list(Path("/run/netns").glob(ours))


def test_a_kernel_without_owned_tables(capsys: pytest.CaptureFixture[str]) -> None:
    plain = drift.Result((drift.Heal("nft", "flush ruleset", 1.5),), Count(opened=9, escaped=2))
    drift.report(plain, None)
    output = capsys.readouterr().out
    assert last_line(output)["escaped_owned"] is None
    assert (last_line(output)["connections"], last_line(output)["escaped_plain"]) == (9, 2)
    assert "no owner and persist flags" in output


@pytest.mark.parametrize(("share", "value"), [(0, 1), (0.5, 2), (0.75, 3), (0.99, 4), (1, 4)])
def test_percentile(share: float, value: float) -> None:
    assert percentile([4, 2, 1, 3], share) == value


@pytest.mark.parametrize(
    ("value", "least", "word"),
    [
        (5, False, "met"),
        (5.1, False, "MISSED"),
        (5, True, "met"),
        (4.9, True, "MISSED"),
        (None, False, "not"),
    ],
)
def test_verdict(value: float | None, least: bool, word: str) -> None:
    assert verdict("a figure", value, 5, least=least).split()[0] == word
