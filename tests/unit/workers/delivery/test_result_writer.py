"""How runs end, also where a fault of ours is in the way."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis import Redis
from redis.exceptions import ResponseError
from structlog.testing import capture_logs

from broker_config.scripts import ScriptCall
from broker_config.settings import Settings
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.fleet.call_counts import CallCounts
from goondan_tasks.fleet.monitors import Monitors
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim
from goondan_tasks.ledger.submission import Submission
from tests.unit.goondan_tasks.ledger.calls import submit
from workers.delivery.result_writer import ResultWriter
from workers.job import Job

UNUSED: Any = None


class Stumbling(Reaper):
    """Has a fault, as often as is said."""

    faults = 0

    def answer(self, claim: Claim, result: ToolCallResult) -> Submission | None:
        if self.faults:
            self.faults -= 1
            raise LookupError("a fault of ours")
        return super().answer(claim, result)


class Desk:
    """The endings of a process that has one claim, and what it still holds."""

    def __init__(self, redis: Redis) -> None:
        self.ledger = Ledger(redis, Settings())
        self.reaper = Stumbling(self.ledger, "")
        call = new_call("coder", "bash__exec", {}, {"tool_call_id": "call_1"})
        submit(self.ledger, call)
        self.claim = self.ledger.claim(ClaimRequest(identity_of(call), call, "w1", ClaimTerms())).run(
            self.ledger.redis
        )
        self.job = self.new_job()
        self.held = {"lease", "cancels"}

        #: whether other calls may wait for the run
        self.is_limited = False
        #: whether each answer was urgent
        self.urgency: list[bool] = []

        def run_at_once(
            script_call: ScriptCall[Any],
            then: Callable[[Any], object],
            *,
            is_urgent: bool = False,
            refused: Callable[[ResponseError], object],
        ) -> None:
            self.urgency.append(is_urgent)
            try:
                answer = script_call.run(redis)
            except ResponseError as error:
                refused(error)
            else:
                then(answer)

        writer: Any = SimpleNamespace(put_off=run_at_once, flush=lambda: None)
        self.result_writer = ResultWriter(
            self.ledger,
            writer,
            self.reaper,
            limiter=self,  # type: ignore[arg-type]
            leases=SimpleNamespace(  # type: ignore[arg-type]
                drop=lambda _: self.held.discard("lease"), held=lambda: [self.claim]
            ),
            cancels=SimpleNamespace(drop=self._drop),  # type: ignore[arg-type]
            retries=UNUSED,
            spans=SimpleNamespace(end=lambda claim, result: None),
            log=SimpleNamespace(write=lambda calls: None),  # type: ignore[arg-type]
            counts=CallCounts(lambda agent, tool: True),
            monitors=Monitors(redis, self.ledger.settings),
        )

    def new_job(self) -> Job:
        """Make a job of the claim, which the pool looks after."""
        job = Job.of_claim(self.claim, "agent.coder")
        job.watch, job.is_told = lambda *_, **__: lambda: None, True
        return job

    def _drop(self, _: Claim, *, is_lost: bool) -> None:
        self.held.discard("cancels")
        self.was_lost = is_lost

    def is_waited_for(self, _: ToolCall) -> bool:
        return self.is_limited

    def follow(self, _: int | None) -> None: ...

    def leave_damaged(self, _: Claim) -> None: ...

    def finish(self, *, faults: int) -> ToolCallResult | None:
        self.reaper.faults = faults
        assert self.result_writer.finish(self.job, self.claim.run.ok("done", None))
        return self.ledger.result(self.claim.run.id)


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def desk(redis: Redis) -> Desk:
    return Desk(redis)


def test_successful_run_releases_everything_it_holds(desk: Desk) -> None:
    result = desk.finish(faults=0)
    assert result is not None
    assert (result.status, desk.held, desk.result_writer.awaits_confirmation) == ("ok", set(), False)


def test_internal_fault_at_run_end_becomes_result(desk: Desk) -> None:
    result = desk.finish(faults=1)
    assert result is not None
    assert result.error is not None
    assert (result.error.code, result.error.message) == ("E_TOOL", "a fault of ours")
    assert (desk.held, desk.result_writer.awaits_confirmation) == (set(), False)


def test_run_with_lost_claim_leaves_call_open(desk: Desk) -> None:
    desk.finish(faults=0)
    assert not desk.was_lost
    desk.result_writer.finish(desk.new_job(), desk.claim.run.ok("again", None))
    assert desk.was_lost


def test_unstorable_call_end_is_left_to_sweep(desk: Desk) -> None:
    assert desk.finish(faults=2) is None
    assert desk.was_lost
    assert (desk.held, desk.result_writer.awaits_confirmation) == (set(), False)


def test_call_whose_record_rejects_result_is_released(redis: Redis, desk: Desk) -> None:
    redis.set(desk.ledger.keys.call(desk.claim.run.id), "of another program")
    with capture_logs() as logs:
        assert desk.result_writer.finish(desk.job, desk.claim.run.ok("done", None))
    assert desk.was_lost
    assert (desk.held, desk.result_writer.awaits_confirmation) == (set(), False)
    assert [entry["event"] for entry in logs] == ["call.not_stored"]


@pytest.mark.parametrize("is_limited", [True, False])
def test_awaited_run_end_is_confirmed_at_once(desk: Desk, is_limited: bool) -> None:
    desk.is_limited = is_limited
    desk.finish(faults=0)
    assert desk.urgency == [is_limited]


def test_run_that_was_answered_for_has_that_result(desk: Desk) -> None:
    in_its_place, late = (desk.claim.run.ok(text, None) for text in ("in its place", "late"))
    assert [desk.result_writer.answer(desk.job, in_its_place) for _ in range(2)] == [True, False]
    assert not desk.result_writer.finish(desk.job, late)
    result = desk.ledger.result(desk.claim.run.id)
    assert result is not None
    assert result.output == "in its place"


def test_run_that_has_ended_is_not_answered_for(desk: Desk) -> None:
    desk.finish(faults=0)
    assert not desk.result_writer.answer(desk.job, desk.claim.run.ok("in its place", None))
    result = desk.ledger.result(desk.claim.run.id)
    assert result is not None
    assert result.output == "done"


@pytest.mark.parametrize(("has_begun", "status"), [(True, "done"), (False, "queued")])
def test_marked_run_is_returned_only_before_handler(redis: Redis, has_begun: bool, status: str) -> None:
    desk = Desk(redis)
    desk.result_writer.unstarted.add(desk.claim.token)
    desk.ledger.start([desk.claim.id_and_token]).run(redis)  # too few replicas have confirmed it
    if has_begun:
        assert desk.result_writer.take_unstarted(desk.claim)

    desk.result_writer.abandon()

    record = desk.ledger.record(desk.claim.run.id)
    assert record is not None
    assert record.status == status
    assert not desk.result_writer.take_unstarted(desk.claim)


def test_lines_of_abandoned_run_stay_with_call(redis: Redis) -> None:
    desk = Desk(redis)
    desk.ledger.start([desk.claim.id_and_token]).run(redis)
    desk.claim.run.lines.add("a line")

    desk.result_writer.abandon()

    record = desk.ledger.record(desk.claim.run.id)
    assert record is not None
    assert (record.status, record.lines) == ("done", {1: "a line"})
