"""The thread that leads: what it does with the calls that a reservation brings."""

import asyncio
import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from time import monotonic
from types import SimpleNamespace
from typing import Any

import fakeredis
import pytest
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.queue_reader import Batch
from broker_config.scripts import ScriptCall
from broker_config.settings import Settings
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.scripts import Scripts
from tests.unit.workers.results import results_of
from tests.waiting import wait_until
from workers.concurrency.event_loop import EventLoopThread
from workers.concurrency.slots import Slots, Wait
from workers.concurrency.threads import DaemonThreads
from workers.job import Job
from workers.plan import Plan, SlowToolDetector
from workers.pool import loop_calls, outage
from workers.pool.lead import AHEAD_SECONDS, EXTRA, GROUP, Lead
from workers.pool.loop_calls import end_detached
from workers.results import result_of

_LEDGER = Ledger(fakeredis.FakeRedis(), Settings())
_START = _LEDGER.start([("a", "b")]).script.sha
_RELEASE = Scripts.read(Settings()).release.sha


class FakeReader:
    """A Redis that answers at once: every mark is confirmed, every result stored, unless told otherwise."""

    def __init__(self) -> None:
        self.batches: deque[Batch] = deque()
        self.marked: list[str] = []
        self.stored: list[str] = []
        self.released: list[str] = []
        #: by the id of a call, in place of 1
        self.mark_answers: dict[str, int] = {}
        self.is_away = False
        #: the id of a call whose keys no script can use
        self.damaged = ""
        #: how many calls were asked for beyond the free slots, each time
        self.credits: list[int] = []
        self.extras: list[int] = []
        self.ahead: list[int] = []
        #: the queues of the latest reservation, and whether any is known to hold messages
        self.queues: Sequence[str] = ()
        self.is_known = True
        self._posted: list[tuple[ScriptCall[Any], Callable[[Any], object]]] = []

    def claim_with(self, claim_on_reserve: object) -> None: ...

    def wake(self) -> None: ...

    def post(self, call: ScriptCall[Any], receiver: Callable[[Any], object]) -> None:
        self._posted.append((call, receiver))

    def send(self) -> None: ...

    def settle(self) -> None:
        posted, self._posted = self._posted, []
        for call, receiver in posted:
            if self.is_away:
                receiver(RedisConnectionError("away"))
            elif self.damaged and any(key.endswith(f":{self.damaged}") for key in call.keys):
                receiver(ResponseError("WRONGTYPE Operation against a key holding the wrong kind of value"))
            else:
                receiver(call.parse(self._answer(call)))
        if self.is_away:
            raise RedisConnectionError("away")

    def _answer(self, call: ScriptCall[Any]) -> int | list[int]:
        if call.script.sha == _RELEASE:
            self.released.append(call.arguments[0])
            return 1
        ids = [key.rpartition(":")[2] for key in call.keys[1:]]
        if call.script.sha == _START:
            self.marked += ids
            return [self.mark_answers.get(call_id, 1) for call_id in ids]
        self.stored += ids
        return [1_700_000_000_000 for _ in ids]

    def is_hot(self, queues: Sequence[str]) -> bool:
        return self.is_known and bool(queues)

    def reserve(self, queues: Sequence[str], credit: int, extra: int, *, ahead: int) -> Batch:
        self.settle()
        self.ahead.append(ahead)
        self.queues = queues
        self.credits.append(credit)
        self.extras.append(extra)
        if self.batches:
            return self.batches.popleft()
        threading.Event().wait(0.01)
        return Batch()


