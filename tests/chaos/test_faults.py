"""Bad input while the agent runs: manifests, paths, and namespaces full of other people's tables."""

import functools
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.tables import ABSENT, OFF, SKIP_OUT, listing, nft
from tests.lab.agent import Agent, agent, pod_manifest
from tests.lab.netns import netns, run

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root")

NETNS = "pointsman.io/netns"


@pytest.fixture
def pod() -> Iterator[str]:
    with netns() as name:
        yield name


def at(name: str, path: object) -> dict[str, object]:
    """A pod whose manifest names any path, or what is none."""
    manifest = pod_manifest(name)
    manifest["metadata"]["annotations"][NETNS] = path
    return manifest


def works(one: Agent, name: str) -> None:
    """The agent redirects another pod within its usual time."""
    with netns() as other:
        one.put(pod_manifest(name, other))
        one.wait_reason(f"default/{name}", "Redirected", seconds=3)


BROKEN = {
    "empty": b"",
    "cut": b"kind: Pod\nmetadata:\n  name: cut\n  annotations: {pointsman.io/netns: /run/ne",
    "binary": bytes(range(256)) * 8,
    "not-utf8": b"kind: Pod\nmetadata: {name: caf\xe9}\n",
    "no-object": b"- 1\n- 2\n",
    "no-name": b"kind: Pod\nmetadata: {}\n",
    "name-of-a-number": b"kind: Pod\nmetadata: {name: 7}\n",
    "containers-of-text": b"kind: Pod\nmetadata: {name: x}\nspec: {containers: many}\n",
    "deep": b"[" * 20_000,
    "bomb": b"a: &a [x,x,x,x,x,x,x,x,x]\n"
    + b"".join(b"%c: &%c [%s]\n" % (c, c, b",".join([b"*%c" % (c - 1)] * 9)) for c in range(98, 106)),
    "surrogate": b'kind: Pod\nmetadata: {name: x, annotations: {pointsman.io/netns: "\\ud800"}}\n',
    "tag": b"!!python/object/apply:os.system ['true']\n",
    "recursive": b"kind: Pod\nmetadata: &m {name: x, annotations: *m}\n",
    "list-of-itself": b"&a {kind: List, items: [*a]}\n",
    "list-of-lists": b"kind: List\nitems:\n- &l0 {kind: Secret}\n"
    + b"".join(
        b"- &l%d {kind: List, items: [%s]}\n" % (level, b",".join([b"*l%d" % (level - 1)] * 9))
        for level in range(1, 10)
    ),
    "endless-number": b"kind: Pod\nmetadata: {name: x, annotations: {a: 0x" + b"f" * 5000 + b"}}\n",
    "no-number": b'kind: Pod\nmetadata: {name: x, uid: !!int ""}\n',
    "no-truth": b"kind: Pod\nmetadata: {name: x, uid: !!bool x}\n",
    "no-time": b"kind: Pod\nmetadata: {name: x, uid: !!timestamp x}\n",
}


