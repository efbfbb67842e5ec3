"""Which file a runtime uses, and our entry in it: by value, byte for byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.core.chain import TYPE, Entry, bare, settled
from agent.core.conflist import Edit, Fault, File, cleared, look, naming_us
from agent.core.jsontext import DEEPEST, appended, canonical, parse, without

ENTRY = Entry(exempt_namespaces=("kube-system",), agent_pod="linkerd-cni/linkerd-cni-")
PLUGIN = {
    "type": "pointsman-cni",
    "socket": "/run/pointsman/cni.sock",
    "whenAgentAway": "allow",
    "exemptNamespaces": ["kube-system"],
    "agentPod": "linkerd-cni/linkerd-cni-",
    "capabilities": {"io.kubernetes.cri.pod-annotations": True},
}
STALE = {"type": TYPE, "socket": "/run/old.sock"}
CALICO = """\
{
  "name": "k8s-pod-network",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "calico",
      "mtu": 1.50e3,
      "log": "caf\\u00e9"
    },
    {
      "type": "portmap",
      "snat": true,
      "capabilities": {"portMappings": true}
    }
  ]
}
"""


def listed(*plugins: Any, **members: Any) -> str:
    return json.dumps({"name": "net", "cniVersion": "1.0.0", "plugins": plugins} | members)


def one(kind: str, **members: Any) -> str:
    return json.dumps({"name": "net", "cniVersion": "0.3.1", "type": kind} | members)


def types(text: str) -> list[str]:
    return [plugin["type"] for plugin in json.loads(text)["plugins"]]


def after(*files: File) -> dict[str, str]:
    """The directory once the edits are made; they leave nothing more to do, and the entry current."""
    for _ in range(2):
        texts = {file.name: file for file in files}
        for edit in look(files, ENTRY).edits:
            texts.pop(edit.file, None)
            if edit.text is not None:
                texts[edit.file] = File(edit.file, edit.text)
        files = tuple(texts.values())
    assert look(files, ENTRY).edits == ()
    assert look(files, ENTRY).current
    return {file.name: file.text for file in files}


def test_the_entry_has_the_documented_form() -> None:
    assert ENTRY.plugin() == PLUGIN
    assert list(Entry().plugin()) == ["type", "socket", "whenAgentAway", "capabilities"]


def test_appended_last_and_laid_out_like_its_neighbours() -> None:
    (edit,) = look([File("10-calico.conflist", CALICO)], ENTRY).edits
    assert edit.text is not None
    head, tail = CALICO.rsplit("\n    }\n  ]", 1)
    entry = json.dumps(PLUGIN, indent=2).replace("\n", "\n    ")
    assert edit.text == f"{head}\n    }},\n    {entry}\n  ]{tail}"


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ('{"name":"a","plugins":[{"type":"x"}]}', '{"name":"a","plugins":[{"type":"x"},ENTRY]}'),
        ('{"name":"a","plugins":[ {"type":"x"} ]}', '{"name":"a","plugins":[ {"type":"x"}, ENTRY ]}'),
        (
            '{"plugins": [{"type": "x"},\t{"type": "y"}], "name": "a"}',
            '{"plugins": [{"type": "x"},\t{"type": "y"},\tENTRY], "name": "a"}',
        ),
        (
            '{"name": "a", "plugins": [\n  {"type": "x"}\n]}',
            '{"name": "a", "plugins": [\n  {"type": "x"},\n  ENTRY\n]}',
        ),
    ],
)
def test_formatting_is_kept(before: str, expected: str) -> None:
    merged = settled(before, ENTRY, insert=True)
    assert merged == expected.replace("ENTRY", json.dumps(PLUGIN))
    assert bare(merged) == before


def test_tabs_and_carriage_returns_are_kept() -> None:
    before = json.dumps(json.loads(CALICO), indent="\t").replace("\n", "\r\n")
    merged = settled(before, ENTRY, insert=True)
    assert '\t\t{\r\n\t\t\t"type": "pointsman-cni",\r\n' in merged
    assert "\n" not in merged.replace("\r\n", "")
    assert bare(merged) == before


def test_f09_two_and_a_stale_one_become_one_current_one() -> None:
    text = listed(PLUGIN, {"type": "calico"}, STALE, PLUGIN, {"type": "portmap"})
    merged = settled(text, ENTRY, insert=True)
    assert types(merged) == ["calico", "portmap", TYPE]
    assert json.loads(merged)["plugins"][-1] == PLUGIN
    assert settled(merged, ENTRY, insert=True) == merged


@pytest.mark.parametrize(
    "changed",
    [
        PLUGIN | {"whenAgentAway": "deny"},
        PLUGIN | {"more": 1},
        PLUGIN | {"capabilities": {"io.kubernetes.cri.pod-annotations": 1}},
        {key: value for key, value in PLUGIN.items() if key != "agentPod"},
    ],
)
def test_the_comparison_is_deep(changed: dict[str, Any]) -> None:
    text = listed({"type": "calico"}, changed)
    picture = look([File("a.conflist", text)], ENTRY)
    assert (picture.current, picture.position) == (False, 1)
    assert json.loads(settled(text, ENTRY, insert=True))["plugins"] == [{"type": "calico"}, PLUGIN]


def test_order_of_keys_and_blanks_is_no_change() -> None:
    shuffled = json.dumps(dict(reversed(PLUGIN.items())), indent=7)
    text = f'{{"name": "a", "plugins": [{{"type": "calico"}}, {shuffled}]}}'
    assert look([File("a.conflist", text)], ENTRY).edits == ()


@pytest.mark.parametrize("neighbour", ["linkerd-cni", "istio-cni"])
def test_a_neighbour_is_named_and_may_stand_last(neighbour: str) -> None:
    """Its installer moves it there whenever the file changes."""
    before = listed({"type": "calico"}, {"type": neighbour})
    merged = after(File("a.conflist", before))["a.conflist"]
    assert types(merged) == ["calico", neighbour, TYPE]
    moved = listed({"type": "calico"}, PLUGIN, {"type": neighbour})
    picture = look([File("a.conflist", moved)], ENTRY)
    assert (picture.edits, picture.neighbours, picture.position) == ((), (neighbour,), 1)


def test_what_else_stands_behind_ours_is_overtaken() -> None:
    merged = settled(listed({"type": "calico"}, PLUGIN, {"type": "portmap"}), ENTRY, insert=True)
    assert types(merged) == ["calico", "portmap", TYPE]


def test_the_first_usable_file_by_name_is_picked() -> None:
    files = [
        File("90-z.conflist", listed({"type": "z"})),
        File("10-é.conflist", listed({"type": "e"})),
        File("10-b.json", one("b")),
        File("05-broken.conflist", '{"name": "a", "plugins": ['),
        File("06-list.conf", listed({"type": "a"})),
        File("07-gone.conflist", fault="it is a symbolic link to nothing", plain=False),
    ]
    picture = look(files, ENTRY)
    assert picture.picked == "10-b.json"
    assert [edit.file for edit in picture.edits] == ["10-b-pointsman.conflist"]
    assert picture.broken == (
        Fault("05-broken.conflist", "expecting value, at line 1 column 27"),
        Fault("06-list.conf", "`type` is missing; a list must be named .conflist"),
        Fault("07-gone.conflist", "it is a symbolic link to nothing"),
    )


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expecting value, at line 1 column 1"),
        ("[]", "no JSON object"),
        (listed({"type": "a"}) + "x", "behind the end, at line 1"),
        ('{"name": "a", "plugins": [{"type": NaN}]}', "NaN is no JSON"),
        ('{"plugins": [{"type": "a"}]}', "`name` is missing"),
        ('{"name": "a", "plugins": []}', "`plugins` is missing or empty"),
        ('{"name": "a"}', "`plugins` is missing or empty"),
        (listed({"name": "x"}), "a plugin has no `type`"),
        (listed({"type": "a"}, cniVersion=1), "`cniVersion` is no string"),
        (listed(PLUGIN), "no plugin but pointsman-cni"),
        ("[" * 100_000, f"nested more than {DEEPEST} deep"),
    ],
)
def test_what_no_runtime_can_use_is_left_alone(text: str, why: str) -> None:
    picture = look([File("a.conflist", text)], ENTRY)
    assert (picture.picked, picture.edits) == ("", ())
    assert why in picture.broken[0].why


def test_f07_a_single_plugin_is_continued_in_a_list_that_comes_first() -> None:
    source = one("cilium-cni", **{"enable-debug": False})
    files = after(File("05-cilium.conf", source))
    assert files.pop("05-cilium.conf") == source
    ((name, text),) = files.items()
    assert name < "05-cilium.conf"
    assert json.loads(text) == {
        "cniVersion": "0.3.1",
        "name": "net",
        "plugins": [{"name": "net", "type": "cilium-cni", "enable-debug": False}, PLUGIN],
    }


def test_the_list_beside_follows_its_source_and_ends_with_it() -> None:
    files = [File(name, text) for name, text in after(File("05-a.conf", one("a"))).items()]
    beside = next(file for file in files if file.name != "05-a.conf")
    changed = after(beside, File("05-a.conf", one("a", mtu=9000)))
    assert json.loads(changed[beside.name])["plugins"][0]["mtu"] == 9000
    listed_now = File("05-a.conflist", listed({"type": "a"}))
    assert look([beside], ENTRY).edits == (Edit(beside.name, None),)
    edits = look([beside, listed_now], ENTRY).edits
    assert [(edit.file, edit.text is None) for edit in edits] == [
        ("05-a.conflist", False),
        (beside.name, True),  # last: at each moment there is a network, and ours in it
    ]


def test_the_list_beside_outlives_a_broken_source() -> None:
    files = [File(name, text) for name, text in after(File("05-a.conf", one("a"))).items()]
    beside = next(file for file in files if file.name != "05-a.conf")
    picture = look([beside, File("05-a.conf", '{"type":')], ENTRY)
    assert (picture.picked, picture.holder, picture.current) == ("05-a.conf", beside.name, True)
    assert [fault.file for fault in picture.broken] == ["05-a.conf"]


def test_what_a_neighbour_added_to_the_list_beside_stays() -> None:
    files = after(File("05-a.conf", one("a")))
    beside = files["05-a-pointsman.conflist"]
    with_istio = json.loads(beside)
    with_istio["plugins"].append({"type": "istio-cni"})
    there = (File("05-a.conf", one("a")), File("05-a-pointsman.conflist", json.dumps(with_istio)))
    assert look(there, ENTRY).edits == ()


def test_a_symbolic_link_is_continued_and_not_replaced() -> None:
    files = after(File("10-a.conflist", CALICO, plain=False))
    assert files["10-a.conflist"] == CALICO
    assert types(files["10-a-pointsman.conflist"]) == ["calico", "portmap", TYPE]


MULTUS = [
    one("multus", delegates=[json.loads(CALICO), {"type": "macvlan"}]),
    one("multus", delegates=[{"type": "ovn", "name": "ovn", "cniVersion": "0.4.0"}]),
    one("multus", delegates=[{"type": "weave-net"}], kubeconfig="/x"),
    one("multus", delegates=[{"name": "a", "cniVersion": "0.3.1", "plugins": [{"type": "calico"}]}]),
]


@pytest.mark.parametrize("text", MULTUS)
def test_multus_has_it_in_the_pods_default_network(text: str) -> None:
    files = after(File("00-multus.conf", text), File("10-calico.conflist", CALICO))
    default = json.loads(files["00-multus.conf"])["delegates"][0]
    assert default["name"]
    assert default["plugins"][-1] == PLUGIN
    assert files["10-calico.conflist"] == CALICO
    assert bare(files["00-multus.conf"]) == text


def test_multus_with_a_named_network_or_as_a_list_is_called_before_us() -> None:
    text = one("multus", clusterNetwork="default", delegates=[{"type": "unused"}])
    files = after(File("00-multus.conf", text))
    assert files["00-multus.conf"] == text
    assert types(files["00-multus-pointsman.conflist"]) == ["multus", TYPE]
    chained = listed({"type": "multus", "delegates": [json.loads(CALICO)]})
    assert types(after(File("00-multus.conflist", chained))["00-multus.conflist"]) == ["multus", TYPE]


def test_a_neighbour_inside_a_delegate_is_seen() -> None:
    text = one("multus", delegates=[json.loads(listed({"type": "calico"}, {"type": "linkerd-cni"}))])
    assert look([File("00-multus.conf", text)], ENTRY).neighbours == ("linkerd-cni",)


def test_an_entry_elsewhere_is_kept_current_and_none_is_added() -> None:
    """A multus that generates its configuration copies it from there."""
    files = after(
        File("00-multus.conf", MULTUS[0]),
        File("10-calico.conflist", listed({"type": "calico"}, STALE)),
        File("87-podman.conflist", listed({"type": "bridge"})),
    )
    assert json.loads(files["10-calico.conflist"])["plugins"] == [{"type": "calico"}, PLUGIN]
    assert types(files["87-podman.conflist"]) == ["bridge"]


def test_clearing_takes_all_of_ours_and_nothing_else() -> None:
    files = after(
        File("00-multus.conf", MULTUS[1]),
        File("05-a.conf", one("a")),
        File("05-a-pointsman.conflist", listed({"type": "a"}, STALE)),
        File("10-calico.conflist", settled(CALICO, ENTRY, insert=True)),
        File("20-podman.conflist", listed({"type": "bridge"})),
    )
    there = [File(name, text) for name, text in files.items()]
    assert naming_us(there) == ("00-multus.conf", "05-a-pointsman.conflist", "10-calico.conflist")
    assert cleared(there) == (
        Edit("00-multus.conf", MULTUS[1]),
        Edit("05-a-pointsman.conflist", None),
        Edit("10-calico.conflist", CALICO),
    )


def test_what_others_wrote_since_stays_when_ours_is_taken_out() -> None:
    merged = settled(CALICO, ENTRY, insert=True)
    edited = merged.replace("1.50e3", "9000").replace('"snat": true', '"snat":   false')
    expected = CALICO.replace("1.50e3", "9000").replace('"snat": true', '"snat":   false')
    assert cleared([File("a.conflist", edited)]) == (Edit("a.conflist", expected),)


def test_a_broken_file_that_names_us_cannot_be_cleared() -> None:
    file = File("a.conflist", settled(CALICO, ENTRY, insert=True)[:-5])
    assert cleared([file]) == ()
    assert naming_us([file]) == ("a.conflist",)


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
plugins = st.builds(
    lambda kind, more: more | {"type": kind},
    st.sampled_from(["calico", "portmap", "bridge", "linkerd-cni", "multus"]),
    st.dictionaries(st.text(), values, max_size=3),
)
layouts = st.sampled_from([None, 0, 1, 2, 4, "\t"])
ascii_only = st.booleans()


@given(
    st.lists(plugins, min_size=1, max_size=4),
    st.dictionaries(st.text(), values, max_size=3),
    layouts,
    ascii_only,
)
def test_merging_is_undone_byte_for_byte(
    chain: list[Any], more: dict[str, Any], indent: int | str | None, ascii_: bool
) -> None:
    document = more | {"name": "net", "plugins": chain}
    text = json.dumps(document, indent=indent, ensure_ascii=ascii_)
    merged = settled(text, ENTRY, insert=True)
    assert json.loads(merged) == document | {"plugins": [*chain, PLUGIN]}
    assert settled(merged, ENTRY, insert=True) == merged
    assert bare(merged) == text


@given(st.lists(plugins | st.sampled_from([PLUGIN, STALE]), min_size=1, max_size=6), layouts)
def test_whatever_was_there_ends_with_one_entry(chain: list[Any], indent: int | str | None) -> None:
    others = [plugin for plugin in chain if plugin["type"] != TYPE]
    text = json.dumps({"name": "net", "plugins": chain}, indent=indent)
    merged = json.loads(settled(text, ENTRY, insert=True))["plugins"]
    assert [plugin for plugin in merged if plugin["type"] != TYPE] == others
    assert [plugin for plugin in merged if plugin["type"] == TYPE] == [PLUGIN]
    behind = merged[merged.index(PLUGIN) + 1 :]
    assert all(plugin["type"] == "linkerd-cni" for plugin in behind)
    assert json.loads(bare(text))["plugins"] == others


@given(values, layouts, ascii_only)
def test_the_reader_agrees_with_pythons(value: Any, indent: int | str | None, ascii_: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_)
    node = parse(f" {text}\r\n\t")
    assert canonical(node.value) == canonical(value)
    assert f" {text}"[node.start : node.end] == text


@given(st.text(alphabet='{}[]",: \n\\0e-+.tfnrualse1x', max_size=40))
def test_the_reader_refuses_what_pythons_refuses(text: str) -> None:
    try:
        expected: Any = json.loads(text)
    except ValueError:
        with pytest.raises(ValueError, match="at line"):
            parse(text)
    else:
        assert canonical(parse(text).value) == canonical(expected)


@given(st.lists(values, min_size=1, max_size=5), values, layouts)
def test_an_element_put_in_can_be_taken_out(array: list[Any], value: Any, indent: int | str | None) -> None:
    text = json.dumps(array, indent=indent)
    longer = appended(text, parse(text), value)
    assert canonical(json.loads(longer)) == canonical([*array, value])
    assert without(longer, parse(longer), len(array)) == text


shapes = st.recursive(
    scalars | st.sampled_from(["x", TYPE, PLUGIN, STALE, {"type": "x"}]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "plugins", "delegates", "name", "cniVersion", "clusterNetwork"]),
            inner,
            max_size=5,
        )
    ),
    max_leaves=20,
)
names = st.sampled_from(
    ["00-a.conf", "00-a.conflist", "00-a.json", "00-a-pointsman.conflist", "10-b.conflist"]
)


@given(
    st.dictionaries(
        names, shapes | st.dictionaries(st.sampled_from(["type", "plugins", "delegates"]), shapes)
    )
)
def test_no_shape_is_too_strange(documents: dict[str, Any]) -> None:
    """It is either named as broken or left current; and nothing of ours is left at the end."""
    files = {name: File(name, json.dumps(document)) for name, document in documents.items()}
    for edit in look(tuple(files.values()), ENTRY).edits:
        files.pop(edit.file, None)
        if edit.text is not None:
            files[edit.file] = File(edit.file, edit.text)
    there = tuple(files.values())
    picture = look(there, ENTRY)
    assert picture.edits == ()
    assert picture.current == bool(picture.picked)
    for edit in cleared(there):
        files.pop(edit.file)
        if edit.text is not None:
            files[edit.file] = File(edit.file, edit.text)
    assert naming_us(tuple(files.values())) == ()
