"""What a step does, in words: sentences of a few shapes change the objects, whatever their names are."""

import re
from collections.abc import Callable

from tests.cases.discovery import acts, slices
from tests.cases.discovery.words import split
from tests.cases.discovery.world import World

Action = Callable[[re.Match[str], World], None]
_PARENTHESES = re.compile(r"\s*\([^()]*\)$")


def clauses(sentence: str) -> list[str]:
    """The single acts of a sentence, in order. `delete Service then slice` is two of one verb."""
    found: list[str] = []
    verb = ""
    for part in (
        each for semi in split(sentence, ";") for comma in split(semi, ",") for each in split(comma, " then ")
    ):
        act = part.removeprefix("then ").strip()
        if act.lower() in acts.KINDS and verb:
            act = f"{verb} {act}"
        verb = act.split(" ")[0]
        found.append(act)
    return [each for each in found if each]


def act_of(clause: str) -> Callable[[World], None] | None:
    """What carries out one clause; None when it is not understood. It may raise Unplayable."""
    for text in (clause, _PARENTHESES.sub("", clause)):
        for pattern, action in _SHAPES:
            if match := pattern.fullmatch(text):
                return lambda world, action=action, match=match: action(match, world)  # type: ignore[misc]
    return None


def _shape(pattern: str, action: Action) -> tuple[re.Pattern[str], Action]:
    return re.compile(pattern), action


_SHAPES: tuple[tuple[re.Pattern[str], Action], ...] = (
    _shape(r"(?:set|mark) (?P<name>\S+)(?: endpoint)? ready=(?P<ready>true|false)", slices.set_ready),
    _shape(
        r"delete (?:the )?(?P<kind>(?:client|server) (?:profile|sp)|[Ss]ervice|slice|pod|Server|sp|workload"
        r"|object)(?: (?P<name>\S+))?",
        acts.delete,
    ),
    _shape(r"(?P<kind>Service|Server) deleted", acts.delete),
    _shape(r"(?:delete|remove) endpoint (?P<name>\S+)", slices.leave),
    _shape(r"endpoint of pod (?P<name>\S+) leaves the slice", slices.leave),
    _shape(r"add endpoint (?P<endpoint>.+)", slices.add_endpoint),
    _shape(r"delete (?P<name>\S+)", acts.delete),
    _shape(r"slice with zero endpoints and zero ports", slices.empty_slice),
    _shape(r"hints (?P<zones>.+)", slices.hints),
    _shape(r"no hints", slices.hints),
    _shape(
        r"create slice with (?:one )?(?:(?P<ready>not-ready|ready) endpoint|(?P<ip>\S+) ready)",
        slices.create_slice,
    ),
    _shape(
        r"create Service (?P<name>\S+) port (?P<port>\d+) with one ready endpoint (?P<ip>\S+)",
        slices.create_service,
    ),
    _shape(r"create (?P<name>\S+) again(?: with (?P<ip>\S+))?", acts.create_again),
    _shape(r"create Server (?:(?!sel|in|with|port)(?P<name>\S+) )?(?P<words>.+)", acts.create_server),
    _shape(r"selector -> (?P<labels>\{.*\})", acts.server_change),
    _shape(r"selector back", acts.server_change),
    _shape(r"proto (?:-> )?(?P<protocol>\S+)(?: again)?", acts.server_change),
    _shape(r'(?:add|change to|set|annotation) "(?P<value>[^"]*)"', acts.annotate),
    _shape(r"remove|annotation removed", acts.annotate),
    _shape(r'Service recreated with "(?P<value>[^"]*)"', acts.recreate_service),
    _shape(r"(?P<how>change) identity annotation", slices.gateway_identity),
    _shape(r"identity annotation (?P<how>empty)", slices.gateway_identity),
    _shape(
        r"same annotations again|touch slice resourceVersion", lambda _, w: w.touch(w.only("EndpointSlice"))
    ),
    _shape(r"change spec\.meshTLS\.identity", acts.workload_identity),
    _shape(r"touch the (?P<kind>\w+)", acts.touch),
    _shape(r"bump pod resourceVersion|(?P<times>\d+) status updates", acts.heartbeat),
    _shape(r"re-deliver all objects unchanged", acts.redeliver),
    _shape(r"relist", lambda _, world: world.relist()),
    _shape(r"resync", lambda _, world: world.resync()),
    _shape(r"policy (?P<policy>Cluster|Local)", acts.policy),
    _shape(r"add port (?P<port>\d+) to the Service", acts.add_port),
    _shape(r"change the (?P<kind>(?:client|server) profile)", acts.profile_change),
    _shape(r"create (?P<kind>client|server) (?:profile|sp)", acts.profile_create),
    _shape(
        r"create ServiceProfile (?P<name>\S+) in namespace (?P<ns>\S+) with opaquePorts (?P<ports>\[.*\])",
        acts.profile_in,
    ),
    _shape(r"change (?P<name>\S+) to route (?P<route>\S+)", acts.profile_route),
    _shape(r"add a label to the sp", acts.label_profile),
    _shape(r"(?P<name>(?!pod )\S+ )?(?:pod )?becomes (?P<not>not )?Ready", acts.pod_ready),
    _shape(r"(?P<name>\S+) becomes Running", acts.pod_running),
    _shape(r"set deletionTimestamp", acts.pod_deleting),
    _shape(r"create second live pod (?P<name>\S+) on the same IP", acts.second_pod),
    _shape(
        r"create (?P<name>\S+) \(label (?P<label>[^)]+)\) with port name (?P<port>\S+ \S+)"
        r" and hostIPs \[(?P<ips>[^\]]+)\]",
        acts.host_port_pod,
    ),
    _shape(r"agent repairs (?P<name>\S+)", acts.repair),
    _shape(r"cut the watches", acts.cut),
    _shape(r"answer the resumption with 410", acts.resume),
    _shape(r"label kubernetes\.io/service-name -> (?P<service>\S+)", slices.move_slice),
)
