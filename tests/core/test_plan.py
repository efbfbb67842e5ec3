"""Which goal a pod has, given its objects."""

from typing import Any

import pytest

from agent.core.plan import Goal, InitState, init_state, plan
from agent.core.redirect import derive
from agent.core.spec import NodeDefaults
from tests.build import pod

INIT = [{"name": "linkerd-init"}]


def init_status(state: dict[str, Any] | None) -> list[dict[str, Any]]:
    return [{"name": "linkerd-init", "state": state}]


def goal(takeover: bool = False, **fields: Any) -> Goal:
    one = pod(**fields)
    return plan(one, derive(one, None, NodeDefaults()), takeover).goal


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, Goal.REDIRECT),
        ({"meshed": False}, Goal.CLEAR),
        ({"annotations": {"pointsman.io/redirect": "disabled"}}, Goal.CLEAR),
        ({"hostNetwork": True}, Goal.RELEASE),
        ({"phase": "Succeeded"}, Goal.RELEASE),
        ({"initContainers": INIT, "phase": "Pending"}, Goal.WAIT),
        ({"initContainers": INIT}, Goal.REDIRECT_UNLESS_IPTABLES),
        ({"initContainers": INIT, "initContainerStatuses": init_status({"running": {}})}, Goal.WAIT),
        ({"initContainers": INIT, "initContainerStatuses": init_status(None)}, Goal.WAIT),
        (
            {"initContainers": INIT, "initContainerStatuses": init_status({"terminated": {"exitCode": 0}})},
            Goal.REDIRECT_UNLESS_IPTABLES,
        ),
        (
            {"initContainers": INIT, "initContainerStatuses": init_status({"terminated": {"exitCode": 137}})},
            Goal.REDIRECT,
        ),
    ],
)
def test_p02_goal_of_a_pod(fields: dict[str, Any], expected: Goal) -> None:
    assert goal(**fields) is expected


def test_takeover_does_not_leave_a_complete_rule_set_alone() -> None:
    ended = init_status({"terminated": {"exitCode": 0}})
    assert goal(True, initContainers=INIT, initContainerStatuses=ended) is Goal.REDIRECT
    running = init_status({"running": {}})
    assert goal(True, initContainers=INIT, initContainerStatuses=running) is Goal.WAIT


def test_a_pod_without_linkerd_init_has_no_state_of_it() -> None:
    assert init_state(pod()) is InitState.NONE


@pytest.mark.parametrize(
    ("init", "meshed", "expected"),
    [
        ([{"name": "migrate"}], True, True),
        ([{"name": "linkerd-network-validator"}], True, False),
        ([{"name": "linkerd-proxy"}, {"name": "migrate"}], False, False),
        ([], True, False),
    ],
)
def test_p07_which_pods_have_containers_that_run_before_their_proxy(
    init: list[dict[str, Any]], meshed: bool, expected: bool
) -> None:
    one = pod(meshed=meshed, initContainers=init)
    assert plan(one, derive(one, None, NodeDefaults())).before_proxy is expected
