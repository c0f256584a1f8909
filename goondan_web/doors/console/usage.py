"""The page about what was used, and the graph of hand-offs that the overview shows."""

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from goondan_tasks.client.status import AgentStatus
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.contract.names import MODEL_TOOLS, OUTSIDE
from goondan_tasks.fleet.usage import LONGEST_USER, OTHER, TOKEN_KINDS, Handoffs, Usage, day_of
from goondan_web.doors.console.asking import Asking, View
from goondan_web.doors.console.filters import link, literal
from goondan_web.doors.console.graph import layout_of
from goondan_web.doors.console.rendering import PATH, Shown

#: how many days the page shows
_USUAL_DAYS = 30
#: by what it groups, besides days
_GROUPS = ("agent", "model", "user")
#: how many groups it shows, those with the most tokens
_MOST_GROUPS = 50
#: the most days of the page, and of a chart whose bars are links
_MOST_DAYS, _MOST_LINKS = 90, 31
#: the size of a chart, in units of the drawing
_CHART_WIDTH, _CHART_HEIGHT = 720, 120
_DAY_MS = 86_400_000
_COUNTS = ("calls", "requests", *TOKEN_KINDS)
#: of a group whose calls no list selects, or which are not kept any more
_NO_LINKS: Mapping[str, str | None] = MappingProxyType({"callsAt": None, "requestsAt": None})

#: how many agents and edges the graph has, and with how many edges their rates stand beside them
MOST_NODES, MOST_EDGES, _MOST_LABELS = 30, 40, 30
#: the tools of the requests and events that are handed off
_HANDED = "goondan__[de][ev]*"
#: the thinnest edge, and the widest
_THIN, _WIDE = 1, 5


def show_usage(asking: Asking) -> Shown:
    """Show calls, requests and tokens by day, and of all days or one by agent, Model or user."""
    days, by = asking.number("days", _USUAL_DAYS, _MOST_DAYS), asking.chosen("by") or _GROUPS[0]
    if by not in _GROUPS:
        raise ToolInputValidationError(f"by is {by[:100]!r}, and must be one of {', '.join(_GROUPS)}.")
    rows = asking.client.usage(days, f"day,{by}")
    chosen = asking.chosen("day")
    totals = _sums(rows, "day")
    kept_since = day_of(wall_clock() - 1_000 * asking.client.settings.result_ttl_seconds)
    has_calls = chosen is None or chosen >= kept_since
    groups: list[dict[str, Any]] = [
        {"name": name, **(_links(by, name) if has_calls else _NO_LINKS), **counts}
        for name, counts in _sums((row for row in rows if chosen in {None, row.day}), by).items()
    ]
    groups.sort(key=lambda one: (-one["input"] - one["output"], -one["calls"], one["name"]))
    names = {day_of(wall_clock() - _DAY_MS * age) for age in range(days)} | totals.keys()
    by_day = [
        {"day": day, "address": _address(days, by, day), **totals.get(day, _sum(()))} for day in sorted(names)
    ]
    data = {
        "days": by_day,
        "tokens": _bars(by_day, ("input", "output")),
        "calls": _bars(by_day, ("calls", "requests")),
        "total": _sum(rows),
        "groups": groups[:_MOST_GROUPS],
        "hidden": max(0, len(groups) - _MOST_GROUPS),
        "filter": {"days": days, "by": by, "day": chosen},
        "kinds": _GROUPS,
        "whole": _address(days, by, None),
    }
    return Shown("usage.html", "Usage", data)


def _sums(rows: Iterable[Usage], by: str) -> dict[str, dict[str, int]]:
    groups: dict[str, list[Usage]] = {}
    for row in rows:
        groups.setdefault(str(getattr(row, by)), []).append(row)
    return {name: _sum(ones) for name, ones in groups.items()}


def _sum(rows: Iterable[Usage]) -> dict[str, int]:
    found = list(rows)
    return {name: sum(getattr(row, name) for row in found) for name in _COUNTS}


