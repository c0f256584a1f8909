"""Where agents stand in the graph of hand-offs: layers, cycles, many nodes."""

import random
import re

import pytest

from goondan_web.doors.console.graph import HEIGHT, WIDTH, Layout, Pair, layout_of


def columns(layout: Layout) -> list[list[str]]:
    places = sorted({x for x, _ in layout.nodes.values()})
    return [[name for name, (x, _) in layout.nodes.items() if x == place] for place in places]


def overlaps(layout: Layout) -> bool:
    places = list(layout.nodes.values())
    return any(
        abs(x1 - x2) < WIDTH and abs(y1 - y2) < HEIGHT
        for number, (x1, y1) in enumerate(places)
        for x2, y2 in places[number + 1 :]
    )


def test_work_runs_from_left_to_right_through_layers() -> None:
    edges = [("client", "lead"), ("lead", "writer"), ("writer", "reviewer"), ("lead", "reviewer")]
    layout = layout_of(["client", "lead", "reviewer", "writer"], edges)
    assert columns(layout) == [["client"], ["lead"], ["writer"], ["reviewer"]]
    for source, target in edges:
        assert layout.nodes[source][0] < layout.nodes[target][0]
        assert layout.paths[source, target].startswith(f"M{layout.nodes[source][0] + WIDTH},")


def test_closing_edge_of_cycle_runs_back_below() -> None:
    layout = layout_of(["a", "b", "c"], [("a", "b"), ("b", "c"), ("c", "a"), ("b", "b")])
    assert columns(layout) == [["a"], ["b"], ["c"]]
    path = layout.paths["c", "a"]
    assert [int(y) for y in re.findall(r",(\d+)", path)][1] > layout.nodes["c"][1] + HEIGHT
    assert layout.middles["b", "b"][1] < layout.nodes["b"][1]


def test_agents_without_hand_offs_stand_below_in_rows() -> None:
    names = [f"a{number}" for number in range(9)]
    layout = layout_of(names, [("a0", "a1"), ("a7", "a7")])
    lowest = max(layout.nodes[name][1] for name in ("a0", "a1"))
    assert all(layout.nodes[name][1] > lowest for name in names[2:])
    assert len({layout.nodes[name][1] for name in names[2:]}) == 2
    assert not overlaps(layout)


def test_neighbours_are_ordered_to_avoid_crossing_edges() -> None:
    names = ["top", "bottom", "of-bottom", "of-top"]
    layout = layout_of(names, [("top", "of-top"), ("bottom", "of-bottom")])
    left, right = columns(layout)
    assert [f"of-{name}" for name in left] == right


def test_layer_with_many_agents_takes_several_columns() -> None:
    names = ["client", *(f"a{number:02d}" for number in range(59))]
    layout = layout_of(names, [("client", name) for name in names[1:]])
    assert [len(column) for column in columns(layout)] == [1, 10, 10, 10, 10, 10, 9]
    assert not overlaps(layout)


@pytest.mark.parametrize("seed", range(20))
def test_any_graph_places_nodes_and_draws_edges(seed: int) -> None:
    chance = random.Random(seed)
    names = [f"a{number}" for number in range(chance.randrange(1, 61))]
    edges: list[Pair] = [(chance.choice(names), chance.choice(names)) for _ in range(chance.randrange(150))]
    layout = layout_of(names, [*edges, ("unknown", names[0])])
    assert layout.nodes.keys() == set(names)
    assert layout.paths.keys() == layout.middles.keys() == set(edges)
    assert not overlaps(layout)
    assert all(
        0 <= x <= layout.width - WIDTH and 0 <= y <= layout.height - HEIGHT for x, y in layout.nodes.values()
    )
    assert layout == layout_of(names, [*edges, ("unknown", names[0])])


def test_no_agents_make_empty_drawing() -> None:
    assert layout_of([], []).nodes == {}
