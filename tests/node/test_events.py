"""Changes heard, told apart, and lost. Real network namespaces, root."""

import contextlib
import errno
import os
import time
from pathlib import Path

import pytest

from agent.node.nft.batch import batch
from agent.node.nft.channel import NftError
from agent.node.nft.records import Record
from agent.node.nft.socket import Nft
from tests.node.pods import nft, socket_in

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

TABLE = """
table inet pointsman {
	counter hits { packets 7 bytes 420 }
	counter misses { }
	quota volume { over 1 mbytes }
	set ports { type inet_service; flags interval; elements = { 22, 9000-9010 }
	}
	set sources { type ipv6_addr; flags interval; elements = { fd00::/8 }
	}
	map verdicts { type inet_service : verdict; elements = { 80 : goto pin }
	}
	chain pin { dnat ip to ip daddr
	}
	chain output {
		type nat hook output priority -101; policy accept;
		tcp dport { 25, 465, 587 } counter packets 3 bytes 180 goto pin comment "pointsman mail"
		tcp dport vmap @verdicts
		tcp dport @ports counter name hits redirect to :4140
	}
}
"""


def test_own_and_foreign_commits_are_told_apart(name: str, nl: Nft) -> None:
    nft(name, TABLE)
    (foreign,) = nl.events()
    assert (foreign.own, foreign.comm) == (False, "nft")
    assert foreign.portid != nl.portid
    state = nl.read("pointsman")
    nl.commit(batch((), state.records, generation=state.generation))
    (own,) = nl.events()
    assert (own.own, own.generation) == (True, nl.generation())
    assert Path(f"/proc/self/task/{own.pid}/comm").exists()
    assert nl.events() == []


def test_reads_and_refused_batches_are_no_events(name: str, nl: Nft) -> None:
    nft(name, TABLE)
    state = nl.read("pointsman")
    nl.events()
    nl.chains()
    with pytest.raises(NftError):
        nl.commit(batch(state.records, generation=state.generation - 1))
    assert nl.events() == []


def test_events_make_the_socket_readable_and_end_with_the_read(name: str, nl: Nft) -> None:
    import select

    poll = select.poll()
    poll.register(nl.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    nft(name, "add table ip somebody")
    assert poll.poll(2000)
    assert len(nl.events()) == 1
    assert poll.poll(0) == []


def burst(name: str, commits: int) -> None:
    """As many foreign commits, from one process."""
    with socket_in(name) as other:
        nft(name, "table inet noise {\n chain c { counter; }\n}")
        noise = other.read("noise").records
        for _ in range(commits // 2):
            other.commit(batch((), noise))
            other.commit(batch(noise))


def test_c18_overflow_is_noticed_and_a_read_makes_up_for_it(name: str) -> None:
    with socket_in(name, lambda: Nft(events=True, buffer=4096)) as nl:
        nft(name, TABLE)
        known = nl.read("pointsman")
        burst(name, 1000)
        nft(name, "add element inet pointsman ports { 80 }")
        assert len(nl.events()) < 1000
        assert nl.lost
        assert nl.read("pointsman").records != known.records
        assert not nl.lost


def test_overflow_during_a_commit_says_that_nobody_knows(name: str) -> None:
    with socket_in(name, lambda: Nft(events=True, buffer=2048)) as nl:
        nft(name, TABLE)
        state = nl.read("pointsman")
        with pytest.raises(NftError) as caught:
            nl.commit(batch(state.records, state.records, replace=True, generation=state.generation))
        assert (caught.value.errno, caught.value.transient) == (errno.ENOBUFS, True)
        assert nl.read("pointsman").records == state.records
        assert nl.generation() == state.generation + 1


def test_large_buffer_takes_a_burst(name: str, nl: Nft) -> None:
    burst(name, 200)
    assert len(nl.events()) >= 200
    assert not nl.lost


def test_reads_under_constant_foreign_change_are_never_mixed(name: str, nl: Nft) -> None:
    """A table that is either as it was or away; a reader must never see anything in between."""
    import threading

    nft(name, TABLE)
    whole = nl.read("pointsman").records
    stop = threading.Event()

    def churn() -> None:
        with socket_in(name) as other:
            while not stop.is_set():
                other.commit(batch((), whole))
                other.commit(batch(whole))

    thread = threading.Thread(target=churn)
    thread.start()
    seen: set[tuple[Record, ...]] = set()
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            with contextlib.suppress(NftError):
                seen.add(nl.read("pointsman").records)
    finally:
        stop.set()
        thread.join()
    assert seen <= {(), whole}
    assert seen
