"""Changing YAML text place by place."""

import json
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.bundle.yaml import parse_documents
from goondan_tasks.migration.yaml_text import UnchangeableText, YamlText

BLOCK = """\
# the first
apiVersion: old # why
spec:
  runtime: node # gone

  # about the entry
  entry: "./a.py"
  exports:
    - auth:
        scopes: [a,
          b]
      # its name
      name: 'x.y'
    - name: z
      auth: { scopes: [c] } # gone too
  policy:
    live:
      on: true
# after

---
# the second
{ a: 1, b: [2, 3], c: { d: 4 } }
"""


def changed(text: str, *paths: tuple[str | int, ...], document: int = 0) -> str:
    """Return ``text`` without the fields at ``paths``."""
    mended = YamlText(text)
    for path in paths:
        mended.document(document).remove(path)
    return mended.text


def test_field_is_replaced_or_renamed_alone() -> None:
    text = YamlText(BLOCK)

    text.document(0).replace(("apiVersion",), "new")
    text.document(0).replace(("spec", "entry"), "./b.py")
    text.document(0).replace(("spec", "exports", 0, "name"), "y")
    text.document(0).rename(("spec", "policy"), "rules")
    text.document(1).replace(("c", "d"), "5")

    expected = BLOCK.replace("apiVersion: old", "apiVersion: new").replace('"./a.py"', '"./b.py"')
    expected = expected.replace("'x.y'", "'y'").replace("policy:", "rules:").replace("d: 4", "d: '5'")
    assert text.text == expected


def test_removed_fields_take_lines_leaving_other_comments() -> None:
    mended = changed(
        BLOCK, ("spec", "runtime"), ("spec", "exports", 0, "auth"), ("spec", "exports", 1, "auth")
    )

    assert mended == BLOCK.replace("  runtime: node # gone\n", "").replace(
        "    - auth:\n        scopes: [a,\n          b]\n      # its name\n      name", "    - name"
    ).replace("      auth: { scopes: [c] } # gone too\n", "")


def test_mapping_goes_with_its_last_field() -> None:
    assert changed(BLOCK, ("spec", "policy", "live", "on")) == BLOCK.replace(
        "  policy:\n    live:\n      on: true\n", ""
    )
    assert changed("- { a: 1 }\n", (0, "a")) == "- {}\n"


@pytest.mark.parametrize(
    ("paths", "rest"),
    [
        ([("a",)], "{ b: [2, 3], c: { d: 4 } }"),
        ([("b",)], "{ a: 1, c: { d: 4 } }"),
        ([("c",)], "{ a: 1, b: [2, 3] }"),
        ([("c", "d")], "{ a: 1, b: [2, 3] }"),
        ([("b",), ("c",)], "{ a: 1 }"),
    ],
)
def test_field_of_flow_mapping_goes_with_its_comma(paths: list[tuple[str, ...]], rest: str) -> None:
    assert changed(BLOCK, *paths, document=1).splitlines()[-1] == rest


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
@pytest.mark.parametrize("end", ["", "\n", "\n# end\n", "\n\n"])
def test_last_field_goes_whatever_follows(end: str, newline: str) -> None:
    text = f"a: 1\nb: |\n  x\n\n  y\nc:{end}".replace("\n", newline)

    assert yaml.safe_load(changed(text, ("c",))) == {"a": 1, "b": "x\n\ny\n"}
    assert yaml.safe_load(changed(text, ("b",))) == {"a": 1, "c": None}
    assert yaml.safe_load(changed(text, ("b",), ("c",))) == {"a": 1}


def test_empty_documents_do_not_count() -> None:
    text = YamlText("---\n---\n# only a comment\n---\na: x\n--- ~\n---\nb: y\n...\n%YAML 1.1\n---\n'~'\n")

    text.document(0).replace(("a",), "1")
    text.document(1).replace(("b",), "2")

    assert [one for one in yaml.safe_load_all(text.text) if one] == [{"a": "1"}, {"b": "2"}, "~"]


def test_block_scalar_is_replaced_by_line() -> None:
    text = YamlText("a: >-\n  folded\n  text\nb: 1\n")

    text.document(0).replace(("a",), "plain")

    assert text.text == "a: plain\nb: 1\n"


@pytest.mark.parametrize(
    "name", ["1", "123", "1e5", "1e999", "0x1F", "null", "Null", "true", "FALSE", "no", "2024-01-01", "a"]
)
@pytest.mark.parametrize(
    "old", ["x", "'x'", '"x"', "|-\n    x", ">-\n    x\n", "!!str x", "!!int 1", "&a 'x'"]
)
def test_name_is_text_whatever_it_looks_like(old: str, name: str) -> None:
    for written in (f"a: {old}", f"- a: {old}\n", f"b: 1\na: {old}\nc: 2\n"):
        text = YamlText(written)
        place = (0, "a") if written.startswith("-") else ("a",)

        text.document(0).replace(place, name)

        [document], faults = parse_documents(text.text, "")
        found = document.data[0] if written.startswith("-") else document.data
        assert (found["a"], faults) == (name, [])


