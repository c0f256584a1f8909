"""Tools that a Turn registers are its own, in every worker."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import ToolNotInCatalogError
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.names import STEP_TOOL
from goondan_tasks.history import StepRecord, StepStore
from tests.unit.workers.runs import job_of, open_step
from workers.concurrency.event_loop import EventLoopThread
from workers.extensions.events import EventListeners, running
from workers.extensions.pipelines import AgentPipelines
from workers.extensions.services import ExtensionTools, Owner
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.isolation import Children, Isolation
from workers.tools.dynamic_tools import turn_of
from workers.tools.registry import Registry
from workers.turns.catalog_guard import CatalogGuard
from workers.turns.steps import Steps, StepTerms

STEPS_BUNDLE = Path(__file__).parents[3] / "bundles" / "steps"
AGENT = "cook"
INBOX = "inbox__read"


class Worker:
    """A worker whose extension registers, in each Turn's first Step, a tool for the Turn's user.

    A Step that begins with ``drop`` unregisters it, and one that begins with ``again`` registers it.
    """

    def __init__(self, store: StepStore, event_loop: EventLoopThread) -> None:
        self.registry = Registry(
            load_bundle(STEPS_BUNDLE), Isolation(Children(), ""), HostedTools(Hosts(), STEPS_BUNDLE, "")
        )
        self.tools = ExtensionTools(
            Owner(AGENT, "mail", STEPS_BUNDLE / "mail.py"), self.registry.dynamic, self.registry.catalog
        )
        self.runs = 0
        #: what unregister has said
        self.dropped: list[bool] = []
        pipelines = AgentPipelines()
        pipelines.register(AGENT, "step", self._inbox, extension="mail")
        self._steps = Steps(
            store,
            self.registry,
            pipelines,
            events=EventListeners(event_loop.submit),
            event_loop=event_loop,
            terms=StepTerms(most_steps=9, max_args_bytes=1000, help_url=""),
        )
        self.guard = CatalogGuard(self.registry, self._steps)

    def _inbox(self, ctx: Any) -> Any:
        self.runs += 1
        wish = ctx.message or {}
        if ctx.step_index == 0 or wish.get("again"):
            self.register(ctx.auth["user"])
        if wish.get("drop"):
            self.dropped.append(self.tools.unregister(INBOX))
        return ctx.next()

    def register(self, user: str) -> None:
        self.tools.register({"name": INBOX, "description": user}, lambda _, input: user)

    def open(self, turn: str, index: int, previous: StepRecord | None = None, **wish: Any) -> StepRecord:
        """Open a Step of the Turn of the user of the same name."""
        args = {"index": index, "message": wish, **({"previousStepId": previous.id} if previous else {})}
        fields = {"turn_id": turn, "tool_call_id": f"s{index}", "auth": {"user": turn}}
        call = new_call(AGENT, STEP_TOOL, args, fields)
        running.set(job_of(call))
        return open_step(self._steps, call)

    def call(self, turn: str, step: StepRecord) -> Any:
        """Return what the tool answers that the guard admits."""
        call = new_call(AGENT, INBOX, {}, {"turn_id": turn, "step_id": step.id, "auth": {"user": turn}})
        running.set(job_of(call))
        bound = self.guard.admit(call, lambda *_, **__: lambda: None)
        ready: Any = self.registry.ready(AGENT, INBOX, turn_of(call))
        assert ready.bound is bound
        return ready.handler(None, {})

    def shown(self, turn: str, step: StepRecord) -> str | None:
        """Return for whom the tool is that the Step shows."""
        call = new_call(AGENT, INBOX, {}, {"turn_id": turn, "step_id": step.id})
        item = self._steps.require(call).catalog.item(INBOX)
        return None if item is None else item.description


@pytest.fixture
def worker() -> Iterator[Callable[[], Worker]]:
    """Make workers that share a Redis."""
    event_loop = EventLoopThread()
    event_loop.start()
    with fakeredis.FakeRedis() as redis:
        yield lambda: Worker(StepStore(redis, Keys(), 60), event_loop)
    event_loop.stop()
    running.set(None)


def test_each_turn_runs_its_own_same_named_tool(
    worker: Callable[[], Worker],
) -> None:
    here = worker()
    opened = {user: here.open(user, 0) for user in ("ann", "bob")}
    steps = {user: here.open(user, 1, first) for user, first in opened.items()}

    assert {user: here.shown(user, step) for user, step in steps.items()} == {"ann": "ann", "bob": "bob"}
    assert {user: here.call(user, step) for user, step in steps.items()} == {"ann": "ann", "bob": "bob"}


def test_turn_does_not_see_tools_of_other_turns(worker: Callable[[], Worker]) -> None:
    here = worker()
    here.open("ann", 0)
    first = here.open("bob", 0)

    assert here.shown("bob", first) is None
    with pytest.raises(ToolNotInCatalogError):
        here.call("bob", first)


def test_worker_with_other_turns_tool_runs_calls_own_step(
    worker: Callable[[], Worker],
) -> None:
    opener, other = worker(), worker()
    step = opener.open("ann", 1, opener.open("ann", 0))
    other.open("bob", 0)

    assert [other.call("ann", step) for _ in range(3)] == ["ann"] * 3
    assert other.runs == 3  # bob's Step, and both of ann's, once each


def test_turn_tool_replaces_lasting_tool_only_in_turn(
    worker: Callable[[], Worker],
) -> None:
    here, elsewhere = worker(), worker()
    for one in (here, elsewhere):
        running.set(None)
        one.register("everybody")
    first = here.open("ann", 0)
    second = here.open("ann", 1, first)

    assert (here.call("ann", first), here.call("ann", second)) == ("ann", "ann")
    assert (here.shown("ann", first), here.shown("ann", second)) == ("everybody", "ann")
    assert elsewhere.call("ann", second) == "ann"
    assert here.registry.bound(AGENT, INBOX) is not None
    assert [item.description for item in here.registry.items(AGENT) if item.name == INBOX] == ["everybody"]
    running.set(job_of(_call_of("ann")))
    assert here.tools.unregister(INBOX)
    assert not here.tools.unregister(INBOX)
    assert INBOX not in [item.name for item in here.registry.items(AGENT, ("default", "ann"))]
    assert [item.description for item in here.registry.items(AGENT, ("default", "bob"))][-1] == "everybody"


def test_tool_unregistered_elsewhere_leaves_next_step(
    worker: Callable[[], Worker],
) -> None:
    here, other = worker(), worker()
    second = here.open("ann", 1, here.open("ann", 0))
    assert other.call("ann", second) == "ann"  # now the other worker has it, too
    third = here.open("ann", 2, second, drop=True)
    fourth = other.open("ann", 3, third)

    assert [here.shown("ann", step) for step in (second, third, fourth)] == ["ann", "ann", None]
    with pytest.raises(ToolNotInCatalogError):
        other.call("ann", fourth)
    assert here.shown("ann", here.open("ann", 4, fourth)) is None


def test_worker_lacking_handler_can_unregister_earlier_tool(
    worker: Callable[[], Worker],
) -> None:
    here, other = worker(), worker()
    first = here.open("ann", 0)
    second = other.open("ann", 1, first, drop=True)
    third = here.open("ann", 2, second, drop=True)

    assert (other.dropped, here.dropped) == ([True], [False])
    assert here.shown("ann", third) is None


def test_lasting_tool_unregistered_by_step_leaves_turn_everywhere(
    worker: Callable[[], Worker],
) -> None:
    here, other = worker(), worker()
    for one in (here, other):
        running.set(None)
        one.register("everybody")
    first = here.open("ann", 1, drop=True)
    second = other.open("ann", 2, first)

    assert (here.shown("ann", first), here.shown("ann", second)) == ("everybody", None)
    assert other.shown("bob", other.open("bob", 1)) == "everybody"
    assert here.shown("bob", here.open("bob", 2)) == "everybody"


def test_unregistered_tool_registered_again_comes_back(worker: Callable[[], Worker]) -> None:
    here, other = worker(), worker()
    dropped = here.open("ann", 1, here.open("ann", 0), drop=True)
    again = other.open("ann", 2, dropped, again=True)

    last = here.open("ann", 3, again)
    assert (here.shown("ann", again), here.shown("ann", last)) == (None, "ann")
    assert here.call("ann", last) == "ann"


def test_tool_unregistered_after_opening_leaves_next_step(
    worker: Callable[[], Worker],
) -> None:
    here, other = worker(), worker()
    second = here.open("ann", 1, here.open("ann", 0))
    running.set(job_of(_call_of("ann")))
    assert here.tools.unregister(INBOX)
    call = new_call(AGENT, INBOX, {}, {"turn_id": "ann", "step_id": second.id})
    here.guard.note_unregistered(call, here.registry.dynamic.untold(call.agent_name, turn_of(call)))

    assert here.registry.dynamic.untold(call.agent_name, turn_of(call)) == frozenset()
    assert other.shown("ann", other.open("ann", 2, second)) is None
    assert here.shown("ann", here.open("ann", 3, second)) is None


def test_forgotten_turn_tools_return_with_call(
    worker: Callable[[], Worker], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.tools.dynamic_tools.MOST_TURNS", 2)
    here = worker()
    step = here.open("ann", 1, here.open("ann", 0))
    for user in ("bob", "cid"):
        here.open(user, 0)

    assert len(here.registry.dynamic.of_turns(AGENT)) == 2
    assert here.call("ann", step) == "ann"
    for user in ("dee", "eve"):
        here.open(user, 0)
    assert here.call("ann", step) == "ann"
    assert len(here.registry.dynamic.of_turns(AGENT)) == 2


def _call_of(turn: str) -> ToolCall:
    return new_call(AGENT, INBOX, {}, {"turn_id": turn})