class Scene:
    """A lead with a pool and an executor that only take note; handlers are functions of the call's number."""

    def __init__(
        self,
        slots: int,
        handler: Callable[[int], object],
        is_plain: bool = True,
        waits_for: asyncio.Event | None = None,
    ) -> None:
        """Given ``waits_for``, handlers are async and wait for it."""
        self.reader = FakeReader()
        self.limit = slots
        self.slots = Slots(lambda: self.limit, lambda queued: None, lambda: self.lead.wake())
        self.ran: list[str] = []
        self.jobs: list[Job] = []
        self.general: list[str] = []
        #: whose release Redis has confirmed
        self.given_back: list[str] = []
        self.noted: list[str] = []
        self.detached: list[str] = []
        #: whether a drain would have found no call here while one was being detached, or counted
        self.was_idle = False
        self.failed: list[str] = []
        self.is_draining = False
        self._handler = handler
        self._is_plain = is_plain
        bound = SimpleNamespace(
            tool=SimpleNamespace(spec=SimpleNamespace(error_message_limit=100)),
            export=SimpleNamespace(retry=None, idempotency_key=None),
            is_v1=False,
            name="notes__add",
        )
        tool: Any = SimpleNamespace(bound=bound, is_async=waits_for is not None, reads=None)
        self._waits_for = waits_for
        self._plan = Plan(tool, lambda *_: None, 300, SlowToolDetector(), (), self)  # type: ignore[arg-type]
        revision = SimpleNamespace(executor=SimpleNamespace(plans=self, early_result=lambda job, plan: None))
        runtime: Any = SimpleNamespace(
            settings=Settings(),
            delivery=SimpleNamespace(
                ledger=_LEDGER,
                has_spans=False,
                release=self.release,
                result_writer=results_of(_LEDGER, self, self._note_ended, self._note_cancelled),
            ),
            revisions=SimpleNamespace(active=revision, loaded=lambda job: revision),
            event_loop=EventLoopThread(),
        )
        self.event_loop = runtime.event_loop
        self.event_loop.start()
        self.flush = self.event_loop.flush
        self.threads = DaemonThreads(lambda: None)
        self.threads.start()
        self.lead = Lead(self.reader, runtime, self.threads, self.slots, self)  # type: ignore[arg-type]
        self.lead.start()

    # the plans

    def learn_steps(self, jobs: Iterable[Job]) -> None: ...

    def of(self, job: Job) -> Plan | None:
        return self._plan if self._is_plain else None

    def run(self, job: Job, plan: Plan, context: object, mark_again: object) -> bytes:
        self.ran.append(job.id)
        self.jobs.append(job)
        self._handler(int(job.id))
        return result_of(job, job.read(), "null")

    async def run_on_loop(self, job: Job, plan: Plan, *_: object) -> None:
        assert self._waits_for is not None
        await self._waits_for.wait()

    def plain_result(self, job: Job, plan: Plan, outcome: object) -> bytes:
        return self.run(job, plan, None, None)

    def wire(self, job: Job, *, limit_seconds: float) -> object: ...

    # the pool

    def prepare_and_run(self, job: Job) -> None:
        self.general.append(job.id)
        self.slots.leave(None)

    def run_detached(self, job: Job, plan: Plan) -> None:
        end_detached(job, self.run(job, plan, None, None))

    def is_slow(self, job: Job) -> bool:
        return False

    def mark_again(self, job: Job) -> None: ...

    def detach(self, job: Job) -> None:
        def end(_: ToolCallResult) -> None:
            self.noted.append(job.id)
            self.slots.leave(None)

        self.was_idle = self.was_idle or self.lead.is_idle
        self.detached.append(job.id)
        job.end_detached = end

    def context(self, job: Job) -> object: ...

    def _note_cancelled(self, job: Job) -> None:
        self.failed.append(job.id)

    def finish(self, job: Job, result: ToolCallResult) -> None:
        self.failed.append(job.id)

    def release(self, job: Job) -> tuple[ScriptCall[Any], Callable[[Any], object]] | None:
        script_call = _LEDGER.release(job.claim, died=False, message=b"")
        return script_call, lambda answer: self.given_back.append(job.id) if answer is True else None

    def deliver(self, batch: Batch) -> None:
        self.general += [message.decode() for _, _, message in batch.messages]

    def _note_ended(self, jobs: Sequence[Job]) -> None:
        self.was_idle = self.was_idle or self.lead.is_idle
        self.noted += [job.id for job in jobs]

    # the test

    def comes(self, *call_ids: str, is_full: bool = False) -> None:
        """Let one trip bring claimed calls, and say whether more wait."""
        claims: list[tuple[str, str, Sequence[Any]]] = []
        for call_id in call_ids:
            call = new_call("coder", "calc__add", {}, {})
            text = serializer.encode(call.to_wire())
            answer = (b"run", 1, 0, 1_700_000_000_000, None, None, text, b"", call_id.encode())
            claims.append(("agent.coder", f"token-{call_id}", answer))
        self.reader.batches.append(Batch(monotonic(), claims, is_full=is_full))

    def begin(self) -> None:
        self.lead.attach("w1", lambda: ("agent.coder",))


