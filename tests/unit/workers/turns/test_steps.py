"""What a worker knows of Steps: opened here, or read from Redis."""

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from broker_config.keys import Keys
from goondan_tasks.authoring.extension_api import StepResult
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.catalog import ToolCatalog
from goondan_tasks.contract.errors import (
    MiddlewareError,
    StepLimitError,
    ToolNotInCatalogError,
    ToolTimeoutError,
)
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.history import KeptStep, LeftTools, StepStore, TurnHistory
from tests.unit.workers.runs import job_of, open_step
from tests.waiting import wait_until
from workers.concurrency.event_loop import EventLoopThread
from workers.extensions.events import EventListeners
from workers.extensions.pipelines import AgentPipelines
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.isolation import Children, Isolation
from workers.tools.registry import Registry
from workers.turns.pipeline import CoreOutcome, blocking
from workers.turns.steps import MOST_TOLD, StepRequest, Steps, StepTerms, step_tool

STEPS_BUNDLE = Path(__file__).parents[3] / "bundles" / "steps"


Worker = Callable[..., Steps]


class Store(StepStore):
    """Counts how often a Step is read, and fails when it is told to."""

    read_error: Callable[[], Exception | None] = staticmethod(lambda: None)

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        #: the Steps that were asked for in each trip
        self.trips: list[list[str]] = []

    @property
    def reads(self) -> int:
        return len(self.trips)

    def read_all(self, step_ids: Sequence[str]) -> list[KeptStep | Exception | None]:
        self.trips.append(list(step_ids))
        error = self.read_error()
        if error is not None:
            raise error
        return super().read_all(step_ids)


@pytest.fixture
def store() -> Iterator[Store]:
    with fakeredis.FakeRedis() as redis:
        yield Store(redis, Keys(), 60)


@pytest.fixture(scope="module")
def steps() -> Iterator[Worker]:
    """Make Steps as a new worker process has them."""
    event_loop = EventLoopThread()
    event_loop.start()

    def worker(store: StepStore, pipelines: AgentPipelines | None = None) -> Steps:
        return Steps(
            store,
            Registry(
                load_bundle(STEPS_BUNDLE), Isolation(Children(), ""), HostedTools(Hosts(), STEPS_BUNDLE, "")
            ),
            pipelines or AgentPipelines(),
            events=EventListeners(event_loop.submit),
            event_loop=event_loop,
            terms=StepTerms(most_steps=2, max_args_bytes=1000, help_url=""),
        )

    yield worker
    event_loop.stop()


def opening(index: int = 0, turn_id: str = "t") -> ToolCall:
    fields = {"turn_id": turn_id, "tool_call_id": f"step-{index}"}
    return new_call("plain-cook", "goondan__step", {"index": index}, fields)


def call(step_id: str, **fields: Any) -> ToolCall:
    return new_call("plain-cook", "stove__cook", {}, {"turn_id": "t", "step_id": step_id, **fields})


def test_worker_asks_redis_once_for_step_opened_elsewhere(steps: Worker, store: Store) -> None:
    opener, another = steps(store), steps(store)
    opened = open_step(opener, opening())
    assert opener.require(call(opened.id)).catalog.item("stove__cook") is not None
    assert store.reads == 0
    assert another.require(call(opened.id)).catalog.item("stove__cook") is not None
    another.require(call(opened.id))
    assert store.reads == 1


def test_slow_reopening_leaves_step_as_first_opened(steps: Worker, store: Store) -> None:
    slow, quick, another = steps(store), steps(store), steps(store)
    asked = opening()
    frozen = slow.prepare(StepRequest(identity_of(asked), asked, 0))
    frozen.pass_through()
    frozen.catalog = ToolCatalog(())
    opened = open_step(quick, asked)
    late = slow.opened(frozen)
    assert not store.run(late.keeping)
    assert slow.opened_before(late.record) == opened
    for worker in (slow, quick, another):
        assert worker.require(call(opened.id)).catalog.item("stove__cook") is not None


