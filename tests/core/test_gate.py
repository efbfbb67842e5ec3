"""What the CNI gate answers, by the state of a pod's redirection, and where a pod is, by what CNI told."""

import msgspec
import pytest

from agent.core.attachments import Attachment, Attachments
from agent.core.cluster import Cluster
from agent.core.gate import Answer, announced, injected, judge, refusal
from agent.core.lifecycle import Redirection
from agent.core.names import PodKey
from agent.core.objects import Drop, Metadata, Namespace, Pod, Put, Replace
from agent.core.plan import Goal, plan
from agent.core.reasons import MEANINGS, Reason
from agent.core.redirect import derive
from agent.core.spec import NodeDefaults

WEB = PodKey("shop", "web")
MADE_HERE = "0b2d3c4e-5f60-5a7b-8c9d-0e1f2a3b4c5d"
UID = "0b2d3c4e-5f60-4a7b-8c9d-0e1f2a3b4c5d"

PASS = {
    Reason.REDIRECTED,
    Reason.IPTABLES,
    Reason.DRAINING,
    Reason.INIT_RUNNING,
    Reason.OBSERVED,
    Reason.NOT_MESHED,
    Reason.HOST_NETWORK,
    Reason.NAMESPACE_EXCLUDED,
    Reason.DISABLED,
    Reason.FINISHED,
}
REFUSE = {Reason.NETNS_MISSING, Reason.NETNS_MISMATCH}


@pytest.mark.parametrize("reason", [reason for reason, meaning in MEANINGS.items() if meaning.phase])
def test_every_reason_has_its_answer(reason: Reason) -> None:
    phase = MEANINGS[reason].phase
    assert phase is not None
    want = Answer.PASS if reason in PASS else Answer.REFUSE if reason in REFUSE else Answer.WAIT
    assert judge(Redirection(phase=phase, reason=reason)) is want


def test_a_refusal_names_the_pod_the_reason_and_the_remedy() -> None:
    message, details = refusal(WEB, Redirection(reason=Reason.COMPILE_FAILED, message="it is broken"))
    assert message == "cannot redirect pod shop/web (CompileFailed): it is broken"
    assert details == MEANINGS[Reason.COMPILE_FAILED].remedy


def test_a_refusal_for_a_netns_that_the_runtime_named_speaks_of_no_annotation() -> None:
    message, details = refusal(WEB, Redirection(reason=Reason.NETNS_MISSING, message="no file"))
    assert message == "cannot redirect pod shop/web (NetnsMissing): no file"
    assert "/run/netns" in details
    assert "pointsman.io/netns" not in details


def attached(container: str = "c1", ifname: str = "eth0", **given: object) -> Attachment:
    return Attachment(
        container, ifname, **{"netns": f"/run/netns/{container}", "pod": WEB, "uid": UID, **given}
    )


def test_the_last_sandbox_of_a_pod_stands_until_it_is_forgotten() -> None:
    all_of_them = Attachments()
    first, second = attached(), attached("c2")
    all_of_them.put(first)
    all_of_them.put(second)
    assert all_of_them.of(UID, WEB) == second
    all_of_them.forget([second])
    assert all_of_them.of(UID, WEB) == first
    all_of_them.forget([first])
    assert all_of_them.of(UID, WEB) is None
    assert len(all_of_them) == 0


def test_more_about_a_sandbox_changes_nothing_of_which_is_the_last() -> None:
    all_of_them = Attachments()
    first, second = attached(), attached("c2")
    all_of_them.put(first)
    all_of_them.put(second)
    late = msgspec.structs.replace(first, let_through=True)
    assert all_of_them.note(late)
    assert all_of_them.of_container("c1") == (late,)
    assert all_of_them.of(UID, WEB) == second
    all_of_them.forget([late])
    assert not all_of_them.note(late)
    assert all_of_them.of_container("c1") == ()


def test_a_second_interface_is_an_attachment_of_its_own() -> None:
    all_of_them = Attachments()
    one, two = attached(), attached(ifname="net1")
    all_of_them.put(one)
    all_of_them.put(two)
    assert set(all_of_them.of_container("c1")) == {one, two}
    assert all_of_them.of_container("c1", "net1") == (two,)
    all_of_them.forget([two])
    assert all_of_them.of(UID, WEB) == one


@pytest.mark.parametrize(
    ("told", "known", "found"),
    [(UID, UID, True), (UID, MADE_HERE, True), ("", UID, True), (UID, UID.replace("0b", "ff"), False)],
)
def test_a_name_counts_only_where_a_side_has_no_uid_of_its_own(told: str, known: str, found: bool) -> None:
    all_of_them = Attachments()
    all_of_them.put(attached(uid=told))
    assert (all_of_them.of(known, WEB) is not None) is found


def test_an_injected_pod_is_known_by_its_annotations() -> None:
    told = attached(annotations={"linkerd.io/proxy-version": "edge", "x": "y"}, ips=("10.0.0.9",))
    assert injected(told)
    assert not injected(attached(annotations={"linkerd.io/inject": "enabled"}))
    assert not injected(attached())
    pod = announced(told)
    derivation = derive(pod, None, NodeDefaults(), None)
    assert (pod.key, pod.uid, pod.ips) == (WEB, UID, ("10.0.0.9",))
    assert plan(pod, derivation).goal is Goal.REDIRECT
    assert announced(attached(uid="")).uid == "c1"


def test_an_announced_pod_gives_way_to_its_object_and_never_comes_back() -> None:
    cluster = Cluster()
    runtime = Pod(Metadata("web", "shop", UID, annotations={"from": "runtime"}))
    source = Pod(Metadata("web", "shop", UID, annotations={"from": "source"}))
    cluster.announce(runtime)
    assert cluster.pod(UID) == runtime
    assert UID not in cluster.pods
    assert cluster.apply(Put(Namespace(Metadata("shop")))) == {UID}
    # A list without it is no proof that it has ended: the source may lag behind the runtime.
    cluster.apply(Replace(Pod, ()))
    assert cluster.pod(UID) == runtime
    cluster.apply(Put(source))
    cluster.announce(runtime)
    assert cluster.pod(UID) == source
    cluster.apply(Drop(source))
    assert cluster.pod(UID) is None
    cluster.announce(runtime)
    cluster.withdraw(UID)
    assert cluster.pod(UID) is None
