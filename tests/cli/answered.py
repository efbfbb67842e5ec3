"""Profiles made by hand, under the names of the golden files that Go printed of them."""

from agent.core.discovery.answers import (
    Address,
    All,
    AnyOf,
    Hint,
    Method,
    Not,
    Override,
    Path,
    Profile,
    Ref,
    ResponseClass,
    RetryBudget,
    Route,
    Status,
)

IDENTITY = "default.shop.serviceaccount.identity.linkerd.cluster.test"
NAME = "web.shop.svc.cluster.test"

MESHED = Address(
    "10.1.2.3",
    3306,
    labels=(("pod", "web-0"), ("serviceaccount", "default"), ("namespace", "shop"), ("zone", "")),
    identity=IDENTITY,
    server_name=IDENTITY,
    hint=Hint("opaque", 4143),
    http2=True,
)

ROUTES = (
    Route(
        All((Method("GET"), Not(Path("/a/<b>&c\u2028.*")))),
        responses=(
            ResponseClass(AnyOf((Status(500, 599), Not(Status(low=404)))), failure=True),
            ResponseClass(All(())),
        ),
        labels=(("route", "GET <b>"), ("a", "ä\u0001\u007f\b\n")),
        retryable=True,
        timeout=1_200_000_000,
    ),
    Route(Method("PURGE")),
    Route(Path("")),
)

PROFILES = {
    "empty": Profile(),
    "bare": Profile(retry_budget=RetryBudget(), endpoint=Address("192.0.2.1", 80)),
    "pod": Profile(opaque=True, retry_budget=RetryBudget(), endpoint=MESHED),
    "detected": Profile(endpoint=Address("0.0.0.0", 1, weight=0, hint=Hint(transport_port=4143))),
    "workload": Profile(
        retry_budget=RetryBudget(0.1, 0, 1_500_000_000),
        endpoint=Address(
            "2001:db8::ffff:68",
            65535,
            labels=(("external_workload", "vm"),),
            weight=100_000,
            identity="spiffe://cluster.test/vm",
            server_name="vm.cluster.test",
            uri=True,
            hint=Hint("h2"),
            authority="vm.shop.svc.cluster.test:80",
        ),
    ),
    "loopback6": Profile(endpoint=Address("::1", 80, hint=Hint())),
    "service": Profile(
        name=NAME,
        retry_budget=RetryBudget(),
        parent=Ref("core", "Service", "web", "shop", 80),
    ),
    "routes": Profile(
        name=NAME,
        opaque=True,
        routes=ROUTES,
        retry_budget=RetryBudget(1.0, 10, 60_000_000_000),
        overrides=(Override("web-1.shop.svc.cluster.test:80", 10_000), Override("web-2:80", 0)),
        parent=Ref("core", "Service", "web", "shop", 80),
        source=Ref("linkerd.io", "ServiceProfile", NAME, "shop"),
    ),
    "tiny": Profile(retry_budget=RetryBudget(1.5e-7, 4_294_967_295, 1)),
    "small": Profile(retry_budget=RetryBudget(2e-6)),
    "third": Profile(retry_budget=RetryBudget(1 / 3)),
    "large": Profile(retry_budget=RetryBudget(1.1e20)),
    "larger": Profile(retry_budget=RetryBudget(3e38)),
}
