"""What is not on the wire, of each kind of answer."""

import msgspec
import pytest

from agent.core.discovery.answers import Address, Answer, Ended, Endpoints, Lack, Profile, Twofold
from agent.core.discovery.explanation import Explanation, Standing, explanation
from agent.core.reasons import Complaint, Reason

FAILED = Address("10.0.0.1", 80, withheld=Reason.NOT_REDIRECTED, redirection="failed")
GOOD = Address("10.0.0.2", 80, identity="somebody", redirection="redirected")
STANDINGS = (Standing("10.0.0.1", 80, "failed", "NotRedirected"), Standing("10.0.0.2", 80, "redirected"))
COMPLAINT = Complaint(Reason.ADDRESS_CLAIMED, "10.0.0.1", "two claim it")
LACKS = (Lack("kind", "Pod"), Lack("pod", "a", "shop"), Lack("pod", "b", "shop"))


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Endpoints(False), Explanation()),
        (Endpoints(True, (FAILED, GOOD)), Explanation(addresses=STANDINGS)),
        (Profile(), Explanation()),
        (Profile(opaque=True, rule="default opaque ports"), Explanation(rule="default opaque ports")),
        (
            Profile(endpoint=FAILED, rule="annotation of the Pod", complaints=(COMPLAINT,)),
            Explanation("annotation of the Pod", STANDINGS[:1], (COMPLAINT,)),
        ),
        (Ended("it is an ExternalName"), Explanation()),
        (Twofold(None, Profile(rule="default opaque ports"), frozenset(LACKS)), Explanation(lacking=LACKS)),
        (
            Twofold(Profile(rule="default opaque ports"), None),
            Explanation(rule="default opaque ports"),
        ),
    ],
)
def test_an_answer_explains_itself_to_a_new_stream(answer: Answer, expected: Explanation) -> None:
    found = explanation(answer)

    assert found == expected
    assert msgspec.json.decode(msgspec.json.encode(found), type=Explanation) == expected