def test_broken_manifests_are_named_and_harm_nobody(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        for name, content in BROKEN.items():
            (one.manifests / f"{name}.yaml").write_bytes(content)
        works(one, "other")
        assert one.reason("default/web") == "Redirected"
        one.wait(lambda: len(ignored(one)) >= len(BROKEN) - 1, "a line for each broken file", 5)
        assert ignored(one) == {f"{name}.yaml" for name in BROKEN} - {"empty.yaml"}
        # Each once, not once a second.
        time.sleep(2.2)
        assert len(one.events("manifest ignored")) == len(BROKEN) - 1
        assert all(line["error"].startswith("cannot ") for line in one.events("manifest ignored"))


def ignored(one: Agent) -> set[str]:
    return {Path(line["file"]).name for line in one.events("manifest ignored")}


def test_half_written_manifest_keeps_what_it_said(tmp_path: Path, pod: str) -> None:
    """An editor that writes in place: the file is seen empty, cut anywhere, and whole again."""
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        before = listing(pod)
        (file,) = one.manifests.glob("*.yaml")
        whole = file.read_text()
        for end in (len(whole) // 3, len(whole) // 2, 2 * len(whole) // 3, len(whole) - 2):
            file.write_text(whole[:end].rstrip() + "\n\t: [")
            time.sleep(0.1)
            assert (one.reason("default/web"), listing(pod)) == ("Redirected", before)
        file.write_text(whole.replace("annotations:", f"annotations:\n    {SKIP_OUT}: '7'"))
        one.wait(lambda: listing(pod) != before, "the change")
        assert one.pod("default/web")["status"]["how"] == "updated"


def test_odd_files_in_the_directory(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        (one.manifests / "directory.yaml").mkdir()
        os.mkfifo(one.manifests / "fifo.yaml")
        (one.manifests / "loop.yaml").symlink_to("loop.yaml")
        (one.manifests / "dangling.yaml").symlink_to("nowhere")
        (one.manifests / "endless.yaml").symlink_to("/dev/zero")
        with (one.manifests / "huge.yaml").open("wb") as huge:
            huge.truncate(1 << 40)
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected", seconds=3)
        assert {"directory.yaml", "fifo.yaml", "loop.yaml", "endless.yaml", "huge.yaml"} <= ignored(one)


def test_the_directory_goes_and_comes_back(tmp_path: Path, pod: str) -> None:
    """Missing information removes nothing."""
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        aside = tmp_path / "aside"
        one.manifests.rename(aside)
        time.sleep(1.5)
        assert one.reason("default/web") == "Redirected"
        aside.rename(one.manifests)
        works(one, "other")


def test_bad_paths_are_named_and_delay_nobody(tmp_path: Path, pod: str) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")
    paths = {
        "directory": "/proc/self",
        "loop": str(tmp_path / "loop"),
        "fifo": str(tmp_path / "fifo"),
        "file": str(tmp_path / "file"),
        "below-a-file": str(tmp_path / "file" / "net"),
        "nothing": "",
        "blank": "  ",
        "long": "/run/netns/" + "x" * 100_000,
        "deep": "/x" * 50_000,
        "nul": "/run/netns/a\0b",
        "relative": f"run/netns/{pod}",
        "upwards": f"../../../../../../../../run/netns/{pod}",
        "other-kind": f"/proc/{os.getpid()}/ns/mnt",
        "device": "/dev/zero",
        "terminal": "/dev/tty",
        "unicode": "/run/netns/\N{SNOWMAN}",
        "newline": "/run/netns/a\nb",
    }
    with agent(tmp_path) as one:
        for name, path in paths.items():
            one.put(at(name, path))
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected", seconds=3)
        for name in paths:
            one.wait_reason(f"default/{name}", "NetnsMissing", "NetnsMismatch")
            message = one.pod(f"default/{name}")["status"]["message"]
            assert message.startswith("cannot "), message
            assert len(message) < 1000
            assert "\n" not in message
        assert not [line for line in one.lines() if "exception" in line or "text" in line]
        assert len(one.log.read_text()) < 100_000


def test_a_hundred_bad_pods_and_one_good_one(tmp_path: Path, pod: str) -> None:
    with agent(tmp_path) as one:
        for number in range(100):
            one.put(at(f"bad-{number}", f"/proc/{os.getpid()}/ns/mnt"))
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected", seconds=3)
        nft(pod, "add", "table", "ip", "foreign")
        one.wait(lambda: one.pod("default/web")["status"]["foreignChanges"] == 1, "the event", 2)


FOREIGN = """\
table inet appfw{0} {{
  ct helper ftp {{ type "ftp" protocol tcp; }}
  counter hits {{ }}
  quota most {{ over 10 mbytes }}
  limit slow {{ rate 400/minute }}
  map verdicts {{ type inet_service : verdict; elements = {{ 80 : accept, 81 : drop }}; }}
  set pairs {{ type ipv4_addr . inet_service; flags interval; elements = {{ 10.0.0.0/8 . 80-90 }}; }}
  set timed {{ type ipv4_addr; flags dynamic, timeout; timeout 1h; size 100; elements = {{ 10.1.1.1 }}; }}
  chain input {{ type filter hook input priority {0}; policy accept;
    tcp dport 21 ct helper set "ftp" comment "a 'b' {{ }} \\\\ \N{SNOWMAN}"
    tcp dport vmap @verdicts
    tcp dport {{ 1, 2, 3-9 }} counter log prefix "{0}: " limit rate 1/second accept
    ip saddr . tcp dport @pairs counter name "hits" quota name "most"
    tcp dport 99 update @timed {{ ip saddr limit rate 1/minute }}
  }}
  chain late {{ type nat hook output priority {0}; tcp dport 7 redirect to :8; }}
}}
table ip pointsman{0} {{ chain c {{ }}; }}
table arp t{0} {{ chain c {{ type filter hook input priority 0; }}; }}
table bridge t{0} {{ chain c {{ type filter hook input priority 0; }}; }}
table netdev t{0} {{ chain c {{ type filter hook ingress device lo priority {0}; }}; }}
"""


def test_a07_hundreds_of_foreign_tables_of_every_kind(tmp_path: Path, pod: str) -> None:
    nft(pod, "-f", "-", script="".join(FOREIGN.format(number) for number in range(60)))
    before = everything(pod)
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected", seconds=5)
        assert everything(pod) == before
        complaints = one.pod("default/web")["status"]["complaints"]
        assert {"ForeignRules"} <= {entry["reason"] for entry in complaints}
        one.put(pod_manifest("web", pod, annotations={SKIP_OUT: "7"}))
        one.wait(lambda: one.pod("default/web")["status"]["how"] == "updated", "the change", 5)
        one.put(pod_manifest("web", pod, annotations=OFF))
        one.wait_reason("default/web", "Draining", seconds=5)
        assert everything(pod) == before
    assert listing(pod) != ABSENT


def everything(pod: str) -> str:
    """All foreign tables, with handles, and without the time that elements have left."""
    text = re.sub(r" expires \w+", "", nft(pod, "-a", "list", "ruleset"))
    blocks = [block.strip() for block in text.removeprefix("table ").split("\ntable ")]
    return "\n".join(block for block in blocks if not block.startswith("inet pointsman {"))


def test_another_pod_in_the_netns_of_an_orphan_takes_over(tmp_path: Path, pod: str) -> None:
    """The object of one UID goes and that of another comes, and they name the same netns."""
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod, uid="first"))
        one.wait_reason("default/web", "Redirected")
        before = listing(pod)
        one.put(pod_manifest("web", pod, uid="second"))
        one.wait(lambda: [entry["uid"] for entry in one.state()["pods"]] == ["second"], "the takeover", 3)
        one.wait_reason("default/web", "Redirected", seconds=3)
        assert listing(pod) == before
        assert one.events("failed") == []


def test_another_netns_at_the_same_path_is_another_pod(tmp_path: Path, pod: str) -> None:
    """Whether its end is seen first, or the change of the UID that follows it."""
    with agent(tmp_path) as one:
        one.put(pod_manifest("web", pod))
        one.wait_reason("default/web", "Redirected")
        for _ in range(4):
            (before,) = [entry["uid"] for entry in one.state()["pods"]]
            run("ip", "netns", "delete", pod)
            run("ip", "netns", "add", pod)
            one.wait(functools.partial(is_another, one, before), "another pod, redirected", 5)
            assert listing(pod) != ABSENT


def is_another(one: Agent, old: str) -> bool:
    pods = [(entry["uid"] != old, entry["status"]["reason"]) for entry in one.state()["pods"]]
    return pods == [(True, "Redirected")]
