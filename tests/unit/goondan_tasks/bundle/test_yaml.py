"""YAML text as documents that know their lines."""

import time
from typing import Any

import pytest

from goondan_tasks.bundle.yaml import MAX_DOCUMENTS, parse_documents


def read(text: str) -> Any:
    """Return the data of the one document of a text without faults."""
    documents, faults = parse_documents(text, "goondan.yaml")
    assert faults == []
    (document,) = documents
    return document.data


def faults(text: str) -> list[tuple[int, str]]:
    return [(fault.line, fault.error.message) for fault in parse_documents(text, "goondan.yaml")[1]]


def test_every_value_knows_its_line() -> None:
    text = "a: 1\nb:\n  c: [x, y]\n  d:\n    - e: 1\n      f: 2\n"

    (document,) = parse_documents(text, "goondan.yaml")[0]

    assert document.line_of(()) == 1
    assert document.line_of(("b", "d")) == 4
    assert document.line_of(("b", "d", 0, "f")) == 6
    assert document.line_of(("b", "c", 1)) == 3
    assert document.line_of(("b", "missing", "deeper")) == 2


def test_lines_count_through_whole_file() -> None:
    documents, _ = parse_documents("# comment\n---\na: 1\n---\n\nb: 2\n", "goondan.yaml")

    assert [document.line_of(()) for document in documents] == [3, 6]
    assert [document.index for document in documents] == [0, 1]


@pytest.mark.parametrize(
    ("scalar", "value"),
    [
        ("yes", "yes"),
        ("no", "no"),
        ("on", "on"),
        ("22:22", "22:22"),
        ("2024-01-01", "2024-01-01"),
        ("1_000", "1_000"),
        ("0.1.0", "0.1.0"),
        ("true", True),
        ("~", None),
        ("", None),
        ("0x1f", 31),
        ("0o17", 15),
        ("-12", -12),
        ("1e3", 1000.0),
        ("'5'", "5"),
        ("!!str 5", "5"),
        ("! 5", "5"),
        ("!!int 5", 5),
    ],
)
def test_scalars_follow_yaml_1_2(scalar: str, value: object) -> None:
    assert read(f"a: {scalar}") == {"a": value}


def test_keys_are_always_text() -> None:
    assert read("404: a\ntrue: b\nnull: c\n") == {"404": "a", "true": "b", "null": "c"}


def test_anchors_and_merges_repeat_values() -> None:
    text = "a: &a { x: 1, y: 2 }\nb: *a\nc:\n  <<: *a\n  y: 3\nd: { <<: [*a, { z: 4 }] }\n"

    assert read(text) == {
        "a": {"x": 1, "y": 2},
        "b": {"x": 1, "y": 2},
        "c": {"x": 1, "y": 3},
        "d": {"x": 1, "y": 2, "z": 4},
    }


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n", "---\n---\n", "null\n"])
def test_empty_documents_are_left_out(text: str) -> None:
    assert parse_documents(text, "goondan.yaml") == ([], [])


def test_key_given_twice_is_fault_and_first_counts() -> None:
    documents, _ = parse_documents("a: 1\nb: 2\na: 3\n", "goondan.yaml")

    assert documents[0].data == {"a": 1, "b": 2}
    assert faults("a: 1\nb: 2\na: 3\n") == [(3, "duplicate key 'a' (first in line 1)")]


@pytest.mark.parametrize(
    ("text", "line", "part"),
    [
        ("a:\n\t- b\n", 2, "cannot start any token"),
        ("a: 'x\nb: 2\n", 1, "end of stream"),
        ("a: 1\nb: [\n", 2, "flow"),
        ("a: b: c\n", 1, "mapping values"),
        ("a: 1\nb: \x00\n", 2, "'\\x00' is not allowed"),
        ("a: 1\nb: *x\n", 2, "*x has no anchor"),
        ("a: &a [*a]\n", 1, "*a has no anchor"),
        ("a: 1\n[b]: 2\n", 2, "a key must be text"),
        ("a: !!python/object/apply:os.system [id]\n", 1, "tag"),
        ("a: !secret x\n", 1, "tag '!secret'"),
        ("a: .nan\n", 1, "not a number that JSON can represent"),
        ("a: 1e999\n", 1, "not a number that JSON can represent"),
        (f"a: {'9' * 5_000}\n", 1, "not a number that JSON can represent"),
        ('a: "\\ud800"\n', 1, "Unicode"),
        ("<<: 1\n", 1, "'<<' merges mappings only"),
    ],
)
def test_yaml_fault_is_reported_with_its_line(text: str, line: int, part: str) -> None:
    ((found_line, message),) = faults(text)

    assert found_line == line
    assert part in message


def test_tab_is_named_as_culprit() -> None:
    (fault,) = parse_documents("a:\n\t- b\n", "goondan.yaml")[1]

    assert fault.error.suggestion == "Indent with spaces, not with tabs."


def test_documents_before_syntax_error_are_kept() -> None:
    documents, found = parse_documents("a: 1\n---\nb: 2\n---\nc: [\n", "goondan.yaml")

    assert [document.data for document in documents] == [{"a": 1}, {"b": 2}]
    assert len(found) == 1


def test_more_documents_than_limit_are_refused() -> None:
    documents, found = parse_documents("a: 1\n---\n" * (MAX_DOCUMENTS + 5), "goondan.yaml")

    assert len(documents) == MAX_DOCUMENTS
    assert [(fault.line, fault.error.code) for fault in found] == [(201, "E_CONFIG_TOO_MANY_DOCUMENTS")]


def bomb() -> str:
    lines = ["a: &a [x, x, x, x, x, x, x, x, x]"]
    for name, before in zip("bcdefghi", "abcdefgh", strict=True):
        lines.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    return "\n".join(lines)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 500_000,
        "- " * 250_000,
        "{a: " * 100_000,
        "? " * 100_000,
        "a:\n" + "\n".join(" " * n + "- a:" for n in range(1, 500)),
        bomb(),
    ],
    ids=["brackets", "dashes", "braces", "question marks", "indented", "aliases"],
)
def test_hostile_text_is_refused_at_once(text: str) -> None:
    started = time.monotonic()

    found = faults(text)

    assert len(found) == 1
    assert time.monotonic() - started < 60, "milliseconds in practice; minutes or a crash without the limits"
