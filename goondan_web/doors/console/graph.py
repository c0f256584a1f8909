"""Where the agents of a graph stand, and how its edges run: layers from left to right, cycles allowed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

#: the size of a node, and the space between nodes, in units of the drawing
WIDTH, HEIGHT, ACROSS, DOWN = 168, 44, 112, 20
_MARGIN = 28
#: how many nodes stand in a column; a layer with more takes several columns
_MOST_IN_COLUMN = 10
#: how often the nodes of all columns are ordered by their neighbours
_SWEEPS = 4
#: the height of a lane, in which an edge passes the nodes of a column, and how many lanes there are at most:
#: with more, long edges run behind nodes
_LANE, _MOST_LANES = 16, 60

#: how far below the nodes edges run back, and how many of them side by side
_BELOW, _MOST_BELOW = 14, 6

Pair = tuple[str, str]
#: a node, or the lane of an edge, and its column
Place = tuple[int, str | Pair]


@dataclass(frozen=True, slots=True)
class Layout:
    """The left upper corners of nodes, the paths of edges and the middles of these, and the size of all."""

    nodes: Mapping[str, tuple[int, int]]
    paths: Mapping[Pair, str]
    middles: Mapping[Pair, tuple[int, int]]
    width: int
    height: int


def layout_of(names: Sequence[str], edges: Iterable[Pair]) -> Layout:
    """Place nodes so that most edges run to the right; nodes without edges stand below in rows."""
    pairs = [pair for pair in dict.fromkeys(edges) if set(pair) <= set(names)]
    apart = [pair for pair in pairs if pair[0] != pair[1]]
    joined = {name for pair in apart for name in pair}
    connected, alone = [one for one in names if one in joined], [one for one in names if one not in joined]
    columns: list[list[str | Pair]] = [
        list(layer[begin : begin + _MOST_IN_COLUMN])
        for layer in _layers(connected, _forward(connected, apart))
        for begin in range(0, len(layer), _MOST_IN_COLUMN)
    ]
    chains = _chains(columns, apart)
    for chain in chains.values():
        for column, lane in chain[1:-1]:
            columns[column].append(lane)
    _order(columns, chains.values())
    places, bottom = _placed(columns)
    backward = [pair for pair in apart if pair not in chains]
    back = {pair: bottom + _BELOW * (number % _MOST_BELOW) for number, pair in enumerate(backward)}
    across, top = max(len(columns), 4), bottom + _BELOW * min(len(back), _MOST_BELOW)
    for number, name in enumerate(alone):
        below, behind = divmod(number, across)
        places[-1, name] = _MARGIN + behind * (WIDTH + ACROSS), top + below * (HEIGHT + DOWN)
    nodes = {one: place for (_, one), place in places.items() if isinstance(one, str)}
    paths = {}
    for pair in pairs:
        lanes = [places[one] for one in chains[pair][1:-1]] if pair in chains else []
        paths[pair] = _path(nodes[pair[0]], nodes[pair[1]], lanes, back.get(pair, 0))
    lowest = max([0, *(y + HEIGHT for _, y in nodes.values()), *back.values()])
    return Layout(
        nodes,
        {pair: path for pair, (path, _) in paths.items()},
        {pair: middle for pair, (_, middle) in paths.items()},
        max((x for x, _ in nodes.values()), default=0) + WIDTH + _MARGIN,
        lowest + _MARGIN,
    )


def _forward(names: Sequence[str], pairs: Sequence[Pair]) -> list[Pair]:
    """Return the edges without those that close a cycle, as a search in depth meets them."""
    following: dict[str, list[str]] = {name: [] for name in names}
    for source, target in pairs:
        following[source].append(target)
    targets = {target for _, target in pairs}
    done: set[str] = set()
    kept: list[Pair] = []
    # what nothing leads to comes first
    for first in sorted(names, key=lambda name: name in targets):
        if first in done:
            continue
        open_nodes, stack = {first}, [(first, iter(following[first]))]
        while stack:
            name, rest = stack[-1]
            behind = next(rest, None)
            if behind is None:
                stack.pop()
                open_nodes.discard(name)
                done.add(name)
            elif behind not in open_nodes:
                kept.append((name, behind))
                if behind not in done:
                    open_nodes.add(behind)
                    stack.append((behind, iter(following[behind])))
    return kept


def _layers(names: Sequence[str], forward: Sequence[Pair]) -> list[list[str]]:
    """Put each node one layer behind the last of those that lead to it."""
    leading: dict[str, list[str]] = {name: [] for name in names}
    for source, target in forward:
        leading[target].append(source)
    layer: dict[str, int] = {}
    waiting = list(names)
    while waiting:  # ends, as the edges have no cycle
        ready = [name for name in waiting if all(source in layer for source in leading[name])]
        for name in ready:
            layer[name] = max((layer[source] + 1 for source in leading[name]), default=0)
        waiting = [name for name in waiting if name not in layer]
    found: list[list[str]] = [[] for _ in range(max(layer.values(), default=-1) + 1)]
    for name in names:
        found[layer[name]].append(name)
    return found


def _chains(columns: Sequence[Sequence[str | Pair]], pairs: Iterable[Pair]) -> dict[Pair, list[Place]]:
    """Return where each edge that runs to the right passes: its nodes, and the lanes between them."""
    column_of = {name: number for number, column in enumerate(columns) for name in column}
    spans = {pair: (column_of[pair[0]], column_of[pair[1]]) for pair in pairs}
    has_lanes = sum(max(0, end - begin - 1) for begin, end in spans.values()) <= _MOST_LANES
    chains: dict[Pair, list[Place]] = {}
    for pair, (begin, end) in spans.items():
        if begin < end:
            lanes: list[Place] = [(column, pair) for column in range(begin + 1, end)]
            chains[pair] = [(begin, pair[0]), *(lanes if has_lanes else ()), (end, pair[1])]
    return chains


def _order(columns: Sequence[list[str | Pair]], chains: Iterable[Sequence[Place]]) -> None:
    """Order each column by where the neighbours of its nodes and lanes stand, so that fewer edges cross."""
    neighbours: dict[Place, list[Place]] = {}
    for chain in chains:
        for one, other in pairwise(chain):
            neighbours.setdefault(one, []).append(other)
            neighbours.setdefault(other, []).append(one)
    height: dict[Place, float] = {}

    def wanted(place: Place) -> float:
        around = neighbours.get(place, [place])
        return sum(height[one] for one in around) / len(around)

    for sweep in range(_SWEEPS):
        for number, column in enumerate(columns):
            if sweep:
                column.sort(key={item: wanted((number, item)) for item in column}.__getitem__)
            height |= {(number, item): (row + 1) / (len(column) + 1) for row, item in enumerate(column)}


def _placed(columns: Sequence[Sequence[str | Pair]]) -> tuple[dict[Place, tuple[int, int]], int]:
    """Return the left upper corners of nodes and lanes, and where the next row begins."""
    heights = [
        sum((HEIGHT if isinstance(one, str) else _LANE) + DOWN for one in column) for column in columns
    ]
    tallest = max(heights, default=0)
    places: dict[Place, tuple[int, int]] = {}
    for number, column in enumerate(columns):
        top = _MARGIN + (tallest - heights[number]) // 2
        for one in column:
            places[number, one] = _MARGIN + number * (WIDTH + ACROSS), top
            top += (HEIGHT if isinstance(one, str) else _LANE) + DOWN
    return places, _MARGIN + tallest + (DOWN if columns else 0)


def _path(
    source: tuple[int, int], target: tuple[int, int], lanes: Sequence[tuple[int, int]], low: int
) -> tuple[str, tuple[int, int]]:
    """Return the path of an edge and the place of its text: to the right, or back at ``low``."""
    (x1, y1), (x2, y2) = source, target
    if source == target:
        begin, end, top = x1 + WIDTH - 40, x1 + WIDTH - 12, y1 - 18
        return f"M{begin},{y1} C{begin},{top} {end},{top} {end},{y1}", (begin + 14, y1 - 14)
    if x2 <= x1:
        begin, end, y1, y2 = x1 + WIDTH // 2, x2 + WIDTH // 2, y1 + HEIGHT, y2 + HEIGHT
        turn = min(60, abs(begin - end) // 3)
        path = f"M{begin},{y1} C{begin},{low} {begin},{low} {begin - turn},{low}"
        return f"{path} L{end + turn},{low} C{end},{low} {end},{low} {end},{y2}", ((begin + end) // 2, low)
    x, y = x1 + WIDTH, y1 + HEIGHT // 2
    path, middle = f"M{x},{y}", None
    for left, to in (*((left, top + _LANE // 2) for left, top in lanes), (x2, y2 + HEIGHT // 2)):
        reach, middle = max(40, (left - x) // 2), middle or ((x + left) // 2, (y + to) // 2)
        path += f" C{x + reach},{y} {left - reach},{to} {left},{to}"
        if left != x2:
            path += f"h{WIDTH}"
        x, y = left + WIDTH, to
    return path, middle or (x, y)
