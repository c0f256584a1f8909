"""``server__tool``, for whatever a server calls its tools."""

from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.names import parse_tool_name
from workers.mcp.names import full_names


def test_a_name_that_is_allowed_stays() -> None:
    assert full_names("time", ["get_current_time", "convert-time", "X1"]) == {
        "time__get_current_time": "get_current_time",
        "time__convert-time": "convert-time",
        "time__X1": "X1",
    }


def test_a_name_that_is_forbidden_stays_readable() -> None:
    names = list(full_names("s", ["files.read", "files/read", "a__b", "날씨", ""]))

    assert names == [
        "s__files_read-601e4eb6",
        "s__files_read-2b733164",
        "s__a_b-63e5c1c4",
        "s__fe655cf1",
        "s__e3b0c442",
    ]


def test_a_name_that_another_tool_has_gets_a_longer_digest() -> None:
    [taken] = full_names("s", ["a.b"])

    names = full_names("s", ["a.b", taken.removeprefix("s__")])

    assert names[taken] == taken.removeprefix("s__")
    assert sorted(names.values()) == sorted(["a.b", taken.removeprefix("s__")])


@given(st.lists(st.text(max_size=20), unique=True))
def test_every_name_is_allowed_and_leads_back(tools: list[str]) -> None:
    names = full_names("server-1", tools)

    assert list(names.values()) == tools
    for name in names:
        parts = parse_tool_name(name)
        assert parts
        assert parts.resource == "server-1"
