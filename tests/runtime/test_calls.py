"""How containerd calls a CNI plugin: the facts that the shim and the agent are built on."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.lab.containerd import Containerd, containerd
from tests.lab.cri import Refused
from tests.lab.images import Built
from tests.lab.record import Call, calls, fail
from tests.runtime.kubelet import wait

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"
ENTRY = {"type": "record", "capabilities": {ANNOTATIONS: True}, "ours": {"deep": ["as", "it", "is"]}}
LATER = {"cniVersion": "1.0.0", "code": 11, "msg": "not redirected yet", "details": "try again"}


@pytest.fixture
def runtime(tmp_path: Path, built: Built) -> Iterator[Containerd]:
    with containerd(tmp_path, built, [ENTRY]) as made:
        yield made


@pytest.fixture
def plugin(runtime: Containerd) -> Path:
    return runtime.plugins / "record"


def _verbs(plugin: Path) -> list[str]:
    return [call.verb for call in calls(plugin)]


def _only(found: list[Call]) -> Call:
    (one,) = found
    return one


def test_add_tells_the_pod_and_its_netns(runtime: Containerd, plugin: Path) -> None:
    sandbox = runtime.cri.run_pod("web", "shop", uid="6f1e7d3b-0d5e-4c38-8a1f-3f6c2a9b1c11")
    add = _only(calls(plugin))
    assert add.env.keys() == {
        "CNI_COMMAND", "CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME", "CNI_ARGS", "CNI_PATH"
    }  # fmt: skip
    assert (add.verb, add.env["CNI_IFNAME"]) == ("ADD", "eth0")
    assert add.env["CNI_CONTAINERID"] == sandbox
    assert add.env["CNI_PATH"] == str(runtime.plugins)
    assert add.env["CNI_NETNS"] == runtime.cri.pod(sandbox).netns
    assert add.env["CNI_NETNS"].startswith("/var/run/netns/cni-")
    assert add.args == {
        "IgnoreUnknown": "1",
        "K8S_POD_NAMESPACE": "shop",
        "K8S_POD_NAME": "web",
        "K8S_POD_UID": "6f1e7d3b-0d5e-4c38-8a1f-3f6c2a9b1c11",
        "K8S_POD_INFRA_CONTAINER_ID": sandbox,
    }


def test_cni_args_come_in_any_order(runtime: Containerd, plugin: Path) -> None:
    sandbox = runtime.cri.run_pod("web")
    for _ in range(30):
        runtime.cri.stop_pod(sandbox)
    orders = {tuple(call.args) for call in calls(plugin)}
    assert len(orders) > 1
    assert len({frozenset(order) for order in orders}) == 1


def test_add_has_the_entry_and_the_result_so_far(runtime: Containerd, plugin: Path) -> None:
    sandbox = runtime.cri.run_pod("web")
    conf = _only(calls(plugin)).conf
    result = conf.pop("prevResult")
    conf.pop("runtimeConfig")
    assert conf == {**ENTRY, "cniVersion": "1.0.0", "name": "lab"}
    assert result.keys() == {"cniVersion", "interfaces", "ips", "routes", "dns"}
    assert result["cniVersion"] == "1.0.0"
    host, pod = result["interfaces"]
    assert "sandbox" not in host
    assert (pod["name"], pod["sandbox"]) == ("eth0", runtime.cri.pod(sandbox).netns)
    ip = runtime.cri.pod(sandbox).ip
    assert result["ips"] == [{"address": f"{ip}/16", "gateway": "10.88.0.1", "interface": 1}]


@pytest.mark.parametrize("annotations", [{"config.linkerd.io/skip-outbound-ports": "3306", "empty": ""}, {}])
def test_pod_annotations_come_by_capability(
    runtime: Containerd, plugin: Path, annotations: dict[str, str]
) -> None:
    """Of a pod without any, the value is null."""
    sandbox = runtime.cri.run_pod("web", annotations=annotations)
    runtime.cri.stop_pod(sandbox)
    assert _verbs(plugin) == ["ADD", "DEL"]
    for call in calls(plugin):
        assert call.conf["runtimeConfig"] == {ANNOTATIONS: annotations or None}


def test_annotations_need_the_capability(tmp_path: Path, built: Built) -> None:
    with containerd(tmp_path, built, [{"type": "record"}]) as runtime:
        runtime.cri.run_pod("web", annotations={"any": "thing"})
        assert "runtimeConfig" not in _only(calls(runtime.plugins / "record")).conf


def test_del_comes_twice_and_the_second_time_without_netns(runtime: Containerd, plugin: Path) -> None:
    sandbox = runtime.cri.run_pod("web")
    netns = runtime.cri.pod(sandbox).netns
    runtime.end_pod(sandbox)
    add, stop, remove = calls(plugin)
    assert (add.verb, stop.verb, remove.verb) == ("ADD", "DEL", "DEL")
    assert (stop.env["CNI_NETNS"], stop.conf["prevResult"]) == (netns, add.conf["prevResult"])
    assert (remove.env["CNI_NETNS"], "prevResult" in remove.conf) == ("", False)
    for call in (stop, remove):
        assert call.env["CNI_CONTAINERID"] == sandbox
        assert call.args == add.args


def test_del_comes_with_every_stop(runtime: Containerd, plugin: Path) -> None:
    sandbox = runtime.cri.run_pod("web")
    for _ in range(3):
        runtime.cri.stop_pod(sandbox)
    assert _verbs(plugin) == ["ADD", "DEL", "DEL", "DEL"]
    assert [call.env["CNI_NETNS"] == "" for call in calls(plugin)] == [False, False, True, True]


def test_a_failed_add_is_followed_by_one_del(runtime: Containerd, plugin: Path) -> None:
    fail(plugin, LATER)
    with pytest.raises(Refused, match=r'type="record" failed \(add\): not redirected yet; try again'):
        runtime.cri.run_pod("web")
    add, delete = calls(plugin)
    assert (add.verb, delete.verb) == ("ADD", "DEL")
    assert delete.env["CNI_NETNS"] == add.env["CNI_NETNS"] != ""
    assert "prevResult" not in delete.conf
    assert runtime.cri.pods() == []
    assert not runtime.node.seen(add.env["CNI_NETNS"]).exists()

    fail(plugin, None)
    runtime.cri.run_pod("web")
    # The retry is another sandbox, in another namespace.
    again = calls(plugin)[2]
    assert again.env["CNI_CONTAINERID"] != add.env["CNI_CONTAINERID"]
    assert again.env["CNI_NETNS"] != add.env["CNI_NETNS"]


def test_host_network_makes_no_call(runtime: Containerd, plugin: Path) -> None:
    sandbox = runtime.cri.run_pod("agent", host_network=True)
    assert runtime.cri.pod(sandbox).ip == ""
    runtime.end_pod(sandbox)
    assert _verbs(plugin) == []


@pytest.mark.parametrize("end", [Containerd.stop, Containerd.kill])
def test_a_restarted_runtime_makes_no_call(runtime: Containerd, plugin: Path, end: Any) -> None:
    sandbox = runtime.cri.run_pod("web")
    end(runtime)
    runtime.start()
    assert _verbs(plugin) == ["ADD"]
    runtime.end_pod(sandbox)
    assert _verbs(plugin) == ["ADD", "DEL", "DEL"]


def test_a_chain_is_added_forwards_and_deleted_backwards(tmp_path: Path, built: Built) -> None:
    with containerd(tmp_path, built, [{"type": "record"}, {"type": "second"}]) as runtime:
        first, second = runtime.plugins / "record", runtime.add_plugin(built.record, "second")
        sandbox = runtime.cri.run_pod("web")
        # What the first one returned is what the second one got.
        assert calls(first)[0].conf["prevResult"] == calls(second)[0].conf["prevResult"]
        fail(second, LATER)
        with pytest.raises(Refused):
            runtime.cri.run_pod("other")
        assert _verbs(first) == _verbs(second) == ["ADD", "ADD", "DEL"]
        fail(second, None)
        runtime.end_pod(sandbox)
        assert _verbs(first)[3:] == _verbs(second)[3:] == ["DEL", "DEL"]
        fail(first, LATER)
        with pytest.raises(Refused):
            runtime.cri.run_pod("third")
        # Nobody is called after the one that failed, but all are to undo.
        assert _verbs(first)[5:] == ["ADD", "DEL"]
        assert _verbs(second)[5:] == ["DEL"]


def test_a_new_chain_counts_for_old_pods_too(runtime: Containerd, plugin: Path, built: Built) -> None:
    """A pod's DEL goes by the chain of that moment: perhaps without its ADD, or not at all."""
    old = runtime.cri.run_pod("old")
    second = runtime.add_plugin(built.record, "second")
    runtime.write_chain([{"type": "second"}])

    def noticed() -> bool:
        runtime.end_pod(runtime.cri.run_pod("probe"))
        return bool(calls(second))

    wait(noticed, "call by the new chain")
    before = len(calls(plugin)), len(calls(second))
    runtime.end_pod(old)
    assert len(calls(plugin)) == before[0]
    deletes = calls(second)[before[1] :]
    assert [call.verb for call in deletes] == ["DEL", "DEL"]
    assert {call.env["CNI_CONTAINERID"] for call in deletes} == {old}


