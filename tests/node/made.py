"""Records made by hand: what a kernel would dump, without a kernel."""

from agent.node.nft.records import Record, elements, in_order, record
from agent.node.nft.wire import attr, string, u32

TABLE = attr(1, string("pointsman"))


def u64(value: int) -> bytes:
    return value.to_bytes(8, "big")


def expression(name: str, data: bytes) -> bytes:
    return attr(1, attr(1, string(name)) + attr(2, data))


def a_table(flags: int = 0) -> Record:
    return record("table", TABLE + attr(2, u32(flags)) + attr(3, u32(9)) + attr(4, u64(1)))


def a_chain(name: str, priority: int | None = None, policy: int = 1) -> Record:
    body = TABLE + attr(2, u64(7)) + attr(3, string(name)) + attr(6, u32(3))
    if priority is not None:
        body += attr(4, attr(1, u32(3)) + attr(2, priority.to_bytes(4, "big", signed=True)))
        body += attr(5, u32(policy)) + attr(7, string("nat"))
    return record("chain", body)


def a_rule(chain_name: str, words: str, packets: int = 0, handle: int = 5) -> Record:
    counts = attr(1, u64(packets * 60)) + attr(2, u64(packets))
    note = words.encode() + b"\0"
    return record(
        "rule",
        TABLE
        + attr(2, string(chain_name))
        + attr(3, u64(handle))
        + attr(4, expression("counter", counts) + expression("immediate", b"\1\2\3\4"))
        + attr(6, u64(handle - 1))
        + attr(7, bytes((0, len(note))) + note),
    )


def a_set(name: str, flags: int = 4) -> Record:
    return record(
        "set", TABLE + attr(2, string(name)) + attr(3, u32(flags)) + attr(5, u32(2)) + attr(16, u64(3))
    )


def a_counter(name: str, packets: int = 0) -> Record:
    data = attr(1, u64(packets * 60)) + attr(2, u64(packets))
    return record("object", TABLE + attr(2, string(name)) + attr(3, u32(1)) + attr(4, data) + attr(6, u64(8)))


def an_element(key: int, *, end: bool = False, width: int = 2, expires: int | None = None) -> bytes:
    body = attr(1, attr(1, key.to_bytes(width, "big")))
    if end:
        body += attr(3, u32(1))
    if expires is not None:
        body += attr(5, u64(expires))
    return attr(1, body)


def ports(name: str, *ranges: tuple[int, int]) -> Record:
    """The elements of an interval set of ports."""
    parts = [an_element(first) + an_element(last + 1, end=True) for first, last in ranges]
    found = elements(name, parts)
    assert found is not None
    return found


FULL = in_order(
    (
        a_rule("output", "one"),
        a_rule("output", "two"),
        ports("ports", (22, 22)),
        a_set("ports"),
        a_counter("hits"),
        a_chain("output", -101),
        a_table(),
    )
)
"""A small table."""
