"""What the CNI plugin `record` (`src/record.c`) has noted."""

import json
import struct
from pathlib import Path
from typing import Any

import msgspec

_LENGTHS = struct.Struct("=II")


class Call(msgspec.Struct, frozen=True):
    """One call of the plugin: its CNI_* environment, and the configuration that it got on stdin."""

    env: dict[str, str]
    conf: dict[str, Any]

    @property
    def verb(self) -> str:
        return self.env["CNI_COMMAND"]

    @property
    def args(self) -> dict[str, str]:
        """CNI_ARGS by key."""
        return dict(pair.split("=", 1) for pair in self.env["CNI_ARGS"].split(";"))


def calls(plugin: Path) -> list[Call]:
    """Every call of the plugin at this path so far, in order."""
    noted = plugin.with_name(f"{plugin.name}.calls")
    rest = noted.read_bytes() if noted.exists() else b""
    found = []
    while rest:
        env, stdin = _LENGTHS.unpack_from(rest)
        body, rest = rest[_LENGTHS.size :], rest[_LENGTHS.size + env + stdin :]
        pairs = (each.split("=", 1) for each in body[:env].decode().split("\0") if each)
        found.append(Call(dict(pairs), json.loads(body[env : env + stdin])))
    return found


def fail(plugin: Path, error: dict[str, Any] | None) -> None:
    """Let every ADD from now on fail with this CNI error object; None: succeed again."""
    told = plugin.with_name(f"{plugin.name}.fails")
    if error is None:
        told.unlink(missing_ok=True)
    else:
        told.write_text(json.dumps(error))
