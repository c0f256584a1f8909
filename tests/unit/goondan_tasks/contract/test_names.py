"""Names on the wire."""

import json
import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.contract.names import (
    SpanIds,
    build_tool_name,
    call_identity,
    is_agent_name,
    is_name_part,
    parse_tool_name,
    read_traceparent,
    write_traceparent,
)

identities = st.lists(st.text(max_size=5), min_size=4, max_size=4)
parts = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9-])?", fullmatch=True).filter(is_name_part)


@pytest.mark.requirement("tool.name.format", "tool.name.separator", "tool.name.build", "tool.name.parse")
@given(parts, parts)
def test_name_is_built_and_taken_apart_again(resource: str, export: str) -> None:
    name = build_tool_name(resource, export)
    assert name == f"{resource}__{export}"
    assert parse_tool_name(name) == (resource, export)


@pytest.mark.requirement("tool.name.build", "tool.name.no-separator-inside")
@pytest.mark.parametrize(
    ("resource", "export"),
    [
        ("", "x"),
        ("x", ""),
        ("a__b", "x"),
        ("x", "a__b"),
        ("a_", "b"),
        ("a", "_b"),
        ("a b", "c"),
        ("a.b", "c"),
    ],
)
def test_name_with_inseparable_parts_is_not_built(resource: str, export: str) -> None:
    with pytest.raises(ValueError, match="cannot name a Tool or an export"):
        build_tool_name(resource, export)


@pytest.mark.requirement("tool.name.parse", "tool.name.no-separator-inside")
@pytest.mark.parametrize(
    "name", ["", "bash", "__", "a__", "__b", "a__b__c", "a___b", "a.b", "a__b ", "a__b\n", "é__b", "a_ _b"]
)
def test_name_without_exactly_one_separator_is_none(name: str) -> None:
    assert parse_tool_name(name) is None


@pytest.mark.requirement("tool.name.no-separator-inside")
def test_no_part_may_hold_separator() -> None:
    assert not is_name_part("a__b")
    assert is_name_part("a_b")


@pytest.mark.parametrize("name", ["a", "0", "coder-2", "a" * 63])
def test_agent_names(name: str) -> None:
    assert is_agent_name(name)


@pytest.mark.parametrize("name", ["", "-a", "A", "a_b", "a.b", "a" * 64, "a\n", "ä"])
def test_invalid_agent_name_is_rejected(name: str) -> None:
    assert not is_agent_name(name)


@pytest.mark.parametrize("name", [*map(str, range(20)), '"', "\\\n\x00\u2028", "é한"])
def test_identity_matches_standard_uuid_of_compact_json(name: str) -> None:
    parts = ["coder", name, "turn", name]
    compact = json.dumps(parts, ensure_ascii=False, separators=(",", ":"))
    assert call_identity(*parts) == str(uuid.uuid5(uuid.NAMESPACE_URL, f"goondan:{compact}"))


def test_identity_is_documented_uuid() -> None:
    # uuid5(NAMESPACE_URL, 'goondan:["coder","default","turn-1","call_1"]'), from Python's uuid module
    assert call_identity("coder", "default", "turn-1", "call_1") == "a40f5446-1c77-504c-9b41-455b1b68f76c"


@given(
    st.lists(st.text(max_size=5), min_size=4, max_size=4),
    st.lists(st.text(max_size=5), min_size=4, max_size=4),
)
def test_different_calls_have_different_identities(one: list[str], other: list[str]) -> None:
    assert (call_identity(*one) == call_identity(*other)) == (one == other)


TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_written_traceparent_can_be_read() -> None:
    header = write_traceparent(TRACE, SPAN)

    assert header == f"00-{TRACE}-{SPAN}-01"
    assert read_traceparent(header) == SpanIds(TRACE, SPAN)


@pytest.mark.parametrize(
    ("trace_id", "span_id"),
    [("trace-1", SPAN), (TRACE.upper(), SPAN), (TRACE, ""), (f"{TRACE}\r\nX: y", SPAN)],
)
def test_ids_of_another_form_make_no_header(trace_id: str, span_id: str) -> None:
    assert write_traceparent(trace_id, span_id) is None


@pytest.mark.parametrize(
    "header", [f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-next"]
)
def test_flags_and_later_versions_do_not_matter(header: str) -> None:
    assert read_traceparent(header) == SpanIds(TRACE, SPAN)


@pytest.mark.parametrize(
    "header",
    [
        None,
        5,
        [f"00-{TRACE}-{SPAN}-01"],
        "",
        "garbage",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
    ids=repr,
)
def test_malformed_header_is_as_good_as_none(header: object) -> None:
    assert read_traceparent(header) is None