@pytest.fixture
def gates() -> Iterator[Callable[[str], threading.Event]]:
    """Make events that are set at the end, so that no thread outlives its test."""
    made: dict[str, threading.Event] = {}
    yield lambda name: made.setdefault(name, threading.Event())
    for event in made.values():
        event.set()


def numbers(first: int, last: int) -> list[str]:
    return [str(number) for number in range(first, last)]


def test_short_calls_run_successively_with_confirmed_marks() -> None:
    held: list[int] = []
    scene = Scene(2, lambda number: held.append(len(scene.lead.claims())))
    scene.comes(*numbers(0, 30))
    scene.begin()
    wait_until(lambda: len(scene.noted) == 30 and scene.lead.claims() == [])
    assert held[0] == 30  # somebody renews their leases until their results are confirmed
    assert not scene.was_idle
    assert scene.ran == scene.noted == scene.reader.stored == numbers(0, 30)
    assert sorted(scene.reader.marked, key=int) == numbers(0, 30)
    wait_until(lambda: scene.lead.is_idle and scene.slots.taken == 0)


def test_calls_arriving_together_are_marked_before_first_begins() -> None:
    marked: dict[int, int] = {}
    scene = Scene(8, lambda number: marked.update({number: len(scene.reader.marked)}))
    scene.comes(*numbers(0, GROUP))  # from then on all calls are known to be short
    scene.comes("100", is_full=True)
    scene.comes("101", "102")
    scene.begin()
    wait_until(lambda: len(scene.noted) == GROUP + 3)
    assert marked[100] == GROUP + 3
    assert scene.reader.credits[1:3] == [8, 7]
    wait_until(lambda: scene.lead.is_idle and scene.slots.taken == 0)


def test_claimed_call_does_not_await_possibly_empty_queues() -> None:
    scene = Scene(8, lambda number: None)
    scene.reader.is_known = False
    scene.comes(*numbers(0, GROUP))
    scene.comes("100", is_full=True)
    scene.begin()
    wait_until(lambda: scene.noted == [*numbers(0, GROUP), "100"])
    assert scene.reader.credits[:3] == [8, 8, 8]


def test_claimed_call_begins_without_queues_to_check() -> None:
    scene = Scene(8, lambda number: None)
    scene.comes(*numbers(0, GROUP))
    scene.comes("100", is_full=True)
    scene.lead.attach("w1", lambda: ("agent.coder",) if scene.reader.batches else ())
    wait_until(lambda: scene.noted == [*numbers(0, GROUP), "100"])


def test_too_many_turns_awaiting_tools_keep_events_queued() -> None:
    scene = Scene(2, lambda number: None)
    scene.slots.most_released = 1
    calls, events = "agent.coder", "agent.coder.events"
    scene.lead.attach("w", lambda: [calls, events])
    wait_until(lambda: scene.reader.queues == [calls, events])
    assert scene.slots.take()
    turn = scene.slots.release_slot(Wait.TOOLS)
    wait_until(lambda: scene.reader.queues == [calls])
    turn.end(lambda: None)
    wait_until(lambda: scene.reader.queues == [calls, events])


def test_calls_claimed_ahead_fit_into_one_moment() -> None:
    scene = Scene(2, lambda number: threading.Event().wait(0.002))
    scene.comes(*numbers(0, 20))
    scene.comes(*numbers(20, 40))
    scene.begin()
    wait_until(lambda: len(scene.noted) + len(scene.given_back) == 40)  # a slow machine may take one for long
    assert max(scene.reader.extras) <= AHEAD_SECONDS / 0.002


def test_only_calls_that_need_marks_are_marked() -> None:
    scene = Scene(1, lambda number: None)
    marked, unmarked = scene._plan, replace(scene._plan, needs_mark=False)
    scene.of = lambda job: unmarked if int(job.id) % 2 else marked  # type: ignore[method-assign]
    scene.comes(*numbers(0, 3 * GROUP))
    scene.begin()
    wait_until(lambda: scene.noted == numbers(0, 3 * GROUP))
    assert scene.ran == scene.noted
    assert scene.reader.marked == [str(number) for number in range(0, 3 * GROUP, 2)]


def test_wake_up_brings_several_calls_after_short_calls() -> None:
    scene = Scene(4, lambda number: None)
    scene.comes(*numbers(0, GROUP))
    scene.begin()
    wait_until(lambda: scene.reader.ahead[-1] == 4)
    assert scene.reader.ahead[0] == 1