def test_only_agent_with_extensions_gets_previous_steps_tools(
    steps: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    left_by = store.left_by

    def noted(step_id: str, call: ToolCall, **fields: Any) -> LeftTools:
        asked.append(call.agent_name)
        return left_by(step_id, call, **fields)

    monkeypatch.setattr(store, "left_by", noted)
    for agent in ("cook", "plain-cook"):
        first = open_step(steps(store), opening().model_copy(update={"agent_name": agent}))
        args = {"index": 1, "previousStepId": first.id}
        open_step(steps(store), opening(1).model_copy(update={"agent_name": agent, "args": args}))
    assert asked == ["cook"]


def test_most_recently_used_steps_are_remembered(
    steps: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.turns.steps.MOST_KNOWN", 2)
    here, opener = steps(store), steps(store)
    opened = {turn: open_step(opener, opening(turn_id=turn)).id for turn in ("t1", "t2", "t3")}
    for turn in ("t1", "t2", "t1", "t3", "t1"):
        here.require(call(opened[turn], turn_id=turn))
    assert store.reads == 3


def test_steps_opened_elsewhere_are_learned_together_once(steps: Worker, store: Store) -> None:
    opener, here = steps(store), steps(store)
    records = [
        call(open_step(opener, opening(turn_id=turn)).id, turn_id=turn).to_wire() for turn in ("t1", "t2")
    ]
    names = [record["stepId"] for record in records]
    assert [here.known(record) for record in records] == [None, None]

    here.learn([*names, "unknown"])
    here.learn(names)

    learned = [here.known(record) for record in records]
    assert [step.record.id for step in learned if step is not None] == names
    assert store.trips == [[*names, "unknown"]]
    assert here.known({**records[0], "turnId": "t2"}) is None


def test_steps_that_redis_cannot_tell_stay_unknown(steps: Worker, store: Store) -> None:
    record = call(open_step(steps(store), opening()).id).to_wire()
    here = steps(store)
    store.read_error = lambda: RedisConnectionError("away")
    here.learn([record["stepId"]])
    assert here.known(record) is None


def test_expired_step_is_refused_by_knowing_workers(steps: Worker) -> None:
    with fakeredis.FakeRedis() as redis:
        store = Store(redis, Keys(), 1)
        opener, another = steps(store), steps(store)
        opened = open_step(opener, opening())
        another.require(call(opened.id))

        def refuses(worker: Steps) -> bool:
            try:
                worker.require(call(opened.id))
            except ToolNotInCatalogError:
                return True
            return False

        wait_until(lambda: refuses(opener) and refuses(another), 30)
        assert opener.known(call(opened.id).to_wire()) is None


def test_call_waits_while_redis_is_away(steps: Worker, store: Store) -> None:
    opened = open_step(steps(store), opening())
    errors: list[Exception | None] = [RedisConnectionError("away"), RedisConnectionError("away"), None]
    store.read_error = lambda: errors.pop(0)
    assert steps(store).require(call(opened.id)).record == opened


def test_call_does_not_wait_for_redis_for_ever(
    steps: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.turns.steps.PATIENCE_SECONDS", 0)
    store.read_error = lambda: RedisConnectionError("away")
    with pytest.raises(ToolTimeoutError, match="away"):
        steps(store).require(call("any"))


def test_step_that_cannot_be_read_is_refused(steps: Worker, store: Store) -> None:
    opened = open_step(steps(store), opening())
    store.read_error = lambda: ValueError("a newer version")
    with pytest.raises(ToolNotInCatalogError, match="unknown or has expired"):
        steps(store).require(call(opened.id))


@pytest.mark.parametrize("fields", [{"turn_id": "other"}, {"instance_key": "other"}])
def test_step_is_for_its_own_turn_only(steps: Worker, store: Store, fields: dict[str, str]) -> None:
    here = steps(store)
    opened = open_step(here, opening())
    with pytest.raises(ToolNotInCatalogError):
        here.require(call(opened.id, **fields))


def test_turn_has_as_many_steps_as_policy_says(steps: Worker, store: Store) -> None:
    here = steps(store)
    assert [open_step(here, opening(index)).index for index in range(2)] == [0, 1]
    with pytest.raises(StepLimitError, match="'t' has reached its limit of 2 Steps"):
        open_step(here, opening(2))


def test_opening_same_step_again_gives_same_step(steps: Worker, store: Store) -> None:
    first, again = (open_step(steps(store), opening()) for _ in range(2))
    assert (first.id, first.catalog) == (again.id, again.catalog)


def test_anothers_hanging_middlewares_do_not_block_call_forever(
    steps: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def hangs(ctx: Any) -> Any:
        has_begun.set()
        may_end.wait(30)
        return ctx.next()

    def watch(seconds: float, *_: object, **__: object) -> Callable[[], None]:
        watched.append(seconds)
        return lambda: watched.append(-seconds)

    has_begun, may_end = threading.Event(), threading.Event()
    watched: list[float] = []
    monkeypatch.setattr("workers.turns.steps.RUN_HERE_SECONDS", 0.05)
    opened, pipelines = open_step(steps(store), opening()), AgentPipelines()
    pipelines.register("plain-cook", "step", hangs, extension="slow")
    here = steps(store, pipelines)
    first = threading.Thread(target=here.run_here, args=(call(opened.id), watch))
    first.start()
    assert has_begun.wait(30)
    with pytest.raises(ToolTimeoutError, match="still ran for another call"):
        here.run_here(call(opened.id), watch)
    may_end.set()
    first.join(30)
    assert watched == [0.05, 0.05, -0.05, -0.05]


def test_step_is_open_from_preparation_to_end(steps: Worker, store: Store) -> None:
    here = steps(store)
    for end in ("leave", "break_off"):
        step = here.prepare(StepRequest(f"s-{end}", opening(turn_id=end), 0))
        blocking(step.enter(is_async=False))
        assert not here.are_closed
        if end == "leave":
            blocking(step.leave(CoreOutcome(StepResult()), is_async=False))
        else:
            step.break_off()
        assert here.are_closed


def test_step_whose_middleware_fails_is_not_open(steps: Worker, store: Store) -> None:
    pipelines = AgentPipelines()

    def fails(_: Any) -> None:
        raise ValueError("no")

    pipelines.register("plain-cook", "step", fails, extension="x")
    here = steps(store, pipelines)
    step = here.prepare(StepRequest("s", opening(), 0))
    with pytest.raises(MiddlewareError):
        blocking(step.enter(is_async=False))
    assert here.are_closed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"blocks": None}, "The blocks of the Step are a list, not None"),
        ({"blocks": {"type": "a"}}, "The blocks of the Step are a list, not {'type': 'a'}"),
        ({"blocks": ["a"]}, "A block of the Step is an object, not 'a'"),
        ({"tool_catalog": None}, "The catalog of the Step is a list, not None"),
        ({"tool_catalog": ["stove__cook"]}, "what is not a tool: 'stove__cook'"),
    ],
)
def test_invalid_catalog_or_blocks_keep_step_from_opening(
    steps: Worker, store: Store, change: dict[str, Any], said: str
) -> None:
    def changes(ctx: Any) -> Any:
        for name, value in change.items():
            setattr(ctx, name, value)
        return ctx.next()

    pipelines = AgentPipelines()
    pipelines.register("plain-cook", "step", changes, extension="x")
    with pytest.raises(MiddlewareError, match=re.escape(said)):
        open_step(steps(store, pipelines), opening())


def test_turn_that_cannot_be_read_has_no_history(
    steps: Worker, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreadable(call: ToolCall) -> TurnHistory:
        raise ValueError("a newer version")

    opened = open_step(steps(store), opening())
    assert [entry.step_id for entry in steps(store).history(call(opened.id)).entries] == [opened.id]
    monkeypatch.setattr(store, "history", unreadable)
    assert steps(store).history(call(opened.id)) == TurnHistory()


@pytest.mark.parametrize(("blocks", "is_told"), [(1, True), (MOST_TOLD, False)])
def test_producer_is_told_of_step_unless_large(
    steps: Worker, store: Store, blocks: int, is_told: bool
) -> None:
    def fills(ctx: Any) -> Any:
        ctx.blocks.append({"type": "note", "data": "x" * blocks})
        return ctx.next()

    pipelines = AgentPipelines()
    pipelines.register("plain-cook", "step", fills, extension="x")
    handler: Any = step_tool(steps(store, pipelines).open).handler
    job = job_of(opening())
    told = handler(job, {})
    assert job.opened is not None
    store.run(job.opened.keeping)
    kept = store.read(told["stepId"])
    assert kept is not None
    assert told.get("step") == (kept.record.to_wire() if is_told else None)
