"""From a RedirectSpec to the nft text that carries it out: `table inet pointsman`.

The text is the only place where rules are written. Its shape is nearly fixed, and what varies is in
sets, so a change of a port list changes elements and keeps rules, handles and counters.

* **One before the others.** Priority -101 comes before every chain of iptables (-100): the first nat
  chain that decides wins, and between equal priorities the order is a matter of luck.
* **SYN guard.** Without it, the first packet of a connection that is older than the rules looks
  new to conntrack and is redirected in mid-stream, which resets the connection.
* **Pin.** `return` settles nothing: a later nat chain, such as what linkerd-init left behind,
  may still redirect. A DNAT to the address that the packet already has does settle it.
* **Forwarded packets** are neither redirected nor pinned: containers nested in the pod need the
  NAT rules that come after ours.
* **Drain.** Redirected connections die with the last rule that uses conntrack, so pods leave the
  mesh through a table with one such rule and no redirect.

The text names no pod, so pods with equal settings share it, and it is compiled once.
"""

import functools
import hashlib
import textwrap
from collections.abc import Iterable
from typing import Literal

import msgspec

from agent.core.names import TABLE
from agent.core.spec import RedirectSpec

PRIORITY = -101

Direction = Literal["in", "out"]


class Counter(msgspec.Struct, frozen=True):
    """A named counter of the table: connections of one direction that met one decision."""

    name: str
    direction: Direction
    reason: str


COUNTERS = (
    Counter("in_redirect", "in", "redirect"),
    Counter("in_skip_forwarded", "in", "forwarded"),
    Counter("in_skip_port", "in", "port"),
    Counter("in_skip_subnet", "in", "subnet"),
    Counter("in_skip_unlisted", "in", "unlisted"),
    Counter("out_redirect", "out", "redirect"),
    Counter("out_skip_proxy", "out", "proxy"),
    Counter("out_skip_lo", "out", "lo"),
    Counter("out_skip_port", "out", "port"),
    Counter("out_held", "out", "held"),
)
"""All counters, in every table that redirects, whether a rule uses them or not."""


class Rule(msgspec.Struct, frozen=True):
    """One rule of a base chain. `match`, `end` are nft text; `counter` names one of COUNTERS."""

    id: str
    match: str
    end: str
    counter: str | None = None


RULES = (
    "in-not-tcp",
    "in-not-ipv4",
    "in-not-syn",
    "in-forwarded",
    "in-skip-port",
    "in-skip-src4",
    "in-skip-src6",
    "in-unlisted",
    "in-redirect",
    "out-not-tcp",
    "out-not-ipv4",
    "out-not-syn",
    "out-proxy-uid",
    "out-proxy-gid",
    "out-lo",
    "out-skip-port",
    "out-held",
    "out-redirect",
)
"""Every rule id, in the order in which packets meet the rules. A spec has some of them."""


RENDERED = 32
"""Texts that are kept: most pods of a node have the same few."""


@functools.lru_cache(RENDERED)
def render(spec: RedirectSpec) -> str:
    """The table of a meshed pod as nft text, for an empty network namespace. Deterministic."""
    note = f" spec={spec_hash(spec)}"
    return _table(
        *(f"\tcounter {counter.name} {{ }}\n" for counter in COUNTERS),
        *(_set(name, kind, elements) for name, kind, elements in _sets(spec)),
        *([_pin_chain(spec)] if spec.pin else []),
        _base_chain("prerouting", inbound(spec), note),
        _base_chain("output", outbound(spec), note),
    )


def drain() -> str:
    """The table of a pod that leaves the mesh: old connections live on, new ones go direct."""
    return _table(_base_chain("prerouting", (Rule("drain", "ct state new", "return"),)))


def inbound(spec: RedirectSpec) -> tuple[Rule, ...]:
    """The rules that a packet arriving in the pod's netns meets, in order; the first match wins."""
    skip = "goto pin" if spec.pin else "return"
    rules = _guards("in", spec)
    if spec.local_only:
        rules.append(Rule("in-forwarded", "fib daddr type != local", "return", "in_skip_forwarded"))
    rules.append(Rule("in-skip-port", "tcp dport @in_skip_ports", skip, "in_skip_port"))
    rules.append(Rule("in-skip-src4", "ip saddr @in_skip_src4", skip, "in_skip_subnet"))
    if spec.ipv6:
        rules.append(Rule("in-skip-src6", "ip6 saddr @in_skip_src6", skip, "in_skip_subnet"))
    if spec.only_inbound is not None:
        rules.append(Rule("in-unlisted", "tcp dport != @in_only_ports", skip, "in_skip_unlisted"))
    rules.append(Rule("in-redirect", "meta l4proto tcp", f"redirect to :{spec.inbound_port}", "in_redirect"))
    return tuple(rules)


