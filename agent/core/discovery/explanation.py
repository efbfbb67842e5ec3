"""What an answer says besides its messages: for people, over the agent's own socket. Pure."""

from typing import Literal

import msgspec

from agent.core.discovery.answers import Address, Answer, Ended, Endpoints, Lack, Profile, Twofold
from agent.core.reasons import Complaint


class Standing(msgspec.Struct, frozen=True, rename="camel"):
    """One address of the answer. `redirection` "": nothing is known of its pod's; `withheld`: the Reason why
    it gets no identity although its pod is meshed, "" for none."""

    ip: str
    port: int
    redirection: Literal["", "redirected", "failed"] = ""
    withheld: str = ""


class Explanation(msgspec.Struct, frozen=True, rename="camel"):
    """`rule`: what decided whether a profile is opaque, "" where nothing had to. `addresses`: those of the
    answer, in its order. `lacking`: what a held answer waits for."""

    rule: str = ""
    addresses: tuple[Standing, ...] = ()
    complaints: tuple[Complaint, ...] = ()
    lacking: tuple[Lack, ...] = ()


def explanation(answer: Answer) -> Explanation:
    """Of an answer to a new stream."""
    match answer:
        case Twofold(first=first, lacking=lacking):
            found = Explanation() if first is None else explanation(first)
            waits = tuple(sorted(lacking, key=lambda lack: (lack.what, lack.namespace, lack.name)))
            return msgspec.structs.replace(found, lacking=waits)
        case Endpoints(addresses=addresses):
            return Explanation(addresses=tuple(map(stands, addresses)))
        case Profile():
            return Explanation(
                rule=answer.rule,
                addresses=() if answer.endpoint is None else (stands(answer.endpoint),),
                complaints=answer.complaints,
            )
        case Ended():
            return Explanation()


def stands(address: Address) -> Standing:
    return Standing(address.ip, address.port, address.redirection, address.withheld)
