"""What a claim says about running a call again: the terms of the revision that runs it."""

import itertools
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.confirmation import NotConfirmedError
from broker_config.queues import TOOL_CALL_TASK
from broker_config.scripts import ScriptCall
from broker_config.settings import Settings
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import ToolCancelledError, ToolError, ToolOutcomeUnknownError
from goondan_tasks.contract.messages import ToolCall, wall_clock
from goondan_tasks.contract.names import NO_CALL_TOOL, STEP_TOOL
from goondan_tasks.fleet.pauses import Paused
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Stored
from workers.cancellation import Cancellation
from workers.delivery.delivery import Delivery
from workers.delivery.incoming import Incoming
from workers.delivery.result_writer import ResultWriter
from workers.job import Job
from workers.tools.dynamic_tools import DynamicTools, TurnKey

UNUSED: Any = None


class Registry:
    """The tools of a revision: each is idempotent, or none is."""

    def __init__(self, *, idempotent: bool) -> None:
        self._bound = SimpleNamespace(
            export=SimpleNamespace(idempotent=idempotent, max_attempts=2, timeout_seconds=None)
        )
        self.dynamic = DynamicTools()

    def known(self, agent: str, tool: str, turn: TurnKey | None = None) -> Any:
        return self._bound

    def all_known(self, agent: str) -> dict[str, Any]:
        return {STEP_TOOL: self._bound, "skin__colour": self._bound}

    def limits(self, agent: str, tool: str) -> None:
        return None

    def handles_events(self, agent: str) -> bool:
        return True


class FakeRevisions:
    """Revision r1 is active, and idempotent; at the next Safe Point r2 is, which is not."""

    def __init__(self) -> None:
        self._of = {"r1": Registry(idempotent=True), "r2": Registry(idempotent=False)}
        self.active = SimpleNamespace(ref="r1", registry=self._of["r1"])

    def fixed(self, call: ToolCall) -> ToolCall:
        self.active = SimpleNamespace(ref="r2", registry=self._of["r2"])
        return call.model_copy(update={"bundle_ref": "r2"})

    def registry(self, ref: str | None) -> Registry:
        return self._of[ref or self.active.ref]


class Results:
    """Takes note of the runs that wait for their marks, and of nothing else."""

    take_unstarted: Any = ResultWriter.take_unstarted

    def __init__(self, store: Any = None) -> None:
        self.unstarted: set[str] = set()
        self.store = store


def delivery(ledger: Ledger, revisions: FakeRevisions, store: Any = None) -> Delivery:
    """Return the delivery of a process that asks the ledger at once."""
    any_: Any = revisions

    def run_at_once(
        script_call: ScriptCall[Any], then: Any, *, refused: Any = raise_or_return, **_: Any
    ) -> bool:
        try:
            answer = script_call.run(ledger.redis)
        except ResponseError as error:
            refused(error)
        else:
            then(answer)
        return True

    writer: Any = SimpleNamespace(
        put_off=run_at_once,
        send=run_at_once,
        ask=lambda script_call: script_call.run(ledger.redis),
        flush=lambda: None,
    )
    reaper: Any = Reaper(ledger, "")
    reaper.message = lambda call_id, call: b""
    return Delivery(
        ledger,
        writer,
        reaper,
        limiter=SimpleNamespace(  # type: ignore[arg-type]
            claim=lambda request, claim, turn: claim(request), begin=lambda claim: None, paused=Paused()
        ),
        revisions=any_,
        leases=SimpleNamespace(hold=lambda claim: None),  # type: ignore[arg-type]
        watchdog=UNUSED,
        cancels=SimpleNamespace(hold=lambda *_: Cancellation()),  # type: ignore[arg-type]
        result_writer=Results(store),  # type: ignore[arg-type]
        spans=SimpleNamespace(around=lambda claim, run: run),
    )


@pytest.mark.parametrize("tool", ["goondan__event", STEP_TOOL])
def test_claim_terms_come_from_running_revision(tool: str) -> None:
    with fakeredis.FakeRedis() as redis:
        ledger = Ledger(redis, Settings())
        call = new_call("lizard", tool, {}, {})
        incoming: Any = SimpleNamespace(id="id-1", was_stored=False, call=lambda most: call)
        claim = delivery(ledger, FakeRevisions()).claim(incoming, "w1")
        terms = redis.hmget(ledger.keys.call("id-1"), "idempotent", "maxAttempts")
    assert claim.run.call.bundle_ref == "r2"
    assert terms == [b"0", b"2"]


def test_step_opener_is_not_claimed_before_safe_point() -> None:
    with fakeredis.FakeRedis() as redis:
        ledger = Ledger(redis, Settings())
        claim_on_reserve = delivery(ledger, FakeRevisions()).claim_on_reserve("w1", ["lizard"])
    assert '"goondan__step":false' in claim_on_reserve.terms["agent.lizard"]
    assert '"skin__colour":["1",2,0]' in claim_on_reserve.terms["agent.lizard"]


def marked(ledger: Ledger, *, is_cancelled: bool = False) -> float:
    """Mark a call that was claimed as started."""
    call = new_call("lizard", "skin__colour", {}, {})
    claim = ledger.claim(ClaimRequest("id-1", call, "w1", ClaimTerms())).run(ledger.redis)
    if is_cancelled:
        ledger.cancel("id-1", "producer").run(ledger.redis)
    return delivery(ledger, FakeRevisions()).start(claim, Cancellation())


def test_cancelled_call_with_refused_mark_never_begins() -> None:
    with fakeredis.FakeRedis() as redis:
        ledger = Ledger(redis, Settings())
        with pytest.raises(ToolCancelledError):
            marked(ledger, is_cancelled=True)


