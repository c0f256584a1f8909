"""The tree of a trace, out of calls in any order and any state of repair."""

from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.trace.nodes import Trace, TraceNode
from goondan_tasks.trace.tree import build_trace
from tests.unit.goondan_tasks.trace.nodes import node


def drawn(trace: Trace) -> list[str]:
    """Return the ids, each behind as many dots as its depth."""
    return ["." * found.depth + found.id for found in trace.nodes]


def notes(trace: Trace) -> dict[str, str]:
    return {found.id: found.note for found in trace.nodes if found.note is not None}


def test_every_call_stands_behind_its_parent_and_siblings_by_time() -> None:
    calls = [
        node("d", "b", at=9),
        node("c", "a", at=3),
        node("a"),
        node("b", "a", at=1),
        node("e", "b", at=4),
    ]

    trace = build_trace("c-1", calls)

    assert drawn(trace) == ["a", ".b", "..e", "..d", ".c"]
    assert notes(trace) == {}


def test_a_trace_answers_for_its_roots_and_the_children_of_each() -> None:
    trace = build_trace("c-1", [node("a"), node("b", "a", at=1), node("c", "b", at=2), node("z", at=5)])

    assert [root.id for root in trace.roots] == ["a", "z"]
    assert [child.id for child in trace.children("a")] == ["b"]
    assert [child.id for child in trace.children("b")] == ["c"]
    assert trace.children("c") == trace.children("unknown") == ()


def test_a_call_whose_parent_has_expired_stands_below_the_first_of_its_chain_with_a_note() -> None:
    trace = build_trace("c-1", [node("a"), node("c", "gone", at=2, root_id="a"), node("d", "c", at=3)])

    assert drawn(trace) == ["a", ".c", "..d"]
    assert notes(trace) == {"c": "caused by gone, which is unknown or has expired"}


def test_a_call_of_whose_chain_nothing_is_left_stands_at_the_top_with_a_note() -> None:
    trace = build_trace("c-1", [node("a"), node("c", "gone", at=2, root_id="gone too")])

    assert drawn(trace) == ["a", "c"]
    assert notes(trace) == {"c": "caused by gone, which is unknown or has expired"}


def test_calls_that_caused_each_other_are_all_there_once() -> None:
    calls = [
        node("a"),
        node("x", "z", at=1),
        node("y", "x", at=2),
        node("z", "y", at=3),
        node("w", "y", at=0.5),
    ]

    trace = build_trace("c-1", calls)

    assert drawn(trace) == ["a", "y", ".w", ".z", "..x"]
    assert notes(trace) == {"y": "the calls that caused it form a circle"}


def test_a_call_that_caused_itself_stands_at_the_top() -> None:
    assert drawn(build_trace("c-1", [node("a", "a")])) == ["a"]


def test_two_calls_that_name_each_other_as_the_first_of_their_chain_are_both_there() -> None:
    calls = [node("a", "gone", root_id="b"), node("b", "gone", at=1, root_id="a")]

    assert sorted(found.id for found in build_trace("c-1", calls).nodes) == ["a", "b"]


def test_a_chain_of_ten_thousand_calls_is_no_problem() -> None:
    calls = [node("0", at=0), *(node(str(n), str(n - 1), at=n) for n in range(1, 10_000))]

    trace = build_trace("c-1", reversed(calls))

    assert [found.depth for found in trace.nodes] == list(range(10_000))


@given(
    st.lists(st.tuples(st.integers(0, 12), st.none() | st.integers(0, 15), st.none() | st.integers(0, 15)))
)
def test_nothing_is_left_out_and_nothing_comes_twice(links: list[tuple[int, int | None, int | None]]) -> None:
    calls: dict[str, TraceNode] = {
        str(name): node(str(name), None if parent is None else str(parent), at=name, root_id=str(root))
        for name, parent, root in links
    }

    trace = build_trace("c-1", calls.values())

    assert sorted(found.id for found in trace.nodes) == sorted(calls)
    depths = [found.depth for found in trace.nodes]
    assert all(after <= before + 1 for before, after in zip([-1, *depths], depths, strict=False))
