"""python -m tests.demo [--keep]: the story, told and checked. Exits with 1 when a claim does not hold."""

import os
import platform
import subprocess
import sys
import time

import click

from tests.demo import answers, harm, insight, lasting, redirection
from tests.demo.interrupts import Interrupts
from tests.demo.keep import keep_running
from tests.demo.network import GATEWAY
from tests.demo.program import adopt_orphans
from tests.demo.stage import APPLICATION_UID, PROXY_UID, Stage, home
from tests.demo.tell import Broken, Teller, eventually
from tests.lab.agent import Gone

CHAPTERS = (
    redirection.pods_are_found,
    redirection.connections_arrive,
    redirection.skipped_ports_are_direct,
    harm.linkerd_init_is_killed,
    harm.ruleset_is_flushed,
    harm.rule_is_deleted,
    lasting.annotation_changes,
    lasting.agent_is_killed,
    answers.pods_ask,
    insight.explained,
    insight.measured,
)

FAILURES = (Broken, Gone, AssertionError, RuntimeError, OSError, LookupError, subprocess.TimeoutExpired)
"""What ends the story in words; anything else is a fault of the demo, with a traceback."""


@click.command()
@click.option("--keep", is_flag=True, help="Leave everything running afterwards, until Ctrl-C.")
@click.option(
    "--table-ownership",
    "ownership",
    type=click.Choice(["auto", "off"]),
    default="auto",
    show_default=True,
    help="off: as on a kernel without owned tables.",
)
def main(keep: bool, ownership: str) -> None:
    """Show on this machine's kernel what pointsman does. Needs root."""
    if os.geteuid() != 0:
        print("cannot make network namespaces: run as root", file=sys.stderr)
        sys.exit(2)
    adopt_orphans()
    interrupts = Interrupts()
    interrupts.listen()
    tell = Teller()
    try:
        with home():
            stage = Stage(interrupts, ownership)
            seconds = story(stage, tell, keep)
        conclude(stage, tell, seconds)
    except FAILURES as error:
        tell.failed(str(error))
        sys.exit(1)
    except KeyboardInterrupt:
        tell.line("\nInterrupted. Everything is removed.")
        sys.exit(130)


def story(stage: Stage, tell: Teller, keep: bool) -> float:
    """All chapters, then whatever the reader tries, then the end of the stage.

    Returns the seconds that the chapters took.
    """
    began = time.monotonic()
    try:
        tell.line(f"pointsman on Linux {platform.release()}: every step is real, and checked as it is told.")
        stage.build()
        introduce(stage, tell)
        for chapter in CHAPTERS:
            chapter(stage, tell)
        took = time.monotonic() - began
        if keep:
            keep_running(stage, tell)
    except Broken:
        for agent in (stage.agent, stage.plain):
            if agent.log.exists():
                tell.line(f"\nThe last lines of {agent.log}:")
                tell.show(agent.tail())
        raise
    finally:
        with stage.interrupts.shielded():
            stage.close()
    return took


def introduce(stage: Stage, tell: Teller) -> None:
    """Who plays."""
    pods = ", ".join(f"{pod.name} ({pod.address})" for pod in stage.pods)
    tell.say(
        f"On the stage: pods {pods}, and a client outside the mesh ({GATEWAY}). A pod is a network namespace "
        f"with an application (uid {APPLICATION_UID}) and a stand-in for Linkerd's proxy (uid {PROXY_UID}): "
        "inbound port 4143, outbound port 4140. The stand-in knows nothing but what the kernel says about "
        "a connection's original destination (SO_ORIGINAL_DST)."
    )


def conclude(stage: Stage, tell: Teller, seconds: float) -> None:
    """The last lines: nothing is left behind, and what has been shown."""
    nothing: list[str] = []
    tell.line()
    tell.fact(
        "nothing is left behind: no process, no namespace, no file",
        got=eventually(stage.remains, nothing),
        want=nothing,
    )
    flushes = "one flush refused and one repaired" if stage.owned else "one flush repaired"
    tell.line(
        f"\nVerified: {tell.facts} claims in {seconds:.0f} s. {len(stage.pods)} pods redirected, "
        f"{stage.connections} connections followed, one half-made linkerd-init healed and cleaned up, "
        f"{flushes}, one deleted rule repaired, one agent killed and its tables adopted, two questions about "
        "destinations answered as they changed."
    )


if __name__ == "__main__":
    main()
