"""Chapters 4 to 6: what others do to a pod's rules, and what becomes of it."""

import datetime

from tests.demo.journey import follow, travel
from tests.demo.network import Pod
from tests.demo.redirection import introduce
from tests.demo.rules import TABLE, Ran, handles, rule_handle, run_in
from tests.demo.stage import Stage, seen_by
from tests.demo.tell import Teller, eventually
from tests.lab.agent import JSON
from tests.linkerd_init import COMMANDS, INBOUND_ONLY

FIREWALL = "table inet appfw {\n chain input {\n  type filter hook input priority 0\n  counter\n }\n}\n"
"""What an application may have made for itself."""

INIT_ENDED_WELL = {
    "initContainerStatuses": [{"name": "linkerd-init", "state": {"terminated": {"exitCode": 0}}}]
}


def linkerd_init_is_killed(stage: Stage, tell: Teller) -> None:
    tell.heading("A linkerd-init is killed half way")
    job, commands = stage.job, COMMANDS()
    tell.say(
        f"In pod job, linkerd-init is killed after {INBOUND_ONLY} of its {len(commands)} iptables commands. "
        "Its next run finds a chain of its name, takes that for all of its rules, and ends with 0. "
        "Kubernetes shows a healthy pod. First without the agent:"
    )
    for command in commands[:INBOUND_ONLY]:
        ran = run_in(job, *command)
        if ran.status:
            raise RuntimeError(f"cannot run {' '.join(command)}: {ran.error}")
    follow(
        tell,
        travel(stage, None, job),
        "inbound is proxied, so nobody notices anything",
        "inbound proxy of job",
    )
    follow(
        tell,
        travel(stage, job, stage.db),
        "outbound is not: it leaves job in clear text",
        "inbound proxy of db",
    )
    tell.say("Now the agent sees the pod.")
    job.seen.clear()  # these were not counted by rules of ours
    details = {"initContainers": [{"name": "linkerd-init"}], "status": INIT_ENDED_WELL}
    introduce(stage.agent, job, **details)
    status = seen_by(stage.agent, job).status
    tell.fact(
        f"it does not believe the chain: all rules {status.how}, in {status.install_ms:.2f} ms",
        got=status.how,
        want="installed",
    )
    for one in status.complaints:
        tell.show(f"{one.reason}: {one.message}")
    tell.fact(
        "and it reports what it has found",
        got=sorted(one.reason.value for one in status.complaints),
        want=["InitResultMismatch", "LeftoverRules"],
    )
    follow(
        tell,
        travel(stage, job, stage.db),
        "outbound is proxied too",
        "outbound proxy of job",
        "inbound proxy of db",
    )
    follow(tell, travel(stage, None, job), "inbound still is, once", "inbound proxy of job")
    _clean(stage, tell)


def _clean(stage: Stage, tell: Teller) -> None:
    tell.say("The old rules are harmless beside the agent's. On request they go:")
    cleaned, _ = stage.pointsman(tell, "cleanup", stage.job.key, "--yes")
    saved = run_in(stage.job, "iptables-nft-save", "-t", "nat").output
    tell.fact(
        "nothing of linkerd-init is left",
        got=(cleaned, "PROXY_INIT" in saved, stage.agent.reason(stage.job.key)),
        want=(0, False, "Redirected"),
    )
    follow(
        tell,
        travel(stage, stage.job, stage.db),
        "and job is redirected by the agent's rules alone",
        "outbound proxy of job",
        "inbound proxy of db",
    )


def ruleset_is_flushed(stage: Stage, tell: Teller) -> None:
    tell.heading("Somebody runs `nft flush ruleset` in a pod")
    if stage.owned:
        _flush_owned(stage, tell)
    else:
        tell.say("Owned tables, which the kernel protects, are not to be had here; so the plain one only.")
    _flush_plain(stage, tell)


