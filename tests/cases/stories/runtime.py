"""A node's container runtime, as libcni plays it: its chain of plugins is read from the CNI directory.

The plugins before ours are imagined: what they came to is given as the previous result. Ours is the program
that was installed, and is run for each call.
"""

import contextlib
import json
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from agent.cni.install import SHIM
from agent.core.chain import TYPE
from agent.core.names import PodKey
from tests.cases.model import Case
from tests.cases.stories.stage import running
from tests.cni.confs import Node
from tests.cni.shim import Call, Done, call_all, with_previous
from tests.lab import cni
from tests.lab.addresses import host_prefix
from tests.lab.agent import JSON, Agent
from tests.lab.netns import configure, netns, path_of

CONFLIST = "10-primary.conflist"
PRIMARY = '{"cniVersion": "1.0.0", "name": "primary", "plugins": [{"type": "primary", "mtu": %d}]}\n'
"""What the primary CNI writes there; it knows nothing of us."""


class Container(msgspec.Struct, frozen=True):
    """What a runtime attaches to the network, in CNI's words: an id, a netns (by name), and for which pod."""

    netns: str
    pod: JSON
    id: str

    @property
    def key(self) -> PodKey:
        metadata = self.pod["metadata"]
        return PodKey(metadata["namespace"], metadata["name"])


def container(netns: str, pod: JSON) -> Container:
    """A new sandbox of the pod."""
    return Container(netns, pod, secrets.token_hex(32))


def result(version: str, *addresses: str, **unknown: Any) -> str:
    """A result of plugins before ours in the form of that version, with members that nobody knows."""
    form = {"version": "4"} if version < "1" else {}
    ips = [{**form, "address": f"{address}/24", "interface": 0} for address in addresses]
    interfaces = [{"name": "eth0", "sandbox": "/run/netns/x"}]
    known = {"cniVersion": version, "interfaces": interfaces, "ips": ips, "dns": {}}
    return json.dumps({**known, **unknown}, indent="\t")


PREVIOUS = result("1.0.0", "192.0.2.7")


class Runtime:
    """The runtime of `node`, whose files others may rewrite at any time."""

    def __init__(self, node: Node) -> None:
        self.node = node

    @property
    def conflist(self) -> Path:
        return self.node.conf_dir / CONFLIST

    def rewrite(self, mtu: int) -> str:
        """The primary CNI puts its file there anew, by rename; returns the text."""
        text = PRIMARY % mtu
        other = self.conflist.with_suffix(".primary")
        other.write_text(text)
        other.rename(self.conflist)
        return text

    def add(self, one: Container, text: str = "", previous: str = PREVIOUS) -> Done:
        """ADD for one, by the chain of the conflist as it is, or was in the moment when it read `text`."""
        chain = json.loads(text or self.conflist.read_text())
        if _ours(chain) is None:
            return Done(0, previous.encode(), "", 0)
        (done,) = self.at_once([self.call("ADD", one, previous=previous)])
        return done

    def delete(self, one: Container) -> Done:
        """DEL as it comes for the second time, or after the netns has gone: with none."""
        (done,) = self.at_once([self.call("DEL", one, CNI_NETNS="")])
        return done

    def call(
        self, verb: str, one: Container, version: str = "", previous: str | None = PREVIOUS, **other: str
    ) -> Call:
        """What libcni gives to our plugin: its entry, and what stands above it. `previous` None: no result;
        `version`: of the list, where it is another one. LookupError when we are not in the chain."""
        chain = json.loads(self.conflist.read_text())
        entry = _ours(chain)
        if entry is None:
            raise LookupError(f"{TYPE} is not in the chain of {self.conflist}")
        head = {"name": chain["name"], "cniVersion": version or chain["cniVersion"]}
        stdin = json.dumps(entry | head).encode()
        key, uid = one.key, one.pod["metadata"]["uid"]
        arguments = cni.arguments(key.name, key.namespace, uid)
        environment = cni.environment(verb, one.id, path_of(one.netns), arguments) | other
        return Call(verb, stdin if previous is None else with_previous(stdin, previous), {**environment})

    def at_once(self, calls: list[Call]) -> list[Done]:
        """All of these, each by a process of its own; returns when the last has ended."""
        return call_all(self.node.bin_dir / TYPE, calls)


def _ours(chain: JSON) -> JSON | None:
    return next((plugin for plugin in chain["plugins"] if plugin["type"] == TYPE), None)


@contextlib.contextmanager
def wired(address: str) -> Iterator[str]:
    """A netns with this address, as the plugins before ours leave it."""
    with netns() as name:
        configure(name, f"addr add {host_prefix(address)} dev lo")
        yield name


@contextlib.contextmanager
def gated(case: Case, *flags: str, start: bool = True) -> Iterator[tuple[Agent, Runtime]]:
    """An agent as `running` gives it, that keeps our plugin in the chain of a node of its own."""
    if not SHIM.exists():
        raise FileNotFoundError(f"cannot find the shim {SHIM}; run `make shim`")
    with tempfile.TemporaryDirectory(prefix="pm-node-") as directory:
        node = Node(Path(directory))
        node.shim = SHIM
        node.put(CONFLIST, PRIMARY % 1500)
        place = ("--conf-dir", str(node.conf_dir), "--bin-dir", str(node.bin_dir))
        with running(case, "--install-cni", *place, *flags, start=start) as one:
            yield one, Runtime(node)