def outbound(spec: RedirectSpec) -> tuple[Rule, ...]:
    """The rules that a packet made in the pod meets, in order; the first match wins."""
    skip = "goto pin" if spec.pin else "return"
    rules = _guards("out", spec)
    rules.append(Rule("out-proxy-uid", f"meta skuid {spec.proxy_uid}", skip, "out_skip_proxy"))
    if spec.proxy_gid is not None:
        rules.append(Rule("out-proxy-gid", f"meta skgid {spec.proxy_gid}", skip, "out_skip_proxy"))
    rules.append(Rule("out-lo", 'oifname "lo"', skip, "out_skip_lo"))
    rules.append(Rule("out-skip-port", "tcp dport @out_skip_ports", skip, "out_skip_port"))
    if spec.hold_outbound:
        return (*rules, Rule("out-held", "meta l4proto tcp", "return", "out_held"))
    rules.append(
        Rule("out-redirect", "meta l4proto tcp", f"redirect to :{spec.outbound_port}", "out_redirect")
    )
    return tuple(rules)


def element_count(spec: RedirectSpec) -> int:
    """How many set elements the kernel is sent: two per port range and per subnet."""
    return sum(2 * len(elements) for _, _, elements in _sets(spec))


def spec_hash(spec: RedirectSpec) -> str:
    """Twelve hex digits that tell one spec from another, for people who compare two pods."""
    return hashlib.sha256(msgspec.msgpack.encode(spec)).hexdigest()[:12]


def _guards(direction: Direction, spec: RedirectSpec) -> list[Rule]:
    """What is none of our business: other protocols, IPv6 without a listener, and mid-stream packets."""
    guards = [Rule(f"{direction}-not-tcp", "meta l4proto != tcp", "return")]
    if not spec.ipv6:
        guards.append(Rule(f"{direction}-not-ipv4", "meta nfproto != ipv4", "return"))
    guards.append(Rule(f"{direction}-not-syn", "tcp flags & (fin|syn|rst|ack) != syn", "return"))
    return guards


def _sets(spec: RedirectSpec) -> list[tuple[str, str, tuple[str, ...]]]:
    """Name, element type and elements of each set."""
    sets = [
        ("in_skip_ports", "inet_service", (spec.skip_inbound | spec.proxy_ports).elements()),
        ("in_skip_src4", "ipv4_addr", spec.skip_subnets.v4),
    ]
    if spec.ipv6:
        sets.append(("in_skip_src6", "ipv6_addr", spec.skip_subnets.v6))
    if spec.only_inbound is not None:
        sets.append(("in_only_ports", "inet_service", spec.only_inbound.elements()))
    sets.append(("out_skip_ports", "inet_service", spec.skip_outbound.elements()))
    return sets


def _table(*parts: str) -> str:
    return f"table inet {TABLE} {{\n" + "".join(parts) + "}\n"


def _set(name: str, kind: str, elements: tuple[str, ...]) -> str:
    lines = [f"\tset {name} {{", f"\t\ttype {kind}", "\t\tflags interval"]
    if elements:
        lines.append(_element_lines(elements))
    return "\n".join((*lines, "\t}\n"))


def _element_lines(elements: tuple[str, ...]) -> str:
    text = ", ".join(elements)
    if len(text) <= 80:
        return f"\t\telements = {{ {text} }}"
    wrapped = textwrap.fill(text, 100, break_on_hyphens=False, break_long_words=False)
    return "\t\telements = {\n" + textwrap.indent(wrapped, "\t\t\t") + "\n\t\t}"


def _pin_chain(spec: RedirectSpec) -> str:
    families = ("ip", "ip6") if spec.ipv6 else ("ip",)
    rules = (f'dnat {ip} to {ip} daddr comment "{TABLE} pin-{ip}"' for ip in families)
    return _chain("pin", rules)


def _base_chain(hook: str, rules: tuple[Rule, ...], note: str = "") -> str:
    """A nat chain named after its hook; `note` is added to the first rule's comment."""
    head = f"type nat hook {hook} priority {PRIORITY}; policy accept;"
    lines = (_rule(rule, note if at == 0 else "") for at, rule in enumerate(rules))
    return _chain(hook, (head, *lines))


def _rule(rule: Rule, note: str) -> str:
    count = f'counter name "{rule.counter}" ' if rule.counter else ""
    return f'{rule.match} {count}{rule.end} comment "{TABLE} {rule.id}{note}"'


def _chain(name: str, lines: Iterable[str]) -> str:
    return "".join((f"\tchain {name} {{\n", *(f"\t\t{line}\n" for line in lines), "\t}\n"))