def test_wake_up_brings_one_call_after_long_call() -> None:
    ends = threading.Event()
    scene = Scene(4, lambda number: number < GROUP or ends.wait())
    scene.comes(*numbers(0, GROUP + 1))
    scene.begin()
    wait_until(lambda: len(scene.detached) == 1 and scene.reader.ahead[-1] == 1)
    ends.set()
    wait_until(lambda: scene.lead.is_idle)


@pytest.mark.parametrize(("answer", "ended_as_cancelled"), [(0, []), (-1, ["1"]), (-2, [])])
def test_call_whose_mark_is_refused_does_not_run(answer: int, ended_as_cancelled: list[str]) -> None:
    scene = Scene(1, lambda number: None)
    scene.reader.mark_answers["1"] = answer
    scene.comes("0", "1", "2")
    scene.begin()
    wait_until(lambda: scene.noted == ["0", "2"])
    assert (scene.ran, scene.failed) == (["0", "2"], ended_as_cancelled)


def test_results_are_sent_again_when_redis_is_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 0.01)

    def goes_away(_: int) -> None:
        scene.reader.is_away = True

    scene = Scene(1, goes_away)
    scene.comes("0")
    scene.begin()
    wait_until(lambda: scene.ran == ["0"])
    assert scene.noted == []
    scene.reader.is_away = False
    wait_until(lambda: scene.noted == ["0"])
    assert scene.ran == ["0"]


def test_unstorable_result_is_dropped_and_others_stored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def damages(number: int) -> None:
        if number == 1:
            scene.reader.damaged = "1"

    scene = Scene(1, damages)
    scene.comes("0", "1", "2")
    scene.begin()
    wait_until(lambda: scene.noted == ["0", "2"] and scene.lead.is_idle)
    assert scene.ran == ["0", "1", "2"]
    assert "call.not_stored" in capsys.readouterr().out


def test_loop_results_go_along_with_next_reservation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loop_calls, "LASTING_SECONDS", 60)
    go_on = asyncio.Event()
    scene = Scene(2, lambda number: None, waits_for=go_on)
    scene.comes("0", "1")
    scene.begin()
    wait_until(lambda: scene.slots.free == 0 and scene.threads.idle == 1)  # nobody leads
    scene.event_loop.put_off(go_on.set)
    scene.event_loop.flush()

    wait_until(lambda: scene.noted == ["0", "1"] and scene.lead.is_idle)
    assert scene.reader.stored == ["0", "1"]
    assert scene.slots.free == 2
    assert len(scene.reader.credits) > 1


def test_unsettable_mark_costs_only_its_own_call() -> None:
    scene = Scene(1, lambda number: None)
    scene.reader.damaged = "1"
    scene.comes("0", "1", "2")
    scene.begin()
    wait_until(lambda: scene.noted == ["0", "2"] and scene.lead.is_idle)
    assert scene.ran == ["0", "2"]


def test_no_call_begins_while_mark_is_unconfirmed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 0.01)
    scene = Scene(1, lambda number: None)
    job_comes = threading.Event()

    def reserve(queues: Sequence[str], credit: int, extra: int, *, ahead: int) -> Batch:
        scene.comes("0")
        scene.reader.is_away = True
        job_comes.set()
        monkeypatch.undo()
        return scene.reader.batches.popleft()

    scene.reader.reserve = reserve  # type: ignore[method-assign]
    scene.begin()
    assert job_comes.wait(60)
    assert scene.ran == []
    del scene.reader.reserve
    scene.reader.is_away = False
    wait_until(lambda: scene.noted == ["0"])


def test_waiting_work_that_outlives_call_detaches_nothing() -> None:
    scene = Scene(2, lambda number: None)
    scene.comes("0")
    scene.begin()
    wait_until(lambda: scene.noted == ["0"])
    [job] = scene.jobs

    scene.lead.detach_now(job)

    assert job.ensure_cancellation().is_over
    scene.comes("1")
    wait_until(lambda: scene.noted == ["0", "1"])
    assert scene.detached == []
    assert scene.lead._leader == 1  # nobody else was elected


def test_one_script_can_claim_any_reservation() -> None:
    scene = Scene(10_000, lambda number: None)
    scene.comes("0")
    scene.begin()
    wait_until(lambda: scene.noted == ["0"])
    # two values for each call, and unpack takes fewer than 8,000
    assert max(scene.reader.credits) + EXTRA < 4_000


