"""ServiceProfile specs into routes: spec section 9. Names of tests are ids of cases."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.discovery.answers import (
    All,
    AnyOf,
    Match,
    Method,
    Not,
    Path,
    ResponseClass,
    RetryBudget,
    Route,
    Status,
)
from agent.core.discovery.objects import ServiceProfile
from agent.core.discovery.serviceprofiles import DEEPEST, ProfileFacts, read_profile
from agent.core.meta import Metadata

ANY = {"pathRegex": "/"}


def read(spec: Any) -> ProfileFacts:
    item = ServiceProfile(Metadata(name="web.shop.svc.cluster.test", namespace="shop"), spec)
    facts, complaints = read_profile(item)
    assert facts.broken == any(complaint.subject == "spec" for complaint in complaints)
    return facts


def route(**fields: Any) -> Route:
    facts = read({"routes": [{"name": "r", "condition": ANY, **fields}]})
    assert not facts.broken
    return facts.routes[0]


PATH, PRIVATE = Path("/my/path"), Not(Path("/private/.*"))


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"method": "GET", "pathRegex": "/my/path"}, All((Method("GET"), PATH))),
        (
            {"all": [{"method": "get"}, {"not": {"pathRegex": "/private/.*"}}]},
            All((Method("GET"), PRIVATE)),
        ),
        (
            {"any": [{"method": "PURGE"}, {"pathRegex": "/x"}], "not": {"method": "POST"}},
            All((AnyOf((Method("PURGE"), Path("/x"))), Not(Method("POST")))),
        ),
        ({"all": []}, All(())),
        ({"any": []}, AnyOf(())),
        ({"all": None, "method": "", "pathRegex": "/"}, Path("/")),
        ({"pathRegex": "/", "any": [], "all": []}, All((All(()), AnyOf(()), Path("/")))),
    ],
)
def test_e10_conditions_of_requests(condition: Any, expected: Match) -> None:
    found = route(condition=condition)
    assert found.condition == expected
    assert found.labels == (("route", "r"),)


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        ({"status": {"min": 500, "max": 599}}, Status(500, 599)),
        (
            {"status": {"min": 400, "max": 499}, "not": {"status": {"min": 404}}},
            All((Status(400, 499), Not(Status(404, 0)))),
        ),
        (
            {"any": [{"status": {"min": 500}}, {"all": [{"status": {"max": 420}}]}]},
            AnyOf((Status(500, 0), All((Status(0, 420),)))),
        ),
        ({"status": {}}, Status(0, 0)),
    ],
)
def test_e11_conditions_of_responses(condition: Any, expected: Match) -> None:
    found = route(responseClasses=[{"condition": condition, "isFailure": True}, {"condition": condition}])
    assert found.responses == (ResponseClass(expected, True), ResponseClass(expected, False))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("200ms", 200_000_000),
        ("1.5s", 1_500_000_000),
        ("1h2m", 3720 * 10**9),
        ("250us", 250_000),
        ("0s", 0),
        ("0", 0),
        ("", 0),
        ("1d", 0),
        ("10", 0),
        ("-1s", 0),
    ],
)
def test_e12_timeouts(text: str, expected: int) -> None:
    assert route(timeout=text).timeout == expected


def test_a_bad_timeout_costs_only_itself_and_is_told() -> None:
    item = ServiceProfile(
        Metadata(name="w"), {"routes": [{"name": "r", "condition": ANY, "timeout": "soon"}]}
    )
    facts, complaints = read_profile(item)
    assert not facts.broken
    assert [complaint.message for complaint in complaints] == [
        "cannot read timeout 'soon' of route 'r' (ServiceProfile default/w): it has none"
    ]


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        ("500m", 5000),
        (1, 10_000),
        ("0.1", 1000),
        (0.1, 1000),
        ("0", 0),
        (None, 0),
        ("100u", 10),
        ("1E", 2**32 - 1),
    ],
)
def test_e13_weights(weight: Any, expected: int) -> None:
    assert read({"dstOverrides": [{"authority": "a:1", "weight": weight}]}).overrides == (("a:1", expected),)


NESTED: Any = ANY
for _ in range(DEEPEST):
    NESTED = {"not": NESTED}


@pytest.mark.parametrize(
    "spec",
    [
        7,
        [],
        "text",
        {"routes": "r"},
        {"routes": [None]},
        {"routes": [{"name": "r"}]},
        {"routes": [{"name": "r", "condition": None}]},
        {"routes": [{"name": "r", "condition": {}}]},
        {"routes": [{"name": "r", "condition": {"all": [None]}}]},
        {"routes": [{"name": "r", "condition": {"all": [{}]}}]},
        {"routes": [{"name": "r", "condition": {"any": {"method": "GET"}}}]},
        {"routes": [{"name": "r", "condition": {"not": "x"}}]},
        {"routes": [{"name": "r", "condition": {"method": 7}}]},
        {"routes": [{"name": "r", "condition": NESTED}]},
        {"routes": [{"name": 7, "condition": ANY}]},
        {"routes": [{"name": "r", "condition": ANY, "isRetryable": "yes"}]},
        {"routes": [{"name": "r", "condition": ANY, "timeout": 7}]},
        {"routes": [{"name": "r", "condition": ANY, "responseClasses": [{}]}]},
        {"routes": [{"name": "r", "condition": ANY, "responseClasses": [{"condition": {}}]}]},
        *(
            {
                "routes": [
                    {"name": "r", "condition": ANY, "responseClasses": [{"condition": {"status": status}}]}
                ]
            }
            for status in (
                {"min": 201, "max": 200},
                {"min": 99},
                {"max": 600},
                {"min": "500"},
                {"min": True},
                500,
            )
        ),
        {"retryBudget": {"ttl": "soon"}},
        {"retryBudget": {}},
        {"retryBudget": {"ttl": "10s", "retryRatio": "0.2"}},
        {"retryBudget": {"ttl": "10s", "minRetriesPerSecond": -1}},
        {"retryBudget": {"ttl": "10s", "minRetriesPerSecond": 2**32}},
        {"dstOverrides": [{"authority": "a", "weight": "heavy"}]},
        {"dstOverrides": [{"authority": "a", "weight": "-1"}]},
        {"dstOverrides": [{"authority": "a", "weight": True}]},
        {"dstOverrides": [{"authority": 7}]},
    ],
)
def test_e09_one_bad_thing_makes_a_profile_unreadable(spec: Any) -> None:
    good = {"routes": [{"name": "good", "condition": ANY}]}
    if isinstance(spec, dict) and isinstance(spec.get("routes"), list):
        spec = {**spec, "routes": [*good["routes"], *spec["routes"]]}
    facts = read(spec)
    assert facts.broken
    assert facts.routes == ()


def test_nothing_said_is_nothing_wrong() -> None:
    assert read(None) == read({}) == read({"routes": None, "retryBudget": None})
    assert not read(None).broken
    assert read({"retryBudget": {"ttl": "30s"}}).retry_budget == RetryBudget(0.0, 0, 30 * 10**9)


WORDS = (
    "routes condition all any not method pathRegex status min max name isRetryable isFailure "
    "responseClasses timeout retryBudget ttl dstOverrides authority weight"
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=3) | st.dictionaries(st.sampled_from(WORDS.split()), children, max_size=4)
    ),
    max_leaves=20,
)


@given(JSON)
def test_no_spec_raises(spec: Any) -> None:
    read(spec)
