"""One visit to one pod's kernel state: look, put right what is wrong, read back, look around.

Runs on a lane, never on the loop. Everything it learns is in the `Sight` that it returns; what it
means for the pod's status is decided elsewhere.
"""

import msgspec

from agent.core.names import TABLE
from agent.core.plan import Goal
from agent.core.reasons import Complaint, Reason
from agent.core.tally import Counters
from agent.node.hold import Hold
from agent.node.leftovers import Leftover, find
from agent.node.nft.channel import Change, NftError
from agent.node.nft.compile import Template
from agent.node.nft.datapath import NftDatapath
from agent.node.nft.foreign import Chain

OUR_PRIORITY = -101


class Order(msgspec.Struct, frozen=True):
    """What a visit is to achieve. `template` is the rule set wanted (the drain table for CLEAR);
    `flags` the table flags wanted; `write` False compares only; `add_only` leaves a table that is there
    as it is; `full` compares even when the generation has not moved; `remove` makes CLEAR delete the
    table instead of draining it."""

    goal: Goal
    template: Template
    flags: int
    write: bool
    add_only: bool = False
    full: bool = False
    ipv6: bool = False
    remove: bool = False


class Sight(msgspec.Struct, frozen=True, kw_only=True):
    """What a visit found and did.

    `result`: "unchanged", "installed", "updated", "replaced", "claimed" (written and verified),
    "differs" or "absent" (looked only), "nothing" (CLEAR, and nothing of ours there),
    "iptables" (a complete rule set of linkerd-init is left alone).
    """

    result: str
    differences: tuple[str, ...] = ()
    drift: bool = False
    foreign: tuple[Change, ...] = ()
    counters: Counters = {}
    lost: Counters = {}
    leftovers: tuple[Leftover, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    around: bool = False
    install_ms: float | None = None
    verify_ms: float | None = None
    exposed_s: float | None = None
    """Seconds that the pod had run without rules, when the first ones came after its start."""


def visit(hold: Hold, datapath: NftDatapath, order: Order) -> Sight:
    """Carry out one order. Raises what the datapath raises."""
    with hold.using:
        return _visit(hold, datapath, order)


def _visit(hold: Hold, datapath: NftDatapath, order: Order) -> Sight:
    foreign = tuple(change for change in hold.nft.events() if not change.own)
    hold.seen = hold.nft.generation()
    same_order = hold.text == order.template.text
    if same_order and not order.full and not hold.nft.lost and hold.verified == hold.seen:
        return Sight(result="unchanged", foreign=foreign)
    hold.verified = None
    sight = _look(hold, datapath, order) if not order.write else _write(hold, datapath, order)
    # The news of a commit comes after its rules can be read; our own commit has waited for it.
    foreign += tuple(change for change in hold.nft.heard(hold.seen or 0) if not change.own)
    drift = same_order and bool(sight.differences) and sight.result != "claimed"
    return msgspec.structs.replace(sight, foreign=foreign, drift=drift)


def _write(hold: Hold, datapath: NftDatapath, order: Order) -> Sight:
    absent = not hold.text and datapath.observe(hold.nft, order.template, order.flags).absent
    if order.goal is Goal.CLEAR and absent:
        return Sight(result="nothing")
    if order.goal is Goal.CLEAR and order.remove:
        datapath.remove(hold.nft)
        hold.text = ""
        return Sight(result="nothing")
    if order.add_only and not absent:
        return _look(hold, datapath, order)
    if order.goal is Goal.REDIRECT_UNLESS_IPTABLES and absent:
        leftovers = _leftovers(hold)
        if _complete(leftovers, order.ipv6):
            return _left_alone(leftovers)
    late = order.goal is not Goal.CLEAR and absent
    applied = datapath.apply(hold.nft, order.template, order.flags)
    hold.text = order.template.text
    hold.verified = hold.seen = applied.state.generation
    sight = Sight(
        result=applied.result,
        differences=applied.differences,
        counters=_packets(applied.state.counters),
        lost=_packets(applied.lost_counters),
        install_ms=applied.install_ms,
        verify_ms=applied.verify_ms,
        exposed_s=hold.place.age() if late else None,
    )
    # Only now, since connections may escape for as long as a repair waits.
    try:
        leftovers = _leftovers(hold)
        complaints = _around(hold, leftovers)
    except NftError as error:
        if not error.transient:
            raise
        # Others changed their tables while we looked; ours is verified all the same. The next round,
        # which sees a generation that was not seen here, looks again in full.
        hold.verified = hold.seen = None
        return sight
    return msgspec.structs.replace(sight, leftovers=leftovers, complaints=complaints, around=True)


def _look(hold: Hold, datapath: NftDatapath, order: Order) -> Sight:
    observed = datapath.observe(hold.nft, order.template, order.flags)
    if order.goal is Goal.CLEAR and observed.absent:
        return Sight(result="nothing")
    leftovers = _leftovers(hold)
    if observed.absent and order.goal is Goal.REDIRECT_UNLESS_IPTABLES and _complete(leftovers, order.ipv6):
        return _left_alone(leftovers)
    if not observed.differences:
        hold.text = order.template.text
        hold.verified = hold.seen = observed.state.generation
    result = "absent" if observed.absent else "differs" if observed.differences else "unchanged"
    return Sight(
        result=result,
        differences=observed.differences,
        counters=_packets(observed.state.counters),
        leftovers=leftovers,
        complaints=_around(hold, leftovers),
        around=True,
    )


def read_counters(hold: Hold) -> Counters:
    """Connections seen by each named counter of our table now."""
    with hold.using:
        return _packets(hold.nft.read(TABLE).counters)


def peek_counters(hold: Hold) -> Counters | None:
    """The same for who must not wait: None while a slow visit has the socket."""
    if not hold.using.acquire(blocking=False):
        return None
    try:
        return _packets(hold.nft.read(TABLE).counters)
    finally:
        hold.using.release()


def read_generation(hold: Hold) -> int | None:
    """Generation of the netns; the last one seen while a slow visit has the socket."""
    if not hold.using.acquire(blocking=False):
        return hold.seen
    try:
        return hold.nft.generation()
    finally:
        hold.using.release()


def _packets(counters: dict[str, tuple[int, int]]) -> Counters:
    return {name: packets for name, (packets, _bytes) in counters.items()}


def _leftovers(hold: Hold) -> tuple[Leftover, ...]:
    hold.has_legacy = bool(hold.legacy.families())
    return find(hold.nft, hold.fd, hold.legacy)


def _complete(leftovers: tuple[Leftover, ...], ipv6: bool) -> bool:
    families = {entry.family for entry in leftovers if entry.state == "complete"}
    return families >= ({4, 6} if ipv6 else {4})


def _left_alone(leftovers: tuple[Leftover, ...]) -> Sight:
    """linkerd-init's rules decide. A family that the proxy does not listen on may be half done all the same,
    and its connections are then refused, or go past the proxy."""
    remedy = "`pointsman cleanup` installs ours, and then removes all of linkerd-init's"
    half_done = [_leftover(entry) for entry in leftovers if entry.half_done]
    complaints = tuple(msgspec.structs.replace(each, remedy=remedy) for each in half_done)
    return Sight(result="iptables", leftovers=leftovers, complaints=complaints, around=True)


def _around(hold: Hold, leftovers: tuple[Leftover, ...]) -> tuple[Complaint, ...]:
    """Who else decides in this netns: nat chains before ours shadow it, those behind are named."""
    complaints = [_leftover(entry) for entry in leftovers]
    leftover_tables = {
        ("ip" if entry.family == 4 else "ip6") for entry in leftovers if entry.flavour == "nft"
    }
    for chain in hold.nft.chains():
        if not _competes(chain):
            continue
        name = f"table {chain.family} {chain.table} chain {chain.name}"
        if chain.priority is not None and chain.priority <= OUR_PRIORITY:
            complaints.append(
                Complaint(
                    Reason.SHADOWED,
                    name,
                    f"{name} (hook {chain.hook}, priority {chain.priority}) decides before ours; what it "
                    "redirects or accepts by NAT never reaches the proxy",
                    "remove the chain, or give it a priority above -101",
                )
            )
        elif not (chain.table == "nat" and chain.family in leftover_tables):
            complaints.append(
                Complaint(
                    Reason.FOREIGN_RULES,
                    name,
                    # Without their number: a busy firewall must not fill the log.
                    f"{name} has rules behind ours; ours decide first",
                    "nothing to do, unless it redirects what you expect to be direct",
                )
            )
    return tuple(complaints)


def _leftover(entry: Leftover) -> Complaint:
    subject = f"linkerd-init IPv{entry.family} ({entry.flavour})"
    if entry.state == "unknown":
        message = f"a legacy nat table is in the pod, of linkerd-init or of another: {entry.why}"
        return Complaint(Reason.LEFTOVER, subject, message, "harmless beside ours, if it is linkerd-init's")
    remedy = "harmless beside ours; `pointsman cleanup` removes exactly these"
    return Complaint(Reason.LEFTOVER, subject, entry.progress, remedy)


def _competes(chain: Chain) -> bool:
    ours = chain.family == "inet" and chain.table == TABLE
    nat = chain.type == "nat" and chain.hook in ("prerouting", "output")
    return nat and chain.rules > 0 and not ours