def test_mark_is_retried_while_redis_answers_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    with fakeredis.FakeRedis() as redis:
        ledger = Ledger(redis, Settings())
        answers = iter([RedisConnectionError("away"), ResponseError("OOM"), [Stored.YES]])
        mark = SimpleNamespace(run=lambda redis: raise_or_return(next(answers)))
        monkeypatch.setattr(ledger, "start", lambda claims: mark)
        monkeypatch.setattr("workers.delivery.delivery.PAUSE_SECONDS", 0)
        assert marked(ledger) > 0
    assert list(answers) == []


def test_call_returned_while_awaiting_mark_never_begins(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    call = new_call("lizard", "skin__colour", {}, {})
    with fakeredis.FakeRedis() as redis:
        ledger = Ledger(redis, Settings())
        claim = ledger.claim(ClaimRequest("id-1", call, "w1", ClaimTerms())).run(ledger.redis)
        one = delivery(ledger, FakeRevisions())
        given_back: list[bool] = []

        def stop(_: float) -> None:
            given_back.append(one.result_writer.take_unstarted(claim))

        answers = iter([NotConfirmedError("0 of 1 replicas have confirmed it"), [Stored.YES]])
        mark = SimpleNamespace(run=lambda redis: raise_or_return(next(answers)))
        monkeypatch.setattr(ledger, "start", lambda claims: mark)
        monkeypatch.setattr(
            "workers.delivery.delivery.time", SimpleNamespace(monotonic=lambda: 0, sleep=stop)
        )
        with pytest.raises(ToolCancelledError, match="has given the call back"):
            one.start(claim, Cancellation())
    assert given_back == [True]


def test_lease_expired_during_mark_asks_again_and_loses_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with fakeredis.FakeRedis() as redis:
        ledger = Ledger(redis, Settings())
        start, clock = ledger.start, itertools.count(1_000, ledger.settings.lease_seconds)
        tokens: list[str] = []

        def lose_after(claims: Sequence[tuple[str, str]]) -> Any:
            answer = start(claims).run(redis)
            tokens.append(claims[0][1])
            redis.hset(ledger.keys.call("id-1"), "token", "another worker's")
            return SimpleNamespace(run=lambda _: answer)

        monkeypatch.setattr(ledger, "start", lose_after)
        monkeypatch.setattr("workers.delivery.delivery.time", SimpleNamespace(monotonic=lambda: next(clock)))
        with pytest.raises(ToolOutcomeUnknownError):
            marked(ledger)
    assert len(tokens) == 2


def test_released_call_is_unbound_from_workers_revision() -> None:
    call = new_call("lizard", "skin__colour", {}, {})
    answer = (b"run", 1, 0, 0, None, None, serializer.encode(call.to_wire()), b"r1", b"id-1")
    job = Job("agent.lizard", "token-1", answer, asked_at=0, clock=wall_clock, worker="w1")
    sent: list[str | None] = []

    def note_ref(_: str, call: ToolCall) -> bytes:
        sent.append(call.bundle_ref)
        return b""

    with fakeredis.FakeRedis() as redis:
        one: Any = delivery(Ledger(redis, Settings()), FakeRevisions())
        # there is no record: no claim is released
        one.result_writer, one.flush = SimpleNamespace(store=lambda *_: None), lambda: None
        one.reaper.message = note_ref
        one.give_back(job)
    assert job.claim.run.call.bundle_ref == "r1"
    assert sent == [None]


def test_release_on_lost_connection_uses_other_connection() -> None:
    call = new_call("lizard", "skin__colour", {}, {})
    with fakeredis.FakeRedis() as redis:
        ledger = Ledger(redis, Settings())
        claim = ledger.claim(ClaimRequest("id-1", call, "w1", ClaimTerms(), "token-1")).run(ledger.redis)
        answer = (b"run", 1, 0, 0, None, None, serializer.encode(call.to_wire()), b"", b"id-1")
        job = Job("agent.lizard", claim.token, answer, asked_at=0, clock=wall_clock, worker="w1")
        release = delivery(ledger, FakeRevisions()).release(job)
        assert release is not None
        release[1](RedisConnectionError("lost"))
        assert redis.hget(ledger.keys.call("id-1"), "status") == b"queued"


def test_damaged_call_is_refused_and_dead_lettered() -> None:
    call = new_call("lizard", "skin__colour", {}, {})
    incoming = Incoming("id-1", "agent.lizard", call.to_wire(), TOOL_CALL_TASK, None)
    with fakeredis.FakeRedis() as redis:
        ledger = Ledger(redis, Settings())
        redis.set(ledger.keys.call("id-1"), "of another program")
        stored: list[Claim] = []
        desk = delivery(ledger, FakeRevisions(), store=lambda job, result: stored.append(job.claim))
        with pytest.raises(ToolError, match=r"call id-1, or of its limits, is damaged: WRONGTYPE") as raised:
            desk.claim(incoming, "w1")
        desk.refuse(incoming, "w1", raised.value)
    [letter] = stored
    assert letter.run.call.tool_name == NO_CALL_TOOL
    assert "call id-1, or of its limits, is damaged: WRONGTYPE" in letter.run.call.args["reason"]
    assert call.trace_id in letter.run.call.args["message"]


def test_call_that_cannot_be_read_is_not_released() -> None:
    answer = (b"run", 1, 0, 0, None, None, b"[]", b"", b"id-1")
    job = Job("agent.lizard", "token-1", answer, asked_at=0, clock=wall_clock, worker="w1")
    with fakeredis.FakeRedis() as redis:
        assert delivery(Ledger(redis, Settings()), FakeRevisions()).release(job) is None


def raise_or_return(answer: Any) -> Any:
    """Raise an error, return anything else."""
    if isinstance(answer, Exception):
        raise answer
    return answer