def test_without_a_conflist_pods_can_neither_start_nor_stop(runtime: Containerd, plugin: Path) -> None:
    sandbox = runtime.cri.run_pod("web")
    runtime.conflist.unlink()
    wait(lambda: not runtime.cri.ready(), "notice that the conflist is gone")
    with pytest.raises(Refused, match="cni plugin not initialized"):
        runtime.cri.run_pod("other")
    with pytest.raises(Refused, match="cni plugin not initialized"):
        runtime.cri.stop_pod(sandbox)
    runtime.write_chain([ENTRY])
    wait(runtime.cri.ready, "notice of the conflist")
    runtime.end_pod(sandbox)
    assert _verbs(plugin) == ["ADD", "DEL", "DEL"]


def test_a_truncated_conflist_is_as_none(runtime: Containerd) -> None:
    text = runtime.conflist.read_text()
    runtime.conflist.write_text("")
    wait(lambda: not runtime.cri.ready(), "notice that the conflist is empty")
    runtime.conflist.write_text(text)
    wait(runtime.cri.ready, "notice of the conflist")


def test_a_file_moved_in_from_elsewhere_is_not_noticed(runtime: Containerd) -> None:
    """So a writer must have its temporary file in the directory itself, under a name that is no conf's."""
    outside = runtime.directory / "outside"
    outside.write_text(runtime.conflist.read_text())
    runtime.conflist.unlink()
    wait(lambda: not runtime.cri.ready(), "notice that the conflist is gone")
    outside.rename(runtime.conflist)
    time.sleep(1)
    assert not runtime.cri.ready()
    inside = runtime.conflist.with_suffix(".new")
    inside.write_text(runtime.conflist.read_text())
    inside.rename(runtime.conflist)
    wait(runtime.cri.ready, "notice of the conflist")


def test_many_pods_at_once_are_told_apart(runtime: Containerd, plugin: Path) -> None:
    names = [f"web-{number}" for number in range(20)]
    with ThreadPoolExecutor(len(names)) as kubelet:
        sandboxes = list(kubelet.map(runtime.cri.run_pod, names))
        told = {call.args["K8S_POD_NAME"]: call for call in calls(plugin)}
        assert len(calls(plugin)) == len(told) == 20
        for name, sandbox in zip(names, sandboxes, strict=True):
            assert told[name].env["CNI_CONTAINERID"] == sandbox
            assert told[name].env["CNI_NETNS"] == runtime.cri.pod(sandbox).netns
        assert len({call.conf["prevResult"]["ips"][0]["address"] for call in calls(plugin)}) == 20
        list(kubelet.map(runtime.end_pod, sandboxes))
    # This containerd never calls CHECK, STATUS, GC or VERSION.
    assert sorted(_verbs(plugin)) == ["ADD"] * 20 + ["DEL"] * 40