def _flush_owned(stage: Stage, tell: Teller) -> None:
    web, before = stage.web, handles(stage.web)
    tell.say("Pod web first, whose table the agent owns. Its application has a firewall table too, appfw.")
    run_in(web, "nft", "-f", "-", script=FIREWALL)
    flush = _attack(tell, web, "nft", "flush", "ruleset")
    tables = run_in(web, "nft", "list", "tables").output.split("\n")
    tell.fact(
        "the kernel empties appfw and leaves the agent's table alone: every handle is as before",
        got=("table inet appfw" in tables, handles(web) == before),
        want=(False, True),
    )
    culprit = eventually(lambda: seen_by(stage.agent, web).status.culprit, f"nft[{flush.pid}]")
    status = seen_by(stage.agent, web).status
    tell.fact(
        f"the agent reports the attempt, with the culprit {culprit}; nothing had to be repaired",
        got=(culprit, status.drifts),
        want=(f"nft[{flush.pid}]", 0),
    )
    refused = _attack(tell, web, "nft", "delete", *TABLE)
    tell.show(refused.error)
    tell.fact(
        "to delete it by name is refused as well",
        got=(refused.status, "Operation not permitted" in refused.error, handles(web) == before),
        want=(1, True, True),
    )


def _flush_plain(stage: Stage, tell: Teller) -> None:
    shop = stage.shop
    tell.say(
        "Pod shop has a plain table, kept by a second agent that runs with --table-ownership off: here "
        "the flush does its work."
    )
    stage.start(stage.plain)
    introduce(stage.plain, shop)
    flush = _attack(tell, shop, "nft", "flush", "ruleset")
    repair = _repair(stage, tell, flush, 1)
    tell.fact(
        f"repaired within {_since(flush, repair):.0f} ms of the start of nft (commit "
        f"{repair['install_ms']:.2f} ms); culprit {repair['culprit']}; found: {_differences(repair)}",
        got=(repair["culprit"], repair["differences"]),
        want=(f"nft[{flush.pid}]", ["table missing"]),
    )
    follow(
        tell,
        travel(stage, shop, stage.db),
        "and shop is redirected as before",
        "outbound proxy of shop",
        "inbound proxy of db",
    )


def rule_is_deleted(stage: Stage, tell: Teller) -> None:
    tell.heading("Somebody deletes one rule")
    shop = stage.shop
    tell.say("Without this one rule, everything that shop sends would be in clear text.")
    handle = rule_handle(shop, "out-redirect")
    delete = _attack(tell, shop, "nft", "delete", "rule", *TABLE[1:], "output", "handle", handle)
    repair = _repair(stage, tell, delete, 2)
    tell.fact(
        f"repaired within {_since(delete, repair):.0f} ms; culprit {repair['culprit']}; named in words: "
        f"{_differences(repair)}",
        got=(repair["culprit"], any("out-redirect" in text for text in repair["differences"])),
        want=(f"nft[{delete.pid}]", True),
    )
    follow(
        tell,
        travel(stage, shop, stage.db),
        "and what shop sends goes through its proxy",
        "outbound proxy of shop",
        "inbound proxy of db",
    )


def _attack(tell: Teller, pod: Pod, *command: str) -> Ran:
    tell.command(" ".join(command), pod.name)
    return run_in(pod, *command)


def _repair(stage: Stage, tell: Teller, attack: Ran, number: int) -> JSON:
    """The agent's log line of its repair of that number. Broken when it does not come, or nft has failed."""
    repairs = eventually(lambda: len(stage.plain.events("drift repaired")), number)
    tell.fact("nft succeeds, and the agent notices", got=(attack.status, repairs), want=(0, number))
    return stage.plain.events("drift repaired")[-1]


def _since(attack: Ran, line: JSON) -> float:
    """Milliseconds from the start of a command to a log line."""
    return (datetime.datetime.fromisoformat(line["timestamp"]).timestamp() - attack.at) * 1000


def _differences(line: JSON) -> str:
    return "; ".join(line["differences"])