def _address(days: int, by: str, day: str | None) -> str:
    return link("usage", days=str(days), by=by, day=day)


def _links(by: str, name: str) -> Mapping[str, str | None]:
    """Return where the calls and the requests of a group are listed, as far as the list can select them."""
    if name == OTHER or (by == "user" and len(name) >= LONGEST_USER):  # of several, or not the whole name
        return _NO_LINKS
    requests = f"{MODEL_TOOLS}{literal(name) if by == 'model' else '*'}"
    names: dict[str, str | None] = {}
    if by != "model":
        names["agent" if by == "agent" else "subject"] = name
    return {
        "callsAt": link("calls", **names) if names and name else None,
        "requestsAt": link("calls", **names, tool=requests) if name else None,
    }


def _bars(rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> dict[str, Any]:
    """Return a chart with a bar for each row, whose kinds stand on one another, each kind as one path
    of strokes.

    ``most`` is the highest bar.
    """
    most = max((sum(row[kind] for kind in kinds) for row in rows), default=0)
    across = _CHART_WIDTH / max(1, len(rows))
    wide, paths, links = round(across * 0.8, 1), dict.fromkeys(kinds, ""), []
    for number, row in enumerate(rows):
        left, low = round(number * across, 1), float(_CHART_HEIGHT)
        links.append({"day": row["day"], "address": row["address"], "x": left})
        for kind in kinds:
            height = _CHART_HEIGHT * row[kind] / max(1, most)
            if row[kind]:
                paths[kind] += f"M{left + wide / 2:.4g},{low:.4g}v-{height:.4g}"
            low -= height
    links = links if len(links) <= _MOST_LINKS else []
    return {"paths": paths, "links": links, "width": wide, "most": most}


def graph_of(statuses: Sequence[AgentStatus], handoffs: Handoffs) -> dict[str, Any]:
    """Return the graph of agents and of the hand-offs between them: where all stands, rates, and links.

    It has the agents with the most hand-offs, if there are many.
    """
    edges = sorted(handoffs.edges, key=lambda edge: -edge.count)[:MOST_EDGES]
    handed = dict.fromkeys(name for edge in edges for name in (edge.from_agent, edge.to))
    queues = {status.record.name: status.queue for status in statuses}
    shown = list(dict.fromkeys((*handed, *sorted(queues))))[:MOST_NODES]
    names = sorted(shown, key=lambda name: (name != OUTSIDE, name))
    layout = layout_of(names, ((edge.from_agent, edge.to) for edge in edges))
    nodes = []
    for name, (x, y) in layout.nodes.items():
        queue = queues.get(name)
        node: dict[str, Any] = {"name": name, "x": x, "y": y, "address": None, "running": None}
        if queue is not None:
            address = link("calls", agent=name)
            node |= {"address": address, "running": queue.running}
            node["waiting"] = queue.backlog + queue.waiting_for_limit
        nodes.append(node)
    most = max((edge.count for edge in edges), default=1)
    rows = []
    for edge in edges:
        pair = edge.from_agent, edge.to
        middle, to = layout.middles.get(pair), None if edge.to == OTHER else edge.to
        row = {
            **edge.to_wire(),
            "perHour": round(edge.count * 3600 / max(1.0, handoffs.seconds), 1),
            "share": round(edge.errors / edge.count, 3),
            "path": layout.paths.get(pair),
            "middle": middle,
            "width": round(_THIN + (_WIDE - _THIN) * edge.count / most, 1),
            "address": link("calls", agent=to, tool=_HANDED),
            "failedAt": link("calls", agent=to, tool=_HANDED, status="error"),
        }
        rows.append(row)
    return {
        "since": handoffs.since,
        "nodes": nodes,
        "edges": rows,
        "width": layout.width,
        "height": layout.height,
        "hidden": len({*handed, *queues}) - len(nodes),
        "hiddenEdges": len(handoffs.edges) - len(rows),
        "hasLabels": len(rows) <= _MOST_LABELS,
    }


PAGES = (View(f"{PATH}/usage", show_usage),)
