"""The benchmark of the destination service, on a small cluster: it ends with the agreed keys."""

import json
import os
import subprocess
import sys

import pytest

from tests.bench.cluster import Cluster, Size, hot, pod_ip

KEYS = [
    *("bench", "streams", "us_per_stream", "bare_us_per_stream", "ratio_bare", "us_per_stream_100ep"),
    *("open_ms", "lost", "latency_p50_ms", "latency_p99_ms", "rss_mib", "rss_streams_mib", "load_s"),
]


@pytest.mark.skipif(os.geteuid() != 0, reason="benchmarks are run as root")
def test_destination() -> None:
    command = [sys.executable, "-m", "tests.bench.destination", "--pods", "500", "--services", "100"]
    command += ["--slices", "250", "--own", "5", "--seconds", "1", "--rounds", "3", "--scale", "10", "50"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=110)
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])
    assert list(figures) == [*KEYS, "event_us_10", "event_us_50"]
    assert (figures["bench"], figures["streams"], figures["lost"]) == ("destination", 230, 0)
    assert all(value > 0 for key, value in figures.items() if key not in ("bench", "lost"))


def test_the_cluster_is_the_same_each_time_and_of_the_size_that_was_asked() -> None:
    size = Size(pods=300, services=60, slices=150, own=11)
    one, other = Cluster(size), Cluster(size)
    assert list(one.slices()) == list(other.slices())
    assert one.questions == other.questions
    assert [len(questions) for questions in one.questions] == [46] * 11
    assert len(list(one.services())) == 60
    assert {each["metadata"]["labels"]["kubernetes.io/service-name"] for each in one.slices()} == {
        each["metadata"]["name"] for each in one.services()
    }


def test_every_pod_that_an_answer_names_is_there() -> None:
    cluster = Cluster(Size(pods=300, services=60, slices=150, own=11))
    there = {each["status"]["podIP"] for each in cluster.pods()}
    named = {
        address
        for number in cluster.slices_asked()
        for endpoint in cluster.slice(number)["endpoints"]
        for address in endpoint["addresses"]
    }
    assert named <= there


def test_hot_services_are_apart_from_the_cluster() -> None:
    cluster = {pod_ip(number) for number in range(10_000)}
    for count in (1, 100):
        _, slice_, pods = hot(f"hot-{count}", count, 110)
        assert len(pods) == len(slice_["endpoints"]) == count
        assert not {each["status"]["podIP"] for each in pods} & cluster