def test_long_call_passes_lead_and_slotless_calls_return(
    gates: Callable[[str], threading.Event],
) -> None:
    scene = Scene(2, lambda number: gates(str(number)).wait(60) if number < 2 else None)
    scene.comes(*numbers(0, 10))
    scene.begin()
    wait_until(lambda: scene.detached == ["0", "1"])
    wait_until(lambda: len(scene.given_back) == 8)
    # each goes in front of the one that came after it
    assert scene.reader.released == numbers(2, 10)[::-1]
    wait_until(lambda: scene.ran == ["0", "1"])
    assert not scene.was_idle
    gates("1").set()
    wait_until(lambda: scene.noted == ["1"])
    scene.comes("11")
    wait_until(lambda: "11" in scene.noted)
    gates("0").set()
    wait_until(lambda: "0" in scene.noted)


def test_slow_tools_calls_immediately_get_own_threads(
    gates: Callable[[str], threading.Event],
) -> None:
    scene = Scene(4, lambda number: gates("all").wait(60))
    scene.comes(*numbers(0, 4))
    scene.begin()
    wait_until(lambda: len(scene.ran) == 4)
    assert not scene.was_idle
    gates("all").set()
    wait_until(lambda: len(scene.noted) == 4)


def test_pool_runs_non_plain_call_in_own_slot() -> None:
    scene = Scene(1, lambda number: None, is_plain=False)
    scene.comes("0", "1")
    scene.begin()
    wait_until(lambda: scene.general == ["0", "1"])
    wait_until(lambda: scene.slots.taken == 0)
    assert scene.ran == []


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"v":9}', b"\xff"])
def test_unreadable_record_is_left_to_sweep(text: bytes) -> None:
    scene = Scene(1, lambda number: None)
    damaged = ("agent.coder", "token", (b"run", 1, 0, 1, None, None, text, b"", b"damaged"))
    scene.reader.batches.append(Batch(claims=[damaged]))
    scene.comes("0")
    scene.begin()
    wait_until(lambda: scene.noted == ["0"])
    assert (scene.ran, scene.general, scene.reader.released) == (["0"], [], [])


def test_messages_that_were_not_claimed_are_delivered() -> None:
    scene = Scene(1, lambda number: None)
    scene.reader.batches.append(Batch(messages=[("tag", "agent.coder", b"raw")]))
    scene.begin()
    wait_until(lambda: scene.general == ["raw"])


def detach(scene: Scene) -> None:
    scene.lead.detach()


def drain(scene: Scene) -> None:
    scene.is_draining = True  # as the handler of SIGTERM does, without a lock


@pytest.mark.parametrize("stop", [detach, drain])
def test_unstarted_calls_return_when_intake_stops(
    stop: Callable[[Scene], None],
) -> None:
    def stops(number: int) -> None:
        if number == 3:
            stop(scene)

    scene = Scene(1, stops)
    scene.comes(*numbers(0, 10))
    scene.begin()
    wait_until(lambda: len(scene.given_back) == 6)
    wait_until(lambda: scene.noted == numbers(0, 4))
    assert scene.reader.released == numbers(4, 10)[::-1]
    wait_until(lambda: scene.lead.is_idle)


def test_fault_of_ours_leaves_worker_with_leader(capsys: pytest.CaptureFixture[str]) -> None:
    faults = itertools.count()

    def runs(job: Job, plan: Plan, context: object, mark_again: object) -> bytes:
        if next(faults) == 0:
            raise LookupError("a fault of ours")
        scene.ran.append(job.id)
        return result_of(job, job.read(), "null")

    scene = Scene(1, lambda number: None)
    scene.run = runs  # type: ignore[method-assign]
    scene.comes("0", "1")
    scene.begin()
    wait_until(lambda: scene.noted == ["1"])


def test_fault_while_awaiting_mark_leaves_call_to_lease(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scene, post = Scene(2, lambda number: None), FakeReader.post
    failed = threading.Event()

    def fail_once(reader: FakeReader, call: ScriptCall[Any], receiver: Callable[[Any], object]) -> None:
        if not failed.is_set():
            failed.set()
            raise LookupError("a fault of ours")
        post(reader, call, receiver)

    monkeypatch.setattr(FakeReader, "post", fail_once)
    scene.comes("0")
    scene.comes("1")
    scene.begin()
    wait_until(lambda: scene.noted == ["1"])
    assert failed.is_set()
    assert scene.lead.claims() == []
