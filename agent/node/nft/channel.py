"""A netlink socket to nf_tables: requests, transactions and events share its one queue.

Not thread-safe: one reader at a time. Event messages carry their group as the sender's address, which
is all that tells them from answers.
"""

import errno
import os
import socket

import msgspec

from agent.node.nft.wire import (
    DONE,
    DUMP,
    DUMP_INTERRUPTED,
    ERROR,
    INET,
    NEWGEN,
    SUBSYSTEM,
    Message,
    answer,
    attrs,
    message,
    messages,
    number,
    text,
)

NETLINK_NETFILTER = 12
SOL_NETLINK = 270
NETLINK_ADD_MEMBERSHIP, NETLINK_CAP_ACK, NETLINK_EXT_ACK = 1, 10, 11
# The FORCE forms pass over the sysctl limits; they need CAP_NET_ADMIN.
SO_SNDBUFFORCE, SO_RCVBUFFORCE = 32, 33
NFTABLES_GROUP = 7

BUFFER = 1 << 20
DATAGRAM = 1 << 16
FIRST_SEQ = 1 << 20
"""Sequence numbers of requests start here: below are those of batches."""
QUEUE_LIMIT = 10_000
"""Datagrams taken in one go, so that a flood of foreign changes cannot hold the caller for ever."""

NAMED = 5
"""Refused messages in the text of an error."""

TRANSIENT = {errno.EINTR, errno.ERESTART, errno.ENOBUFS, errno.EAGAIN, errno.EBUSY}
HINTS = {
    errno.EPERM: "needs CAP_NET_ADMIN, or another process owns the table",
    errno.EACCES: "needs CAP_NET_ADMIN; denied by an LSM?",
    errno.EPROTONOSUPPORT: "the kernel has no nf_tables (CONFIG_NF_TABLES)",
}


class NftError(OSError):
    """The kernel refused something, with `errno`. `refused` names each refused message with its own error.

    `transient`: nothing is wrong, or nobody knows what was applied; look again.
    """

    def __init__(self, code: int, what: str, refused: tuple[str, ...] = ()) -> None:
        hint = f"; {HINTS[code]}" if code in HINTS else ""
        detail = f" ({'; '.join(refused[:NAMED])})" if refused else ""
        super().__init__(f"cannot {what}: {error_name(code)}: {os.strerror(code)}{detail}{hint}")
        self.errno = code
        self.refused = refused

    @property
    def transient(self) -> bool:
        return self.errno in TRANSIENT


def error_name(code: int) -> str:
    """The name that nf_tables people know: Python calls number 95 by its other name."""
    return "EOPNOTSUPP" if code == errno.EOPNOTSUPP else errno.errorcode.get(code, str(code))


class Change(msgspec.Struct, frozen=True):
    """A commit by anybody in this namespace. `own`: by this very socket.

    `pid` is the committing thread's id in the initial pid namespace: good for a log line with `comm`.
    """

    generation: int
    portid: int
    pid: int
    comm: str
    own: bool


class Channel:
    """The socket belongs to the network namespace of the thread that makes it.

    `lost` is set when the queue has overflowed: events, or the answers to a transaction, are missing.
    `changes` are the commits seen so far.
    """

    def __init__(self, *, events: bool, buffer: int) -> None:
        self.lost = False
        self.changes: list[Change] = []
        self._seq = 0
        try:
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, NETLINK_NETFILTER)
        except OSError as error:
            raise NftError(error.errno or 0, "open a netfilter socket") from error
        try:
            self._set_up(events, buffer)
        except OSError as error:
            self._socket.close()
            raise NftError(error.errno or 0, "set up a netfilter socket") from error

    def _set_up(self, events: bool, buffer: int) -> None:
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, buffer)
        self._socket.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, BUFFER)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_EXT_ACK, 1)
        self._socket.setsockopt(SOL_NETLINK, NETLINK_CAP_ACK, 1)
        self._socket.bind((0, 0))
        self.portid: int = self._socket.getsockname()[0]
        if events:
            self._socket.setsockopt(SOL_NETLINK, NETLINK_ADD_MEMBERSHIP, NFTABLES_GROUP)

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def ask(
        self, kind: int, what: str, attributes: bytes = b"", family: int = INET, *, dump: bool = False
    ) -> list[Message]:
        """The answers to one request; for a dump, all objects. `what` is for the error's message.

        Raises NftError: EINTR when a dump was overtaken by a change, ENOBUFS when an answer was lost.
        """
        self._seq = max(FIRST_SEQ, (self._seq + 1) & 0xFFFFFFFF)
        self.send(message(kind, DUMP if dump else 0, self._seq, attributes, family), what)
        replies: list[Message] = []
        interrupted = False
        for _ in range(QUEUE_LIMIT):
            answers = self._datagram()
            if answers is None:
                break
            for reply in answers:
                if reply.seq != self._seq:
                    continue
                interrupted |= bool(reply.flags & DUMP_INTERRUPTED)
                if reply.kind in (ERROR, DONE):
                    code, words = answer(reply)
                    code = code or (errno.EINTR if interrupted else 0)
                    if code:
                        raise NftError(code, what, (words,) if words else ())
                    return replies
                replies.append(reply)
            if replies and not dump:
                return replies
        raise NftError(errno.ENOBUFS, what)

    def send(self, data: bytes, what: str) -> None:
        """One datagram, of any size. For the kernel a request is done when this returns."""
        try:
            if len(data) > BUFFER:
                self._socket.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, len(data))
            self._socket.send(data)
        except OSError as error:
            raise NftError(error.errno or 0, what) from error

    def drain(self) -> list[Message]:
        """All answers that are queued; never waits."""
        answers: list[Message] = []
        for _ in range(QUEUE_LIMIT):
            found = self._datagram()
            if found is None:
                break
            answers += found
        return answers

    def _datagram(self) -> list[Message] | None:
        """The answers in the next datagram, None when nothing is queued. Changes are put aside."""
        try:
            data, _, flags, (_, groups) = self._socket.recvmsg(DATAGRAM)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.ENOBUFS:
                raise NftError(error.errno or 0, "receive from the kernel") from error
            self.lost = True
            return []
        if flags & socket.MSG_TRUNC:
            self.lost = True
            return []
        if not groups:
            return list(messages(data))
        # The news of a commit has a datagram of its own, after those with what has changed.
        event = next(messages(data), None)
        if event is not None and event.kind == SUBSYSTEM << 8 | NEWGEN:
            self.changes.append(self._change(event))
        return []

    def _change(self, event: Message) -> Change:
        found = dict(attrs(event.attributes))
        pid, comm = number(found.get(2, b"")), text(found.get(3, b""))
        return Change(number(found[1]), event.portid, pid, comm, event.portid == self.portid)
