"""The child that runs libnftables: texts in, records out, in network namespaces of its own.

libnftables waits with select(2) and aborts the whole process once a descriptor is above 1023, and it
writes to the namespace in which its context was made. So it runs here, in a small process started by
exec, which enters a fresh, empty namespace for every text. It ends when its parent closes the socket.

Protocol on descriptor 0, a stream socket: frames of a 4-byte length and MessagePack. First the child
says Ready, then every text (a string) is answered by Compiled.
"""

import socket
import struct
from typing import Any, TypeVar

import msgspec

from agent.core.names import TABLE
from agent.node.netns import enter_new_netns
from agent.node.nft.batch import batch
from agent.node.nft.channel import NftError, error_name
from agent.node.nft.records import OWNER, PERSIST, Record, record
from agent.node.nft.socket import Nft
from agent.node.nft.wire import attr, string, u32

T = TypeVar("T")

OWNED = OWNER | PERSIST
_LENGTH = struct.Struct("=I")


class Ready(msgspec.Struct, frozen=True):
    """Whether the child can work (`error` is empty), and which table flags this kernel takes.

    `flags` is OWNER | PERSIST or 0; then `reason` says with which errno they were refused.
    """

    error: str = ""
    flags: int = 0
    reason: str = ""


class Compiled(msgspec.Struct, frozen=True):
    """The records of one text, or why there are none."""

    records: tuple[Record, ...] = ()
    error: str = ""


class Ended(Exception):  # noqa: N818
    """The other side has closed the socket."""


def send(peer: socket.socket, value: object) -> None:
    """Send one frame."""
    body = msgspec.msgpack.encode(value)
    peer.sendall(_LENGTH.pack(len(body)) + body)


def receive(peer: socket.socket, kind: type[T]) -> T:
    """Receive one frame. Raises Ended, or TimeoutError as the socket says."""
    (length,) = _LENGTH.unpack(_exactly(peer, _LENGTH.size))
    return msgspec.msgpack.decode(_exactly(peer, length), type=kind)


def _exactly(peer: socket.socket, length: int) -> bytes:
    data = bytearray()
    while len(data) < length:
        part = peer.recv(length - len(data))
        if not part:
            raise Ended
        data += part
    return bytes(data)


class Scratch:
    """A fresh namespace, this thread's from now on, with libnftables and a socket of ours in it.

    Raises PermissionError (namespace), ImportError or OSError (library), NftError (socket).
    """

    def __init__(self) -> None:
        enter_new_netns()
        self._library = _library()
        self._nl = Nft()

    def close(self) -> None:
        del self._library
        self._nl.close()

    def compile(self, text: str) -> Compiled:
        """Load a text, dump it, load the dump in its place, and see that nothing differs.

        So a kernel that lacks a feature, or whose dump cannot be sent back, is found out here.
        """
        try:
            return Compiled(self._replayed(text))
        except (NftError, RefusedError) as error:
            return Compiled(error=str(error))

    def _replayed(self, text: str) -> tuple[Record, ...]:
        self._run(text)
        dump = self._nl.read(TABLE).records
        listing = self._listing()
        if not dump:
            raise RefusedError(f"cannot find table inet {TABLE} in the text")
        self._run("flush ruleset")
        self._nl.commit(batch(dump, generation=self._nl.generation()))
        replayed = self._nl.read(TABLE).records
        if replayed != dump:
            from agent.node.nft.difference import difference

            words = ", ".join(difference(dump, replayed))
            raise RefusedError(
                f"cannot replay the kernel's dump of the text: it comes back different: {words}"
            )
        if self._listing() != listing:
            raise RefusedError("cannot replay the kernel's dump of the text: nft lists it differently")
        return dump

    def probe(self) -> Ready:
        """Whether this kernel takes and keeps the table flags OWNER and PERSIST."""
        table = record("table", attr(1, string(TABLE)) + attr(2, u32(OWNED)))
        try:
            self._nl.commit(batch((table,)))
        except NftError as error:
            return Ready(reason=f"table flags owner,persist refused with {error_name(error.errno or 0)}")
        if self._nl.read(TABLE).flags != OWNED:
            return Ready(reason="table flags owner,persist are ignored")
        return Ready(flags=OWNED)

    def _listing(self) -> list[str]:
        """nft's own listing without counter values, as blocks: the order of chains and sets is no matter."""
        return sorted(block.strip("{}\n\t ") for block in self._run("list ruleset").split("\n\n"))

    def _run(self, script: str) -> str:
        code, output, error = self._library.cmd(script)
        if code:
            raise RefusedError(f"libnftables refuses it: {error.strip() or f'code {code}'}")
        return str(output)


class RefusedError(Exception):
    """The text cannot be compiled; the message says why."""


def _library() -> Any:
    try:
        from nftables import Nftables
    except ImportError as error:
        raise ImportError(
            f"cannot import nftables ({error}): install Debian's python3-nftables, and make the virtual "
            "environment with /usr/bin/python3 -m venv --system-site-packages"
        ) from error
    library = Nftables()
    library.set_stateless_output(True)
    return library


def main() -> None:
    """Serve texts until the parent closes the socket."""
    peer = socket.socket(fileno=0)
    try:
        scratch = Scratch()
        ready = scratch.probe()
    except (ImportError, OSError, NftError) as error:
        send(peer, Ready(error=str(error)))
        return
    send(peer, ready)
    scratch.close()
    while True:
        try:
            text = receive(peer, str)
        except Ended:
            return
        scratch = Scratch()
        send(peer, scratch.compile(text))
        # After the answer: closing waits for an RCU grace period.
        scratch.close()


if __name__ == "__main__":
    main()
