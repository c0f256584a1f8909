"""The merge of trees."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.changesets.merge import Merge, merge
from goondan_tasks.revisions.repository import LINK, PROGRAM, Entry

A, B, C = (Entry("100644", name) for name in "abc")


def joined(path: str, base: Entry | None, ours: Entry, theirs: Entry) -> tuple[str, bool]:
    """Merge contents without conflict."""
    return f"{ours.blob}+{theirs.blob}", True


def marked(path: str, base: Entry | None, ours: Entry, theirs: Entry) -> tuple[str, bool]:
    return "marked", False


def no_lines(path: str, base: Entry | None, ours: Entry, theirs: Entry) -> None:
    return None


def test_what_only_we_changed_is_taken() -> None:
    assert merge({"x": A}, {"x": B, "new": C}, {"x": A}, marked) == Merge({"x": B, "new": C})


def test_what_only_they_changed_stays_theirs() -> None:
    assert merge({"x": A, "y": A}, {"x": B}, {"x": A, "y": C}, marked) == Merge({"x": B})


def test_what_both_changed_alike_is_nothing_to_do() -> None:
    assert merge({"x": A, "y": A}, {"x": B, "y": None}, {"x": B}, marked) == Merge()


def test_what_both_changed_is_merged_line_by_line() -> None:
    merged = merge({"x": A}, {"x": B}, {"x": C}, joined)

    assert merged == Merge({"x": Entry("100644", "b+c")})


def test_lines_that_meet_are_a_conflict_with_both_in_it() -> None:
    assert merge({"x": A}, {"x": B}, {"x": C}, marked) == Merge({}, {"x": Entry("100644", "marked")})


@pytest.mark.parametrize(
    ("base", "ours", "theirs"),
    [
        ({"x": A}, {"x": None}, {"x": B}),
        ({"x": A}, {"x": B}, {}),
        ({"x": A}, {"x": Entry(LINK, "l")}, {"x": B}),
        ({"x": A}, {"x": B}, {"x": Entry(LINK, "l")}),
        ({}, {"x": Entry(LINK, "l")}, {"x": B}),
    ],
)
def test_a_removal_or_a_link_against_a_change_is_a_conflict_without_lines(
    base: dict[str, Entry], ours: dict[str, Entry | None], theirs: dict[str, Entry]
) -> None:
    assert merge(base, ours, theirs, joined) == Merge({}, {"x": None})


def test_content_without_lines_is_a_conflict_without_lines() -> None:
    assert merge({"x": A}, {"x": B}, {"x": C}, no_lines) == Merge({}, {"x": None})


def test_a_mode_that_one_side_changed_is_kept() -> None:
    program = Entry(PROGRAM, "a")

    assert merge({"x": A}, {"x": B}, {"x": program}, joined).changes == {"x": Entry(PROGRAM, "b+a")}
    assert merge({"x": A}, {"x": program}, {"x": B}, joined).changes == {"x": Entry(PROGRAM, "a+b")}


@pytest.mark.parametrize(
    ("ours", "theirs"), [({"x/y": A}, {"x": B}), ({"x": A}, {"x/y": B}), ({"x/y/z": A}, {"x": B})]
)
def test_a_file_where_the_others_have_a_directory_is_a_conflict(
    ours: dict[str, Entry | None], theirs: dict[str, Entry]
) -> None:
    assert list(merge({}, ours, theirs, joined).conflicts) == list(ours)


def test_a_directory_may_take_the_place_of_a_file_that_we_removed() -> None:
    assert merge({"x": A}, {"x": None, "x/y": B}, {"x": A}, marked).conflicts == {}


_TREES = st.dictionaries(st.sampled_from(["p", "q", "r"]), st.sampled_from([A, B, C]))


@given(_TREES, _TREES, _TREES)
def test_nothing_but_our_own_paths_is_ever_changed(
    base: dict[str, Entry], ours: dict[str, Entry], theirs: dict[str, Entry]
) -> None:
    changes = {path: ours.get(path) for path in base.keys() | ours if base.get(path) != ours.get(path)}

    merged = merge(base, changes, theirs, marked)

    assert merged.changes.keys() | merged.conflicts.keys() <= changes.keys()
    assert not merged.changes.keys() & merged.conflicts.keys()
    assert all(theirs.get(path) == base.get(path) for path in merged.changes)
