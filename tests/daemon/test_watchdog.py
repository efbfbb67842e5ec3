"""A loop that hangs ends the process; one that was only stopped goes on."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from agent.cli.client import Agent as Client
from agent.cli.client import AgentError
from agent.watchdog import EXIT_HUNG
from tests.lab.agent import agent

HANGS = "import time; from agent.watchdog import Watchdog; Watchdog(0.4).start(); time.sleep(20)"


def test_a_loop_that_hangs_ends_the_process_with_a_traceback() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=15, check=False
    )
    assert done.returncode == EXIT_HUNG
    assert "the event loop has not turned for" in done.stderr
    assert "<string>" in done.stderr  # where it hangs


def test_a_process_that_was_stopped_goes_on(tmp_path: Path) -> None:
    with agent(tmp_path, "--hang-timeout", "2") as one:
        os.kill(one.pid, signal.SIGSTOP)
        time.sleep(4)
        os.kill(one.pid, signal.SIGCONT)
        time.sleep(3)
        assert one.ask("GET", "/ready") == "ok\n"


def test_a_stopped_agent_does_not_keep_people_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent.cli.client.ALIVE", 1.0)
    with agent(tmp_path) as one:
        os.kill(one.pid, signal.SIGSTOP)
        try:
            with pytest.raises(AgentError, match="stopped, or frozen"):
                Client(one.run_dir).state()
        finally:
            os.kill(one.pid, signal.SIGCONT)
        assert Client(one.run_dir).state().pods == ()
