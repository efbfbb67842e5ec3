"""Chapters 7 and 8: settings change and agents die; connections do not."""

import time

from tests.demo.journey import Conversation, follow, travel
from tests.demo.manifests import pod_of
from tests.demo.redirection import SKIP_OUT
from tests.demo.rules import counter, handles
from tests.demo.stage import Stage, seen_by
from tests.demo.tell import Teller, eventually


def annotation_changes(stage: Stage, tell: Teller) -> None:
    tell.heading("An annotation changes while connections are open")
    web, db = stage.web, stage.db
    follow(
        tell,
        travel(stage, web, db, 5432),
        "so far, port 5432 goes through both proxies",
        "outbound proxy of web",
        "inbound proxy of db",
    )
    with Conversation(stage, web, (db.address, 8080)) as conversation:
        conversation.ask()
        conversation.hops()
        before = handles(web, "chain", "set", "counter")
        tell.say(f"A connection to port 8080 stays open. Now web gets {SKIP_OUT}: 3306,5432.")
        began = time.monotonic()
        stage.agent.put(pod_of(web, annotations={SKIP_OUT: "3306,5432"}))
        how = eventually(lambda: seen_by(stage.agent, web).status.how, "updated")
        took = (time.monotonic() - began) * 1000
        tell.fact(
            f"updated in place after {took:.0f} ms: chains, sets and counters keep their handles",
            got=(how, handles(web, "chain", "set", "counter") == before),
            want=("updated", True),
        )
        tell.fact(
            "the open connection goes on, still through both proxies",
            got=(conversation.ask("still there?")["line"], conversation.hops()),
            want=("still there?", ()),
        )
    follow(
        tell,
        travel(stage, web, db, 5432),
        "a new connection to port 5432 leaves web directly",
        "inbound proxy of db",
    )


def agent_is_killed(stage: Stage, tell: Teller) -> None:
    tell.heading("The agent is killed and starts again")
    web, db = stage.web, stage.db
    with Conversation(stage, web, (db.address, 8080)) as conversation:
        conversation.ask()
        conversation.hops()
        before, counted = handles(web), counter(web, "out_redirect")
        tell.command(f"kill -9 {stage.agent.pid}")
        stage.agent.kill()
        follow(
            tell,
            travel(stage, web, db),
            "without any agent, the rules stand and do their work",
            "outbound proxy of web",
            "inbound proxy of db",
        )
        began = time.monotonic()
        stage.start(stage.agent)
        took = time.monotonic() - began
        how = seen_by(stage.agent, web).status.how
        done = f"{how} by one message" if stage.owned else "found equal, nothing written"
        tell.fact(
            f"{took:.1f} s after its start the new agent has read and compared every table: {done}",
            got=(how, stage.agent.reason(web.key)),
            want=("claimed" if stage.owned else "", "Redirected"),
        )
        now = counter(web, "out_redirect")
        tell.fact(
            f"adopted as it is: every handle is as before, and its counter went on from {counted} to {now}",
            got=(handles(web) == before, now),
            want=(True, counted + 1),
        )
        tell.fact(
            "a connection that was open all the while goes on",
            got=conversation.ask("still there?")["line"],
            want="still there?",
        )