EXPLICIT = [
    ("? a\n: 1\nb: 2\n", "b: 2\n"),
    ("b: 2\n? a # why\n: 1", "b: 2\n"),
    ("b: 2\n? a\n# why\n:\n  - 1\nc: 3\n", "b: 2\nc: 3\n"),
    ("a: 1\n? b\n: 2\n", "? b\n: 2\n"),
    ("{ ? a : 1, b: 2 }", "{ ? b: 2 }"),
    ("{ b: 2, ? a : 1 }", "{ b: 2 }"),
]


@pytest.mark.parametrize(("text", "rest"), EXPLICIT)
def test_field_with_explicit_key_is_removed_like_others(text: str, rest: str) -> None:
    assert changed(text, ("a",)) == rest


TANGLED: list[tuple[str, tuple[str | int, ...]]] = [
    ("n: x\nb:\n  - ? a\n    : 1\n    b: 2\n", ("b", 0, "a")),
    ("n: x\nb:\n  - a: 1\n    ? b\n    : 2\n", ("b", 0, "a")),
    ("n: x\nd: &d { a: 5 }\nc: { <<: *d, a: 1 }\n", ("c", "a")),
    ("n: x\nb: { <<: { c: 1 }, d: 5 }\n", ("b", "c")),
]


@pytest.mark.parametrize(("text", "path"), TANGLED)
def test_field_that_cannot_go_alone_stays(text: str, path: tuple[str | int, ...]) -> None:
    document = YamlText(text).document(0)

    with pytest.raises(UnchangeableText) as refused, document.all_or_none():
        document.replace(("n",), "changed")
        document.remove(path)

    assert (refused.value.path, document.text) == (path, text)


SHARING = """\
one: &one { name: a, kind: k }
two: *one
list: [{ name: &b b }, *one, { name: c, other: *b }]
merged: { <<: *one, name: d, last: *b }
---
one: &one again # the name is defined anew
two: '*one'
"""


@pytest.mark.parametrize(
    ("document", "path"),
    [
        (0, ("one",)),
        (0, ("one", "name")),
        (0, ("two", "name")),
        (0, ("list", 0)),
        (0, ("list", 0, "name")),
        (0, ("list", 1, "name")),
        (0, ("merged", "kind")),
        (1, ("one",)),
    ],
)
def test_value_shared_with_other_places_is_detected(document: int, path: tuple[str | int, ...]) -> None:
    assert YamlText(SHARING).document(document).is_shared(path)


@pytest.mark.parametrize(
    ("document", "path"),
    [(0, ("list", 2)), (0, ("list", 2, "name")), (0, ("merged",)), (0, ("merged", "last")), (1, ("two",))],
)
def test_field_using_text_elsewhere_is_not_shared(document: int, path: tuple[str | int, ...]) -> None:
    text = YamlText(SHARING)

    assert not text.document(document).is_shared(path)
    if isinstance(path[-1], str):
        text.document(document).remove(path)
        before, after = ([*yaml.safe_load_all(one)] for one in (SHARING, text.text))
        assert after == [
            without(data, path) if number == document else data for number, data in enumerate(before)
        ]


KEYS = st.text("abc", min_size=1, max_size=2)
VALUES: st.SearchStrategy[Any] = st.recursive(
    st.sampled_from(["x", "two words", "# no comment", "a: b", "one\ntwo\n", 5, None, True, [], {}]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def copied(value: Any) -> Any:
    """Return a value of which no part stands in two places: it would be written as an alias."""
    return json.loads(json.dumps(value))


def without(value: Any, path: tuple[str | int, ...]) -> Any:
    """Return ``value`` without a field, and without what is empty then."""
    step, *rest = path
    items = dict(value) if isinstance(value, dict) else dict(enumerate(value))
    items[step] = without(items[step], tuple(rest)) if rest else None
    if isinstance(value, list):
        return list(items.values())
    if not rest or (items[step] == {} and isinstance(rest[0], str)):
        del items[step]
    return items


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all fields in a value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    own = [path] if path and isinstance(path[-1], str) else []
    return own + [place for key, item in inner for place in places(item, (*path, key))]


@given(
    st.dictionaries(KEYS, VALUES, min_size=2, max_size=4),
    st.sampled_from([None, False, True]),
    st.integers(1, 4),
    st.data(),
)
def test_removing_field_keeps_others_in_any_style(
    data: dict[str, Any], style: bool | None, indent: int, draw: st.DataObject
) -> None:
    text = yaml.dump(copied(data), default_flow_style=style, indent=indent, width=30)
    path = draw.draw(st.sampled_from(places(data)))

    assert yaml.safe_load(changed(text, path)) == without(data, path)
