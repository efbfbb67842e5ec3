"""Texts to templates by a child process, and what happens when it cannot. Root."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.core.ports import PortSet, Subnets
from agent.core.ruleset import drain, render
from agent.core.spec import RedirectSpec
from agent.node.netns import open_netns, run_in
from agent.node.nft import compile as compiling
from agent.node.nft.batch import batch
from agent.node.nft.channel import NftError
from agent.node.nft.compile import CompileError, Compiler
from agent.node.nft.records import OWNER, PERSIST, with_flags
from agent.node.nft.socket import Nft
from tests.lab.netns import netns, path_of, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

SIMPLE = "table inet pointsman {\n\tchain output { type nat hook output priority -101; }\n}\n"

BROAD = """
table inet pointsman {
	counter hits { packets 5 bytes 300 }
	set pairs { type ipv4_addr . inet_service; flags interval
		elements = { 10.0.0.1 . 80, 10.1.0.0/16 . 1000-2000 }
	}
	set noted { type inet_service; elements = { 80 comment "a { } 'quoted' one", 443 }
	}
	map targets { type inet_service : ipv4_addr; elements = { 80 : 127.0.0.1, 443 : 127.0.0.2 }
	}
	map verdicts { type inet_service : verdict; elements = { 80 : jump web, 443 : accept }
	}
	chain web { ct state new limit rate 10/second burst 5 packets counter accept comment "he said { }"
	}
	chain input {
		type filter hook input priority 0; policy accept;
		tcp dport vmap @verdicts
		ip saddr . tcp dport @pairs counter name hits accept
		tcp dport { 1-100, 200 } log prefix "x" level debug drop
		meta mark set 7 ct mark 0x1
		tcp flags & (fin|syn|rst|ack) != syn return
		fib daddr type local tcp dport vmap { 22 : accept, 23-25 : drop }
	}
	chain output {
		type nat hook output priority -101; policy accept;
		dnat ip to tcp dport map @targets
	}
}
"""


def spec(*skip_outbound: int | tuple[int, int]) -> RedirectSpec:
    return RedirectSpec(
        inbound_port=4143,
        outbound_port=4140,
        proxy_uid=2102,
        proxy_gid=None,
        skip_inbound=PortSet.of(22, (9000, 9010)),
        proxy_ports=PortSet.of(4190, 4191),
        skip_outbound=PortSet.of(*skip_outbound),
        skip_subnets=Subnets(v4=("10.0.0.0/8",), v6=("fd00::/8",)),
        only_inbound=None,
        ipv6=True,
        local_only=True,
    )


@pytest.fixture
def compiler() -> Iterator[Compiler]:
    with contextlib.closing(Compiler()) as made:
        yield made


def children() -> set[int]:
    """Processes that this one has started and not collected."""
    task = Path("/proc/self/task")
    while True:
        # A thread that ends meanwhile leaves its children to another, which may have been read before.
        with contextlib.suppress(FileNotFoundError):
            return {
                int(pid) for thread in task.iterdir() for pid in (thread / "children").read_text().split()
            }


@pytest.mark.parametrize(
    "text", [SIMPLE, BROAD, render(spec(5432)), drain()], ids=("simple", "broad", "ours", "drain")
)
def test_template_installs_what_libnftables_installs(compiler: Compiler, text: str) -> None:
    template = compiler.compile(text)
    with netns() as ours, netns() as theirs:
        fd = open_netns(path_of(ours))
        with contextlib.closing(run_in(fd, Nft)) as nl:
            nl.commit(batch(template.records))
        os.close(fd)
        run("ip", "netns", "exec", theirs, "nft", "-f", "-", script=text)
        lists = [run("ip", "netns", "exec", name, "nft", "-s", "list", "ruleset") for name in (ours, theirs)]
    assert sorted(lists[0].splitlines()) == sorted(lists[1].splitlines())


def test_known_text_asks_nobody(compiler: Compiler) -> None:
    assert compiler.known(SIMPLE) is None
    first = compiler.compile(SIMPLE)
    compiler.close()
    assert compiler.known(SIMPLE) is first
    assert compiler.compile(SIMPLE) is first
    assert children() == set()


def test_texts_used_last_are_remembered() -> None:
    with contextlib.closing(Compiler(most=2)) as compiler:
        texts = [SIMPLE + f"# {number}\n" for number in range(3)]
        first = compiler.compile(texts[0])
        second = compiler.compile(texts[1])
        assert compiler.compile(texts[0]) is first
        compiler.compile(texts[2])
        assert compiler.compile(texts[0]) is first
        assert compiler.compile(texts[1]) is not second


def test_child_rests_when_idle_and_only_then() -> None:
    with contextlib.closing(Compiler(idle=0.2)) as compiler:
        compiler.compile(SIMPLE)
        compiler.rest()
        assert len(children()) == 1
        time.sleep(0.25)
        compiler.rest()
        assert children() == set()
        assert compiler.compile(BROAD).records


def test_killed_child_is_replaced_once(compiler: Compiler) -> None:
    compiler.compile(SIMPLE)
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    assert compiler.compile(BROAD).records
    assert children() != {pid}


def as_child(directory: Path, monkeypatch: pytest.MonkeyPatch, *lines: str) -> None:
    """Run other code as the child; `peer` is its socket."""
    head = ("import socket, sys, time", "from agent.node.nft.scratch import Ready, receive, send")
    (directory / "stand_in.py").write_text("\n".join((*head, "peer = socket.socket(fileno=0)", *lines)))
    monkeypatch.syspath_prepend(str(directory))
    monkeypatch.setattr(compiling, "CHILD", "stand_in")


def test_child_that_dies_twice_is_an_error_with_its_last_words(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_child(
        tmp_path, monkeypatch, "send(peer, Ready())", "receive(peer, str)", "sys.exit('bit out of range')"
    )
    with pytest.raises(CompileError, match="failed twice.*exit status 1.*bit out of range") as caught:  # noqa: RUF043
        compiler.compile(SIMPLE)
    assert caught.value.text == SIMPLE
    assert children() == set()


def test_child_that_hangs_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    as_child(tmp_path, monkeypatch, "send(peer, Ready())", "time.sleep(60)")
    monkeypatch.setattr(compiling, "GRACE", 0.1)
    with (
        contextlib.closing(Compiler(patience=0.5)) as compiler,
        pytest.raises(CompileError, match="TimeoutError"),
    ):
        compiler.compile(SIMPLE)
    assert children() == set()


def test_child_that_cannot_start_says_why(compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiling, "CHILD", "agent.node.nft.never")
    with pytest.raises(
        CompileError, match=r"cannot start the compiler process.*No module named agent\.node\.nft\.never"
    ):
        compiler.flags()


def test_missing_library_names_the_package(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nftables.py").write_text("raise ImportError('not here')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(
        CompileError, match=r"cannot import nftables \(not here\): install Debian's python3-nftables"
    ):
        compiler.compile(SIMPLE)


def test_missing_right_names_the_capability() -> None:
    script = (
        "import ctypes\n"
        "from agent.node.nft.compile import Compiler, CompileError\n"
        "ctypes.CDLL(None).setresuid(65534, 65534, 65534)\n"
        "try: Compiler().flags()\n"
        "except CompileError as error: print(error)\n"
    )
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    words = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=30,
    ).stdout
    assert "cannot make a scratch network namespace: Operation not permitted; needs CAP_SYS_ADMIN" in words


def test_refused_text_shows_the_words_of_libnftables_and_the_script(compiler: Compiler) -> None:
    text = SIMPLE.replace("output priority", "outputt priority")
    with pytest.raises(CompileError) as caught:
        compiler.compile(text)
    assert "cannot compile the rules: libnftables refuses it: " in str(caught.value)
    assert "unknown chain hook" in str(caught.value)
    assert text in str(caught.value)
    assert compiler.compile(SIMPLE).records


def test_long_script_is_shortened_in_the_message(compiler: Compiler) -> None:
    text = "#" * 100_000 + "\nrubbish"
    with pytest.raises(CompileError, match=r"\.\.\. \(100008 characters\)") as caught:
        compiler.compile(text)
    assert len(str(caught.value)) < 10_000
    assert caught.value.text == text


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot find table inet pointsman"),
        ("table ip pointsman { }", "cannot find table inet pointsman"),
        (SIMPLE + "table ip other {\n chain c { }\n}\n", "nft lists it differently"),
    ],
)
def test_only_our_table_can_be_compiled(compiler: Compiler, text: str, words: str) -> None:
    with pytest.raises(CompileError, match=words):
        compiler.compile(text)


def test_nothing_happens_in_the_namespace_of_this_process(compiler: Compiler) -> None:
    with contextlib.closing(Nft()) as nl:
        before = nl.generation()
        compiler.flags()
        compiler.compile(SIMPLE)
        assert nl.generation() == before


def test_flags_are_what_this_kernel_takes(compiler: Compiler) -> None:
    flags = compiler.flags()
    assert (flags == OWNER | PERSIST) is (compiler.reason == "")
    assert flags or compiler.reason.startswith("table flags owner,persist refused with E")
    owned = with_flags(compiler.compile(SIMPLE).records, OWNER | PERSIST)
    with netns() as name:
        fd = open_netns(path_of(name))
        with contextlib.closing(run_in(fd, Nft)) as nl:
            refused = pytest.raises(NftError) if not flags else contextlib.nullcontext()
            with refused:
                nl.commit(batch(owned))
        os.close(fd)


def test_i01_more_than_1024_open_descriptors(compiler: Compiler) -> None:
    """libnftables aborts a process that has so many; ours is not that process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, hard))
    held: list[int] = []
    try:
        held.extend(os.open(os.devnull, os.O_RDONLY) for _ in range(1500))
        assert compiler.compile(BROAD).records
    finally:
        for fd in held:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_full_descriptor_table_is_an_error_and_no_leak(compiler: Compiler) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    for spare in range(4):
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + spare, hard))
        try:
            with pytest.raises(CompileError, match="Too many open files"):
                compiler.compile(SIMPLE)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        again = os.dup(0)
        os.close(again)
        assert again == free
    assert compiler.compile(SIMPLE).records


def test_several_threads_share_one_child(compiler: Compiler) -> None:
    texts = [render(spec(port)) for port in range(5000, 5012)]
    found: dict[str, int] = {}

    def body(part: list[str]) -> None:
        for text in part:
            found[text] = len(compiler.compile(text).records)

    threads = [threading.Thread(target=body, args=(texts[start::3],)) for start in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(found) == set(texts)
    assert len(set(found.values())) == 1
    assert len(children()) == 1
