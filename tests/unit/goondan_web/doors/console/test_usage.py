"""What the page about usage and the graph of the overview are made of."""

from typing import cast

import pytest

from broker_config.settings import Settings
from goondan_tasks.client import Client
from goondan_tasks.client.status import AgentStatus, QueueStatus
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.fleet.agent_registry import AgentRecord
from goondan_tasks.fleet.crash_backoff import CrashBackoff
from goondan_tasks.fleet.usage import LONGEST_USER, OTHER, HandoffCount, Handoffs, Usage, day_of
from goondan_web.callers import NOBODY
from goondan_web.doors.console.asking import Asking
from goondan_web.doors.console.rendering import Frame, Shown, rendered
from goondan_web.doors.console.usage import MOST_EDGES, MOST_NODES, graph_of, show_usage

TODAY = day_of(wall_clock())
HOSTILE = "<script>alert(1)</script>"


class Used:
    """A client with usage."""

    def __init__(self, rows: list[Usage]) -> None:
        self.rows, self.settings = rows, Settings()

    def usage(self, days: int, by: str) -> list[Usage]:
        assert by.startswith("day,")
        return self.rows


def shown(rows: list[Usage], **query: str) -> Shown:
    found = show_usage(Asking(cast("Client", Used(rows)), {}, query, NOBODY))
    assert isinstance(found, Shown)
    return found


def html(found: Shown) -> str:
    return rendered(found, Frame(NOBODY, "/console/usage"))


def test_merged_or_shortened_users_have_no_call_list() -> None:
    rows = [Usage(day=TODAY, user=user, calls=1) for user in (OTHER, "u" * LONGEST_USER, "ann")]
    groups = {one["name"]: one["callsAt"] for one in shown(rows, by="user").data["groups"]}
    assert groups == {OTHER: None, "u" * LONGEST_USER: None, "ann": "/console/calls?subject=ann"}


def test_summed_days_and_groups_link_to_details() -> None:
    rows = [
        Usage(day="2026-02-01", agent="coder", calls=4, requests=1, input=100, output=10),
        Usage(day=TODAY, agent="coder", calls=1),
        Usage(day=TODAY, agent="clerk", requests=2, input=300, cached=200, output=30, reasoning=20),
    ]
    found = shown(rows, days="7")
    assert [one["name"] for one in found.data["groups"]] == ["clerk", "coder"]
    assert found.data["groups"][1] | {"calls": 5, "input": 100} == found.data["groups"][1]
    assert found.data["total"]["input"] == 400
    assert [day["day"] for day in found.data["days"]][-1] == TODAY
    text = html(found)
    assert 'href="/console/calls?agent=clerk&amp;tool=goondan__model-%2A"' in text
    assert f"days=7&amp;by=agent&amp;day={TODAY}" in text
    [narrowed] = shown(rows, day="2026-02-01").data["groups"]
    assert (narrowed["name"], narrowed["calls"], narrowed["callsAt"]) == ("coder", 4, None)  # not kept
    assert shown(rows, day=TODAY).data["groups"][1]["callsAt"] == "/console/calls?agent=coder"


def test_user_and_model_usage_links_to_calls() -> None:
    rows = [Usage(day=TODAY, user="ann & bo", calls=2, requests=1), Usage(day=TODAY, user="", calls=1)]
    [ann, nobody] = shown(rows, by="user").data["groups"]
    assert ann["callsAt"] == "/console/calls?subject=ann+%26+bo"
    assert nobody["callsAt"] is nobody["requestsAt"] is None
    [model] = shown([Usage(day=TODAY, model="large", requests=1)], by="model").data["groups"]
    assert (model["callsAt"], model["requestsAt"]) == (None, "/console/calls?tool=goondan__model-large")


def test_bars_are_stacked_and_highest_fills_chart() -> None:
    rows = [Usage(day=TODAY, agent="a", input=75, output=25), Usage(day="2026-02-01", agent="a", input=50)]
    chart = shown(rows, days="1").data["tokens"]
    assert chart["most"] == 100
    assert chart["paths"] == {
        "input": "M144,120v-60M504,120v-90",
        "output": "M504,30v-30",
    }


def test_user_names_are_escaped_unknown_group_is_refused() -> None:
    text = html(
        shown([Usage(day=TODAY, user=HOSTILE, calls=1), Usage(day=TODAY, user="", calls=1)], by="user")
    )
    assert HOSTILE not in text
    assert "&lt;script&gt;" in text
    with pytest.raises(ToolInputValidationError, match="by is 'tool'"):
        shown([], by="tool")
    assert "Nothing was used" in html(shown([]))


@pytest.mark.parametrize("by", ["agent", "user"])
def test_page_stays_small_with_many_days_and_names(by: str) -> None:
    rows = [
        Usage.from_wire(
            {"day": day_of(wall_clock() - age * 86_400_000), by: f"{'x' * 60}-{number}", "calls": 9_999_999}
        )
        for age in range(90)
        for number in range(60)
    ]
    found = shown(rows, by=by, days="90")
    assert (len(found.data["groups"]), found.data["hidden"]) == (50, 10)
    assert len(html(found)) < 60_000
    assert len(html(shown(rows, by=by))) < 60_000


def status_of(name: str) -> AgentStatus:
    record = AgentRecord(name=name, swarm="s", workspace="w", catalog=())
    queue = QueueStatus(agent=name, queue=f"agent.{name}", backlog=3, running=2, waiting_for_limit=4)
    return AgentStatus(record, (), queue, CrashBackoff(), is_orchestrated=False, now=0)


def handoffs(*edges: tuple[str, str, int, int]) -> Handoffs:
    counts = tuple(
        HandoffCount(from_agent=a, to=b, count=count, errors=errors) for a, b, count, errors in edges
    )
    return Handoffs(since="2026-02-01T09:00:00.000Z", seconds=5_400, edges=counts)


def test_nodes_show_load_edges_rate_and_failures() -> None:
    statuses = [status_of(name) for name in ("lead", "coder", "idle")]
    graph = graph_of(
        statuses, handoffs(("client", "lead", 30, 0), ("lead", "coder", 12, 3), ("lead", "gone", 1, 1))
    )
    nodes = {node["name"]: node for node in graph["nodes"]}
    assert nodes.keys() == {"client", "lead", "coder", "idle", "gone"}
    assert (nodes["lead"]["running"], nodes["lead"]["waiting"]) == (2, 7)
    assert nodes["client"]["address"] is None
    edge = graph["edges"][1]
    assert (edge["from"], edge["to"], edge["perHour"], edge["share"]) == ("lead", "coder", 8.0, 0.25)
    assert edge["address"] == "/console/calls?agent=coder&tool=goondan__%5Bde%5D%5Bev%5D%2A"


def test_large_graph_keeps_agents_with_most_handoffs() -> None:
    statuses = [status_of(f"a{number:03d}") for number in range(80)]
    edges = [(f"a{number:03d}", f"a{number + 1:03d}", 100 - number, 0) for number in range(79)]
    graph = graph_of(statuses, handoffs(*edges))
    assert (len(graph["nodes"]), graph["hidden"]) == (MOST_NODES, 80 - MOST_NODES)
    assert sum(edge["path"] is not None for edge in graph["edges"]) == MOST_NODES - 1
    assert (len(graph["edges"]), graph["hiddenEdges"]) == (MOST_EDGES, 79 - MOST_EDGES)
    graph = graph_of(statuses, handoffs(*edges, *(("lead", f"a{number:03d}", 1, 0) for number in range(80))))
    assert (len(graph["edges"]), graph["hiddenEdges"]) == (MOST_EDGES, 159 - MOST_EDGES)
