"""The doors, without the daemon behind them."""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from agent import admin
from agent.admin import Admin, Door

DOOR = Door(CollectorRegistry(), stuck=lambda: "", not_ready=lambda: (), private={})


@contextlib.contextmanager
def doors(path: Path) -> Iterator[Admin]:
    with contextlib.closing(Admin(DOOR, ("127.0.0.1", 0), path)) as opened:
        yield opened


def test_a_door_that_cannot_be_opened_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "agent.sock"
    path.mkdir()
    with pytest.raises(OSError, match="choose another --run-dir"), doors(path):
        pass
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("sent", [b"", b"GET /live HTTP/1.1\r\n", b"\xff\xfe\x00\r\n\r\n"])
def test_peers_that_say_nothing_of_use_are_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], sent: bytes
) -> None:
    monkeypatch.setattr(admin._Handler, "timeout", 0.1)
    with doors(tmp_path / "agent.sock") as opened:
        with socket.create_connection(("127.0.0.1", opened.port), timeout=5) as peer:
            peer.sendall(sent)
            peer.recv(4096)  # until the agent gives up
        with socket.create_connection(("127.0.0.1", opened.port), timeout=5) as peer:
            peer.sendall(b"GET /live HTTP/1.0\r\n\r\n")
            assert b"200 OK" in peer.recv(4096)
    assert "Traceback" not in capfd.readouterr().err
