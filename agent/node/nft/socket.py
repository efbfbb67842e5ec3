"""One pod's nf_tables: read a table, commit a batch, hear of changes, look at foreign chains."""

import errno
from collections.abc import Callable
from typing import TypeVar

import msgspec

from agent.node.nft import foreign
from agent.node.nft.batch import Batch
from agent.node.nft.channel import BUFFER, Change, Channel, NftError, error_name
from agent.node.nft.foreign import Chain, Rule
from agent.node.nft.records import TABLE_FLAGS, TABLE_OWNER, Record, counter, elements, in_order, record
from agent.node.nft.wire import (
    ERROR,
    FAMILY_NUMBERS,
    GET,
    GETGEN,
    INET,
    NUMBER,
    UNSPEC,
    Kind,
    Message,
    answer,
    attr,
    attrs,
    number,
    string,
)

T = TypeVar("T")

TRIES = 20
"""Reads that others' changes may overtake before a caller is told to come back later."""


class State(msgspec.Struct, frozen=True):
    """One table as it was at `generation`. Without `records` there is no such table.

    `owner` is the port id of the socket that owns the table, 0 for nobody; `counters` are the named
    counters as (packets, bytes).
    """

    records: tuple[Record, ...] = ()
    flags: int = 0
    owner: int = 0
    generation: int = 0
    counters: dict[str, tuple[int, int]] = {}


class Nft:
    """A socket in the network namespace of the thread that makes it; any one thread at a time may use it.

    It owns the tables that it makes with the owner flag: closing it makes them orphans. `events`: hear
    of every commit in this namespace. Raises NftError when nf_tables cannot be spoken to.
    """

    def __init__(self, *, events: bool = False, buffer: int = BUFFER) -> None:
        self._channel = Channel(events=events, buffer=buffer)

    @property
    def portid(self) -> int:
        """The socket's address, unique in its namespace: the owner of a table, the author of a commit."""
        return self._channel.portid

    @property
    def lost(self) -> bool:
        """The queue has overflowed and events are missing, so read the table; a good read clears it."""
        return self._channel.lost

    def fileno(self) -> int:
        """Readable when there are events."""
        return self._channel.fileno()

    def close(self) -> None:
        """Give up the socket, and with it the ownership of tables. Idempotent.

        Takes 15 ms after a commit (the kernel waits for an RCU grace period): not on an event loop.
        """
        self._channel.close()

    def generation(self) -> int:
        """Number of the last commit in this namespace: the same number means that nothing has changed."""
        (reply,) = self._channel.ask(GETGEN, "read the generation")
        return number(dict(attrs(reply.attributes))[1])

    def events(self) -> list[Change]:
        """Commits in this namespace since the last call, own ones too; never waits. See `lost`."""
        self._channel.drain()
        changes, self._channel.changes = self._channel.changes, []
        return changes

    @property
    def pending(self) -> bool:
        """`events` has foreign ones that another call came across: the socket itself need not be readable."""
        return any(not change.own for change in self._channel.changes)

    def heard(self, generation: int) -> list[Change]:
        """Commits up to this generation that other calls have come across since `events`."""
        changes = self._channel.changes
        self._channel.changes = [change for change in changes if change.generation > generation]
        return [change for change in changes if change.generation <= generation]

    def commit(self, batch: Batch) -> None:
        """Apply a batch as a whole, or not at all.

        Raises NftError. ERESTART: the batch's generation has passed, nothing was applied. ENOBUFS: the
        answer was lost, although the batch may have been applied. Both are transient: read again.
        """
        if len(batch.labels) == 1:
            return
        channel = self._channel
        # A queue full of events would drown the answers.
        channel.drain()
        lost_before, channel.lost = channel.lost, False
        channel.send(batch.data, "change nf_tables")
        answers = [(*answer(reply), reply.seq) for reply in channel.drain() if reply.kind == ERROR]
        lost_answers, channel.lost = channel.lost, channel.lost or lost_before
        refused = [
            (code, f"{error_name(code)} {batch.labels[seq]} {words}".strip())
            for code, words, seq in answers
            if code and seq < len(batch.labels)
        ]
        if refused:
            raise NftError(refused[0][0], "change nf_tables", tuple(words for _, words in refused))
        if lost_answers or not answers:
            raise NftError(errno.ENOBUFS, "learn whether a change of nf_tables was applied")

    def read(self, table: str) -> State:
        """The content of `table inet NAME`, consistent as of one generation.

        Raises NftError, transient when others change the namespace faster than it can be read.
        """
        state = self._consistent(lambda generation: self._snapshot(table, generation), f"read table {table}")
        self._channel.lost = False
        return state

    def chains(self) -> list[Chain]:
        """All chains of all tables in this namespace, whoever made them."""

        def collect(_: int) -> list[Chain]:
            return [foreign.chain(reply.family, reply.attributes) for reply in self._dump("chain", UNSPEC)]

        return self._consistent(collect, "list chains")

    def table_rules(self, family: str, table: str) -> list[Rule]:
        """All rules of any table, chain by chain in their order; empty when there is no such table."""

        def collect(_: int) -> list[Rule]:
            replies = self._dump("rule", FAMILY_NUMBERS[family], table)
            return [foreign.rule(reply.family, reply.attributes) for reply in replies]

        return self._consistent(collect, f"list rules of table {family} {table}")

    def _snapshot(self, table: str, generation: int) -> State:
        try:
            (reply,) = self._channel.ask(NUMBER["table"] + GET, f"read table {table}", attr(1, string(table)))
        except NftError as error:
            if error.errno != errno.ENOENT:
                raise
            return State(generation=generation)
        found = dict(attrs(reply.attributes))
        records = [record("table", reply.attributes)]
        counters = {}
        for kind in ("chain", "object", "set", "rule"):
            for reply in self._dump(kind, INET, table):
                item = record(kind, reply.attributes)
                records.append(item)
                if kind == "object" and (value := counter(reply.attributes)):
                    counters[item.name] = value
                if kind == "set" and (filled := self._elements(table, item.name)):
                    records.append(filled)
        flags, owner = number(found[TABLE_FLAGS]), number(found.get(TABLE_OWNER, b""))
        return State(in_order(records), flags, owner, generation, counters)

    def _elements(self, table: str, name: str) -> Record | None:
        key = attr(1, string(table)) + attr(2, string(name))
        replies = self._channel.ask(NUMBER["elements"] + GET, f"read set {name}", key, dump=True)
        return elements(name, (dict(attrs(reply.attributes)).get(3, b"") for reply in replies))

    def _dump(self, kind: Kind, family: int, table: str | None = None) -> list[Message]:
        """All objects of a kind, in one table or in all."""
        asked = attr(1, string(table)) if table is not None else b""
        replies = self._channel.ask(NUMBER[kind] + GET, f"list every {kind}", asked, family, dump=True)
        # The kernel filters some kinds only.
        return [reply for reply in replies if reply.attributes.startswith(asked)]

    def _consistent(self, collect: Callable[[int], T], what: str) -> T:
        for _ in range(TRIES):
            try:
                before = self.generation()
                found = collect(before)
                if self.generation() == before:
                    return found
            except NftError as error:
                # ENOENT: a set went away between the list of sets and its elements.
                if not error.transient and error.errno != errno.ENOENT:
                    raise
        raise NftError(errno.EINTR, what)
