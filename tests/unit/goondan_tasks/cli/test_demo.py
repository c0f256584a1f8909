"""Following a request: everything is told once, in the order in which it happened."""

from typing import Any, cast

from goondan_tasks.cli.demo import swarm_events
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import WaitTimeout
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.history.trace import Trace, TraceNode, build_trace
from tests.unit.goondan_tasks.history.trace_nodes import TEN, node

LATER = {"finished_at": None, "running_seconds": None, "state": "running"}


def ended(at: float) -> dict[str, Any]:
    return {"finished_at": iso_time(TEN + at * 1000)}


def request(name: str, agent: str, parent: str | None = None, **fields: Any) -> TraceNode:
    return node(name, parent, kind="request", agent=agent, tool="goondan__delegate", **fields)


FIRST_LOOK = [request("plan", "planner", **LATER), node("outline", "plan", agent="planner", at=1)]
SECOND_LOOK = [
    request("plan", "planner", **ended(5)),
    FIRST_LOOK[1],
    request("code", "coder", "plan", at=2, **ended(5)),
    node("write", "code", at=3),
]


class FakeClient:
    """A request that ends with the second look."""

    def __init__(self) -> None:
        self._looks = 0

    def trace(self, _: str) -> Trace:
        return build_trace("order-7", FIRST_LOOK if self._looks == 1 else SECOND_LOOK)

    def pending(self, call_id: str) -> Any:
        client = self

        class Pending:
            def result(self, timeout: float | None = None) -> str:
                if timeout is not None:
                    client._looks += 1
                    if client._looks == 1:
                        raise WaitTimeout(call_id, timeout)
                return f"result of {call_id}"

        return Pending()


def test_swarm_events_are_reported_once_in_order() -> None:
    news = list(swarm_events(cast(Client, FakeClient()), "order-7"))

    assert [(one.asker, one.node.id, one.result) for one in news] == [
        (None, "plan", None),
        ("planner", "outline", None),
        ("planner", "outline", "result of outline"),
        ("planner", "code", None),
        ("coder", "write", None),
        ("coder", "write", "result of write"),
        ("planner", "code", "result of code"),
        (None, "plan", "result of plan"),
    ]
