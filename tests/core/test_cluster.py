"""The picture: what an event touches, and that nothing is keyed by name or IP."""

import msgspec

from agent.core.cluster import Cluster
from agent.core.names import PodKey
from agent.core.objects import Drop, Metadata, Namespace, Pod, PodSpec, Put, Replace, Service
from tests.build import api_service, namespace, pod


def test_replace_lists_and_touches_all_pods_of_it() -> None:
    cluster = Cluster()
    assert cluster.apply(Replace(Pod, (pod(uid="a"), pod("db", uid="b")))) == {"a", "b"}
    assert cluster.listed == {Pod}


def test_replace_drops_what_is_not_listed_any_more() -> None:
    cluster = Cluster()
    cluster.apply(Replace(Pod, (pod(uid="a"), pod("db", uid="b"))))
    assert cluster.apply(Replace(Pod, (pod(uid="a"),))) == {"b"}
    assert set(cluster.pods) == {"a"}


def test_equal_put_touches_nobody() -> None:
    cluster = Cluster()
    cluster.apply(Put(pod()))
    assert cluster.apply(Put(pod())) == set()


def test_g06_a_late_drop_of_the_old_uid_leaves_the_new_pod_of_that_name() -> None:
    cluster = Cluster()
    old, new = pod(uid="old", podIP="10.99.0.2"), pod(uid="new", podIP="10.99.0.2")
    cluster.apply(Put(old))
    cluster.apply(Put(new))
    assert cluster.apply(Drop(old)) == {"old"}
    assert cluster.pods == {"new": new}
    found = cluster.find(PodKey("default", "web"))
    assert found is not None
    assert found.uid == "new"


def test_namespace_annotation_touches_its_pods_only_when_it_changes() -> None:
    cluster = Cluster()
    cluster.apply(Put(pod(uid="a")))
    cluster.apply(Put(pod(uid="b", namespace="other")))
    key = "config.linkerd.io/skip-outbound-ports"
    assert cluster.apply(Put(namespace("default", **{key: "25"}))) == {"a"}
    assert cluster.apply(Put(namespace("default", **{key: "25"}))) == set()
    assert cluster.apply(Drop(namespace("default"))) == {"a"}


def test_c16_api_server_ports_are_followed() -> None:
    cluster = Cluster()
    cluster.apply(Put(pod()))
    assert cluster.api_server_ports() is None
    assert cluster.apply(Put(api_service((443, 6443)))) == {"uid-1"}
    assert str(cluster.api_server_ports()) == "443,6443"
    cluster.apply(Put(api_service((443, "https"))))
    assert str(cluster.api_server_ports()) == "443"


def test_other_services_touch_nobody() -> None:
    cluster = Cluster()
    cluster.apply(Put(pod()))
    other = msgspec.convert({"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}}, Service)
    assert cluster.apply(Put(other)) == set()
    assert cluster.apply(Replace(Namespace, ())) == set()


def test_pods_of_other_nodes_are_none_of_its_business() -> None:
    cluster = Cluster("here")
    own, other, nowhere = (
        Pod(Metadata(name, uid=name), PodSpec(node_name=node))
        for name, node in (("own", "here"), ("other", "there"), ("nowhere", None))
    )
    assert cluster.apply(Replace(Pod, (own, other, nowhere))) == {"own", "nowhere"}
    assert set(cluster.pods) == {"own", "nowhere"}
    assert cluster.apply(Drop(other)) == set()
    assert Cluster().apply(Put(other)) == {"other"}
