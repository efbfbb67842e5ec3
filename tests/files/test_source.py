"""A directory of manifests as a source: whole picture first, then exact differences, nothing lost."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent.core.objects import Drop, Event, Pod, Put, Replace
from agent.files.manifests import KINDS, ManifestError, parse
from agent.files.source import FilesSource


def manifest(name: str, *, uid: str = "", **annotations: object) -> str:
    lines = ["apiVersion: v1", "kind: Pod", "metadata:", f"  name: {name}"]
    lines += [f"  uid: {uid}"] if uid else []
    lines += ["  annotations:"] if annotations else []
    lines += [f"    {key}: {value}" for key, value in annotations.items()]
    return "\n".join([*lines, "spec:", "  containers: [{name: linkerd-proxy}]", ""])


class Stream:
    def __init__(self, events: AsyncIterator[Event]) -> None:
        self._events = events

    async def next(self, seconds: float = 5.0) -> Event:
        async with asyncio.timeout(seconds):
            return await anext(self._events)

    async def start(self) -> tuple[Pod, ...]:
        first = [await self.next(30) for _ in KINDS]
        assert [type(event) for event in first] == [Replace] * len(KINDS)
        assert [event.kind for event in first if isinstance(event, Replace)] == [*KINDS]
        last = first[-1]
        assert isinstance(last, Replace)
        return last.items

    async def put(self) -> Pod:
        event = await self.next()
        assert isinstance(event, Put)
        assert isinstance(event.item, Pod)
        return event.item


@asynccontextmanager
async def stream(directory: Path, period: float = 0.05) -> AsyncIterator[Stream]:
    events = FilesSource(directory, period).events()
    try:
        yield Stream(events)
    finally:
        await events.aclose()  # type: ignore[attr-defined]


async def test_differences_are_exact(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("a", uid="u1"))
    async with stream(tmp_path) as events:
        assert [pod.uid for pod in await events.start()] == ["u1"]
        (tmp_path / "b.yaml").write_text(manifest("b", uid="u2"))
        assert (await events.put()).uid == "u2"
        (tmp_path / "a.yaml").write_text(manifest("a", uid="u1", x="y"))
        assert (await events.put()).annotations == {"x": "y"}
        (tmp_path / "b.yaml").unlink()
        gone = await events.next()
        assert isinstance(gone, Drop)
        assert gone.item.metadata.uid == "u2"


async def test_a_large_file_does_not_hold_up_the_loop(tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text("---\n".join(manifest(f"p{n}", uid=f"u{n}") for n in range(6000)))
    gaps = []

    async def tick() -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.001)
            gaps.append(time.monotonic() - before)

    ticking = asyncio.create_task(tick())
    began = time.monotonic()
    async with stream(tmp_path) as events:
        assert len(await events.start()) == 6000
    ticking.cancel()
    assert max(gaps) < (time.monotonic() - began) / 2


async def test_inotify_wakes_before_the_period(tmp_path: Path) -> None:
    async with stream(tmp_path, period=60) as events:
        await events.start()
        (tmp_path / "a.yaml").write_text(manifest("a"))
        assert (await events.put()).metadata.name == "a"


async def test_a_half_written_manifest_keeps_the_last_good_one(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(manifest("a", uid="u1"))
    async with stream(tmp_path) as events:
        await events.start()
        file.write_text(manifest("a", uid="u1", x="z")[:-20] + '  "')
        (tmp_path / "b.yaml").write_text(manifest("b"))
        assert (await events.put()).metadata.name == "b"
        file.write_text(manifest("a", uid="u1", x="z"))
        assert (await events.put()).annotations == {"x": "z"}


async def test_what_cannot_be_read_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "loop.yaml").symlink_to("loop.yaml")
    (tmp_path / "directory.yaml").mkdir()
    (tmp_path / "bad.yaml").write_text("{")
    async with stream(tmp_path) as events:
        await events.start()
        with pytest.raises(TimeoutError):
            await events.next(0.5)
    said = capsys.readouterr().out
    assert [said.count(name) for name in ("loop.yaml", "directory.yaml", "bad.yaml")] == [1, 1, 1]


async def test_a_file_is_read_again_when_its_time_was_set_back(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(manifest("a", uid="u1", x="1"))
    os.utime(file, ns=(1, 1))
    async with stream(tmp_path) as events:
        await events.start()
        file.write_text(manifest("a", uid="u1", x="2"))
        os.utime(file, ns=(1, 1))
        assert (await events.put()).annotations == {"x": "2"}


def test_words_that_are_no_text_to_yaml_are_named() -> None:
    for text in ("{name: on}", "{name: 8080}", "{name: a, namespace: off}"):
        with pytest.raises(ManifestError, match=r"is no name: (True|8080|False); quote it"):
            parse(f"kind: Pod\nmetadata: {text}\n")


def test_null_says_as_much_as_nothing() -> None:
    text = "kind: Pod\nmetadata: {name: a, namespace: null, annotations: null}\nspec: null\nstatus:\n"
    assert parse(text) == parse("kind: Pod\nmetadata: {name: a}\n")


@pytest.mark.parametrize("name", ["a/b", "a b", "a\nb", "\x1b[31m", "ä", "x" * 254])
def test_names_that_are_none(name: str) -> None:
    for metadata in ({"name": name}, {"name": "a", "namespace": name}):
        with pytest.raises(ManifestError, match="is no name"):
            parse(json.dumps({"kind": "Pod", "metadata": metadata}))


@pytest.mark.parametrize(
    "bad", ["{", "a: [", "- 1\n", "kind: Pod\n", "kind: Pod\nmetadata: {name: 3}\n", "\x00", "&a [*a]"]
)
async def test_one_bad_file_does_not_hide_the_others(tmp_path: Path, bad: str) -> None:
    (tmp_path / "bad.yaml").write_text(bad)
    (tmp_path / "good.yaml").write_text(manifest("good"))
    async with stream(tmp_path) as events:
        assert [pod.metadata.name for pod in await events.start()] == ["good"]


async def test_a_vanished_directory_removes_nothing(tmp_path: Path) -> None:
    directory = tmp_path / "manifests"
    directory.mkdir()
    (directory / "a.yaml").write_text(manifest("a", uid="u1"))
    async with stream(directory) as events:
        await events.start()
        directory.rename(tmp_path / "away")
        with pytest.raises(TimeoutError):
            await events.next(0.4)


async def test_a_pod_without_uid_is_another_one_when_its_netns_is(tmp_path: Path) -> None:
    place = tmp_path / "netns"
    (tmp_path / "a.yaml").write_text(manifest("a", **{"pointsman.io/netns": str(place)}))
    async with stream(tmp_path) as events:
        absent = (await events.start())[0].uid
        place.write_text("")
        dropped = await events.next()
        assert isinstance(dropped, Drop)
        assert dropped.item.metadata.uid == absent
        assert (await events.put()).uid != absent


async def test_the_first_of_two_objects_of_one_name_stands(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(manifest("same", uid="first"))
    (tmp_path / "b.yaml").write_text(manifest("same", uid="second"))
    async with stream(tmp_path) as events:
        assert [pod.uid for pod in await events.start()] == ["first"]


def test_numbers_in_annotations_are_taken_as_text() -> None:
    (pod,) = parse(manifest("a", **{"config.linkerd.io/skip-outbound-ports": 3306}))
    assert pod.metadata.annotations == {"config.linkerd.io/skip-outbound-ports": "3306"}


def test_lists_and_several_documents() -> None:
    listed = "kind: List\nitems: [{kind: Pod, metadata: {name: a}}, {kind: Secret}]\n"
    text = f"{listed}---\nkind: Namespace\nmetadata: {{name: n}}\n"
    assert [item.metadata.name for item in parse(text)] == ["a", "n"]


def test_an_error_names_document_object_and_field() -> None:
    with pytest.raises(ManifestError, match=r"document 2 \(Pod web\).*spec"):
        parse("kind: Namespace\nmetadata: {name: n}\n---\nkind: Pod\nmetadata: {name: web}\nspec: 3\n")
