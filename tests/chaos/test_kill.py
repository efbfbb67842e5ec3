"""`kill -9` of the agent at any moment leaves every pod untouched or complete, and lets nothing escape.

`KILLS` agents (default 200) are started over the same pods and killed: at a random moment after the start,
right after one of their commits, or while pods are changed and harmed under an agent that had
come to rest. `CHAOS_SEED` repeats a sequence of choices; the moments themselves cannot be repeated.
"""

import collections
import contextlib
import functools
import os
import random
import select
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.connector import connecting
from tests.chaos.subject import HARM, LISTS, Subject, lists, subjects
from tests.chaos.tables import OFF
from tests.lab.agent import Agent, agent
from tests.lab.pod import pod_and_world
from tests.node.pods import socket_in

KILLS = int(os.environ.get("KILLS", "200"))
SEED = int(os.environ.get("CHAOS_SEED", str(random.SystemRandom().randrange(1 << 32))))

pytestmark = [
    pytest.mark.skipif(os.geteuid() != 0, reason="makes network namespaces: run as root"),
    pytest.mark.timeout(max(600, 3 * KILLS)),
]


@pytest.fixture
def dice() -> random.Random:
    # Shown by pytest when the test fails.
    print(f"CHAOS_SEED={SEED}")
    return random.Random(SEED)


@contextlib.contextmanager
def steady_and_others(one: Agent, others: int) -> Iterator[tuple[Subject, list[Subject]]]:
    """A pod that is redirected already and has connections all the while, and others without a table.

    At the end no connection may have escaped or have been lost.
    """
    with pod_and_world() as place, subjects(others) as rest:
        steady = Subject("steady", place.name)
        steady.want(one, steady.annotations)
        one.start()
        one.wait_reason("default/steady", "Redirected")
        one.kill()
        for pod in rest:
            one.put(pod.manifest)
        with connecting(place) as finish:
            yield steady, rest
            report = finish()
        for tally in (report.out, report.inward):
            assert tally.opened > 100
            assert (tally.escaped, tally.lost) == (0, 0), report


def test_c01_killed_at_any_moment_no_pod_is_left_half_done(tmp_path: Path, dice: random.Random) -> None:
    phases: collections.Counter[str] = collections.Counter()
    with contextlib.ExitStack() as stack:
        owning, plain = (
            stack.enter_context(agent(tmp_path, "--table-ownership", each, name=each, start=False))
            for each in ("auto", "off")
        )
        steady, others = stack.enter_context(steady_and_others(owning, 5))
        everybody = [steady, *others]
        for _ in range(KILLS):
            one = dice.choice((owning, plain))
            _prepare(one, steady, others, dice)
            how = dice.choice((_killed_while_starting, _killed_while_writing, _killed_at_work))
            how(one, everybody, dice)
            phases[_phase(everybody)] += 1
        print(phases)
        _heal(owning, everybody)
    assert KILLS < 50 or min(phases[name] for name in ("before", "between", "after")) > 0, phases


def _prepare(one: Agent, steady: Subject, others: list[Subject], dice: random.Random) -> None:
    """While no agent runs: some objects change, some tables are harmed, and some pods are new."""
    if dice.random() < 0.5:
        steady.want(one, lists(dice))
    for pod in others:
        match dice.choice(("update", "disable", "harm", "harm", "nothing")):
            case "update":
                pod.want(one, lists(dice))
            case "disable":
                pod.want(one, OFF)
            case "harm" if not pod.disabled:
                pod.harm(dice.choice(HARM))
    for pod in (steady, *others):
        pod.begin()


def _killed_while_starting(one: Agent, everybody: list[Subject], dice: random.Random) -> None:
    one.start(wait=False)
    time.sleep(dice.uniform(0, 0.6))
    one.kill()


def _killed_while_writing(one: Agent, everybody: list[Subject], dice: random.Random) -> None:
    """At once, or a moment, after the first commit in the first, second, ... of the pods."""
    with contextlib.ExitStack() as stack:
        poll = select.poll()
        for pod in everybody:
            poll.register(stack.enter_context(socket_in(pod.netns)).fileno(), select.POLLIN)
        left = dice.randint(1, max(1, sum(pod.before != pod.goal for pod in everybody)))
        pause = dice.choice((0, 0, dice.uniform(0, 0.003)))
        one.start(wait=False)
        while left > 0 and (ready := poll.poll(1500)):
            left -= len(ready)
            for fd, _ in ready:
                poll.unregister(fd)
        if pause:
            time.sleep(pause)
        one.kill()


def _killed_at_work(one: Agent, everybody: list[Subject], dice: random.Random) -> None:
    """The agent heals everything first; then it is killed while pods change."""
    _heal(one, everybody)
    steady, *others = everybody
    for pod in dice.sample(others, 3):
        if pod.disabled or dice.random() < 0.5:
            pod.want(one, dice.choice((OFF, lists(dice))))
        else:
            pod.harm(dice.choice(HARM))
    steady.want(one, lists(dice))
    time.sleep(dice.uniform(0, 0.03))
    one.kill()


def _heal(one: Agent, everybody: list[Subject]) -> None:
    """Start an agent over whatever the last one has left, and wait until all is well."""
    one.start()
    for pod in everybody:
        one.wait(functools.partial(_is_well, pod), f"healing of {pod.name}")


def _writes(one: Agent) -> bool:
    """This very process answers, and it holds the lock."""
    state = one.state()
    return bool(state["pid"] == one.pid and state["writer"])


def _is_well(pod: Subject) -> bool:
    return pod.now() == pod.goal


def _phase(everybody: list[Subject]) -> str:
    """How far the agent had come; every pod is checked, whatever it was."""
    changed = [(pod, pod.check()) for pod in everybody]
    done = {found == pod.goal for pod, found in changed if pod.before != pod.goal}
    return "between" if len(done) == 2 else "after" if done == {True} else "before" if done else "nothing"


def test_killed_in_the_overlap_the_successor_takes_over(tmp_path: Path, dice: random.Random) -> None:
    """Two agents at once, the first killed at random: the second holds the lock, and claims every table."""
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(agent(tmp_path, name="first", start=False))
        two = stack.enter_context(agent(tmp_path, name="second", start=False))
        steady, others = stack.enter_context(steady_and_others(one, 4))
        everybody = [steady, *others]
        for pod in everybody:
            pod.want(one, lists(dice))
        one.start()
        for _ in range(max(1, KILLS // 10)):
            for pod in everybody:
                one.wait(functools.partial(_is_well, pod), f"redirection of {pod.name}")
                pod.begin()
            two.start(wait=False)
            time.sleep(dice.uniform(0, 0.3))
            for pod in dice.sample(everybody, 2):
                pod.want(one, {**pod.annotations, **lists(dice)})
            time.sleep(dice.uniform(0, 0.3))
            one.kill()
            for pod in everybody:
                pod.check()
            two.wait(functools.partial(_writes, two), "the lock")
            for pod in everybody:
                two.wait_reason(f"default/{pod.name}", "Redirected")
                two.wait(functools.partial(_is_well, pod), f"takeover of {pod.name}")
            one, two = two, one


def test_the_lists_leave_the_connector_alone() -> None:
    """Or no escape could be seen."""
    from agent.core.ports import parse_ports
    from tests.chaos.connector import APP_PORT, PEER_PORT

    for text in LISTS:
        ports = parse_ports(text).ports
        assert PEER_PORT not in ports
        assert APP_PORT not in ports
