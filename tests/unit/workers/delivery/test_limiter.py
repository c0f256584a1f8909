"""What is sent before a claim: nothing for calls without limits."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import fakeredis
import pytest
from redis import Redis

from broker_config.scripts import ScriptCall
from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.output import Pending
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.completions import Completions
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.timer import Timer
from tests.waiting import wait_until
from workers.delivery.limiter import CallLimiter
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.isolation import Children, Isolation
from workers.tools.registry import Registry

BUNDLE = load_bundle(Path(__file__).parents[3] / "bundles/limits")


class DirectWriter:
    """Runs every script call at once."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.script_calls: list[ScriptCall[Any]] = []

    def send(self, script_call: ScriptCall[Any], receiver: Callable[[Any], None]) -> bool:
        self.script_calls.append(script_call)
        receiver(script_call.run(self._redis))
        return True

    def ask(self, script_call: ScriptCall[Any]) -> Any:
        self.script_calls.append(script_call)
        return script_call.run(self._redis)


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def writer(redis: Redis) -> DirectWriter:
    return DirectWriter(redis)


class Porch:
    """A limiter, and a ledger whose claims it asks for."""

    def __init__(self, redis: Redis, writer: DirectWriter) -> None:
        registry = Registry(BUNDLE, Isolation(Children(), ""), HostedTools(Hosts(), Path(), ""))
        self.writer = writer
        self.ledger = Ledger(redis, Settings())
        self.keeper = CallLimiter(
            self.ledger,
            writer,  # type: ignore[arg-type]
            tools_of=lambda _: registry,
        )

    def claim(self, tool: str, turn: str, **fields: Any) -> Claim:
        call = new_call("clerk", tool, {}, {"turn_id": turn, "tool_call_id": "call_1", **fields})
        request = ClaimRequest(identity_of(call), call, "w1", ClaimTerms())
        return self.keeper.claim(
            request, lambda asked: self.ledger.claim(asked).run(self.ledger.redis), nullcontext()
        )

    def finish(self, claim: Claim) -> None:
        self.ledger.finish(claim, claim.run.ok(1, None)).run(self.ledger.redis)


def test_call_without_limits_sends_nothing_but_its_claim(redis: Redis, writer: DirectWriter) -> None:
    porch = Porch(redis, writer)
    for tool in ("free__work", "no__such"):
        claim = porch.claim(tool, tool)
        assert claim.verdict is Verdict.RUN
        porch.finish(claim)
    assert writer.script_calls == []


def test_limited_call_is_claimed_once_admitted(redis: Redis, writer: DirectWriter) -> None:
    porch = Porch(redis, writer)
    first = porch.claim("desk__solo", "t1")
    waiting = porch.claim("desk__solo", "t2")
    assert (first.verdict, waiting.verdict, waiting.is_ours) == (Verdict.RUN, Verdict.WAITING, False)
    assert waiting.about == "concurrency:desk__solo"
    porch.finish(first)
    assert redis.llen("agent.clerk") == 1
    assert porch.claim("desk__solo", "t2").verdict is Verdict.RUN


def test_second_message_of_running_call_keeps_permit(redis: Redis, writer: DirectWriter) -> None:
    porch = Porch(redis, writer)
    porch.claim("desk__solo", "t1")
    again = porch.claim("desk__solo", "t1")
    assert again.verdict is Verdict.HELD
    assert porch.claim("desk__solo", "t2").verdict is Verdict.WAITING


def test_call_is_claimed_to_share_keys_result(redis: Redis, writer: DirectWriter) -> None:
    porch = Porch(redis, writer)
    first = porch.claim("free__work", "t1", idempotency_key="k")
    porch.finish(first)
    second = porch.claim("free__work", "t2", idempotency_key="k")
    assert (second.verdict, second.about) == (Verdict.SHARED, first.run.id)


def test_edited_calls_old_message_takes_edited_arguments_key(redis: Redis, writer: DirectWriter) -> None:
    porch = Porch(redis, writer)
    held = porch.claim("free__work", "t1", idempotency_key="k")
    pending = held.run.pending(Pending("h", is_approval=True), None, expires_at=held.run.clock() + 60_000)
    porch.ledger.suspend(held, pending).run(redis)
    record = porch.ledger.record(held.run.id)
    assert record is not None
    Completions(porch.ledger, Reaper(porch.ledger, "")).approve(record, "ann", {"n": 2})
    edited = porch.claim("free__work", "t1", idempotency_key="k")
    assert (edited.verdict, edited.run.call.args) == (Verdict.RUN, {"n": 2})
    porch.finish(edited)
    as_asked = porch.claim("free__work", "t2", idempotency_key="k")
    assert (as_asked.verdict, as_asked.about) == (Verdict.CONFLICT, edited.run.id)


def test_rate_is_looked_after_when_its_time_comes(redis: Redis, writer: DirectWriter) -> None:
    porch = Porch(redis, writer)
    verdicts: list[Verdict] = []
    while Verdict.WAITING not in verdicts:  # on a machine that stands still, not the first five of a second
        claim = porch.claim("desk__paced", f"t{len(verdicts)}")
        verdicts.append(claim.verdict)
        if claim.is_ours:
            porch.keeper.begin(claim)
    assert verdicts[:5] == [Verdict.RUN] * 5
    timer = Timer(porch.ledger)
    wait_until(lambda: timer.wake().run(redis) is not None and redis.llen("agent.clerk") == 1)
