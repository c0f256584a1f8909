"""Producers, workers, sweepers and operators of one swarm; each of their deeds is one step of a walk.

A step chooses by its own seed among what is possible, so a walk is a list of names and seeds, and steps can
be left out of it. Handlers do not run: the world notes when one would begin.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from random import Random
from typing import Any, cast

from redis import Redis

from broker_config import serializer
from broker_config.in_flight import InFlight, LeftMessages, ReservationFactory
from broker_config.queues import call_queue, events_queue
from broker_config.scripts import ScriptCall
from broker_config.settings import Settings
from goondan_tasks.calls import RedisDispatch, Run, identity_of, new_call
from goondan_tasks.errors import GoondanError, ToolCancelledError, ToolError
from goondan_tasks.events import is_event, mailbox_of
from goondan_tasks.handoff import outside_call
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.completions import Completions
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import CallRecord, Claim, Outcome, Stored, Verdict
from goondan_tasks.ledger.submission import Submission, digest_of, event_submission
from goondan_tasks.messages import ToolCall, ToolCallResult
from goondan_tasks.output import Pending
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.scripts import CLOCK
from workers.job import Job

LEASE = 30.0
QUEUE_SECONDS = 3600.0
AGENT, THINKER = "coder", "planner"
QUEUES = (call_queue(AGENT), events_queue(THINKER), events_queue(AGENT))
#: not idempotent, and idempotent
PLAIN, SAFE = "bash__plain", "bash__safe"
TERMS = {PLAIN: ClaimTerms(), SAFE: ClaimTerms(idempotent=True, max_attempts=3)}
MOST_CALLS = 12
_ID = re.compile(rb'"id": ?"([^"]+)"')


@dataclass(eq=False)
class KnownCall:
    """A call or event that was accepted, and what has been seen of it."""

    call: ToolCall
    submission: Submission
    number: int
    is_stored: bool = True
    #: the worker and the attempt of each run that has begun
    begun: list[tuple[str, int]] = field(default_factory=list)
    is_cancelled: bool = False
    is_damaged: bool = False
    #: whether a mark of it was confirmed, and whether it was completed while it was pending
    was_marked: bool = False
    is_completed: bool = False
    result: bytes | None = None

    @property
    def id(self) -> str:
        return self.submission.id

    @property
    def terms(self) -> ClaimTerms:
        return TERMS.get(self.call.tool_name, TERMS[PLAIN])

    @property
    def is_event(self) -> bool:
        return is_event(self.call)


@dataclass(eq=False)
class Held:
    """A claim that a worker holds."""

    claim: Claim
    #: when the claim was made, or renewed, by the worker's clock
    renewed_at: float
    is_marked: bool = False
    has_begun: bool = False

    def is_fresh(self, now: float) -> bool:
        """Whether its worker may begin it (``Job.require_fresh``)."""
        return now - self.renewed_at < LEASE * 3 / 4


@dataclass(eq=False)
class Worker:
    """One worker process. After a kill, another process takes its place."""

    name: str
    process: str
    reservations: ReservationFactory
    is_frozen: bool = False
    #: messages that were reserved and not claimed: tag, queue, text
    messages: list[tuple[str, str, bytes]] = field(default_factory=list)
    acknowledged: list[str] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)
    #: runs that are to be repeated: the claim and when
    pauses: list[tuple[Claim, float]] = field(default_factory=list)
    tokens: int = 0

    def new_token(self) -> str:
        self.tokens += 1
        return f"{self.process}-secret-{self.tokens}"


class Parts:
    """The parts under test. They keep nothing of a walk, so all worlds of a process share them."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.settings = Settings.model_validate({"lease_seconds": LEASE, "call_timeout_seconds": 300})
        self.ledger = Ledger(redis, self.settings)
        self.dispatch = RedisDispatch()
        self.reaper = Reaper(self.ledger, self.dispatch, "https://help/")
        self.completions = Completions(self.ledger, self.reaper, self.dispatch)
        self.in_flight = InFlight(lambda script_call: script_call.run(redis))
        self.left = LeftMessages(redis, LEASE)
        self.claiming = self.ledger.claim_on_reserve(
            "worker",
            3,
            {
                QUEUES[0]: {SAFE: TERMS[SAFE]},
                QUEUES[1]: {"goondan.delegate": TERMS[PLAIN]},
                QUEUES[2]: {"goondan.event": TERMS[PLAIN]},
            },
        )


class World:
    """The swarm. Every public method is a step."""

    def __init__(self, parts: Parts) -> None:
        self.redis, self.settings, self.ledger = parts.redis, parts.settings, parts.ledger
        self.reaper, self.completions, self.in_flight = parts.reaper, parts.completions, parts.in_flight
        self.dispatch, self.left, self.claiming = parts.dispatch, parts.left, parts.claiming
        self.redis.flushdb()
        self.now = 1_700_000_000.0
        self._show_time()
        # workers have announced their agents; where the table is not read, what is in it does not matter
        self.redis.hset(self.ledger.keys.agents, mapping={AGENT: "{}", THINKER: "{}"})
        self.redis.expire(self.ledger.keys.agents, 100_000)
        self.calls: dict[str, KnownCall] = {}
        self.swept: list[Claim] = []
        self.is_healing = False
        self.processes = 0
        self.workers = [self._new_worker(number) for number in range(3)]
        #: the story of the walk, a line for each thing that happened
        self.story: list[str] = []

    # Producers

    def submit(self, pick: Random) -> bool:
        """Submit a batch of calls, some of them again."""
        batch = [self._again(pick) or self._new_call(pick) for _ in range(pick.choice([1, 1, 1, 2, 4]))]
        known = [one for one in batch if one is not None]
        if not known:
            return False
        admissions = self.ledger.submit_all([one.submission for one in known], "p1")
        for one, admission in zip(known, admissions, strict=True):
            if admission.is_conflict:
                raise BrokenPromiseError(f"{self._name(one)} is in conflict with itself")
            self._tell("submitted", one)
        return True

    def submit_other_arguments(self, pick: Random) -> bool:
        """Submit a call again with other arguments, which is a conflict."""
        one = self._choose(pick, [one for one in self.calls.values() if one.is_stored and not one.is_damaged])
        if one is None:
            return False
        other = one.submission._replace(digest="0" * 32)
        [admission] = self.ledger.submit_all([other], "p2")
        if not admission.is_conflict and self.redis.exists(self.ledger.keys.call(one.id)):
            raise BrokenPromiseError(f"{self._name(one)} was accepted again with other arguments")
        return True

    def send_plain_message(self, pick: Random) -> bool:
        """Queue a message without a record, as a plain Celery program does."""
        one = self._new_call(pick, is_stored=False)
        if one is None or one.is_event:
            return False
        self.redis.lpush(QUEUES[0], one.submission.message)
        self._tell("queued by plain Celery", one)
        return True

    def cancel(self, pick: Random) -> bool:
        """Cancel a call."""
        one = self._choose(pick, self.calls.values())
        if one is None or pick.random() < 0.7:
            return False
        try:
            self.reaper.cancel(one.id, "someone")
        except GoondanError:
            return False
        one.is_cancelled = True
        self._tell("cancelled", one)
        return True

    def complete(self, pick: Random) -> bool:
        """Complete a call, mostly one that is pending."""
        pending = [one for one in self.calls.values() if self._status(one) == b"pending"]
        one = self._choose(pick, pending if pending and pick.random() < 0.7 else self.calls.values())
        if one is None:
            return False
        was_pending = self._status(one) == b"pending"
        outcome = Outcome({"completed": True})
        try:
            if pick.random() < 0.3:  # the completer dies before it has stored the result
                self.ledger.resolve(one.id, outcome, "someone").run(self.redis)
            else:
                self.completions.complete(one.id, outcome, "someone")
        except GoondanError:
            return False
        if one.is_completed and not one.is_damaged:
            raise BrokenPromiseError(f"{self._name(one)} was completed twice")
        one.is_completed = was_pending
        self._tell("completed", one)
        return True

    def approve(self, pick: Random) -> bool:
        """Approve a call that waits for it, or deny it."""
        one = self._choose(pick, self.calls.values())
        record = None if one is None or one.is_damaged else self.ledger.record(one.id)
        if one is None or record is None:
            return False
        try:
            if pick.random() < 0.7:
                self.completions.approve(record, "ann")
            else:
                denied = Outcome(error=self.reaper.failure(_claim_of(record), ToolError("no")).error)
                self.completions.complete(one.id, denied, "ann", is_decision=True)
        except GoondanError:
            return False
        self._tell("approved or denied", one)
        return True

    # Workers

    def reserve(self, pick: Random) -> bool:
        """Reserve messages; those of our clients are claimed with them."""
        worker = self._awake(pick)
        if worker is None:
            return False
        queues = list(QUEUES) if pick.random() < 0.7 else [pick.choice(QUEUES)]
        reservation = worker.reservations.make(
            queues, pick.choice([1, 1, 2, 5]), pick.choice([0, 0, 2]), worker.acknowledged
        )
        worker.acknowledged = []
        due = self._due()
        _, taken = self._run(reservation.script_call)
        if not self.is_healing and pick.random() < 0.05:
            self._note(f"{worker.name} lost the answer to its reservation")
            return True
        for tag, number, message, answer in zip(*[iter(taken)] * 4, strict=True):
            queue = queues[number]
            if answer is None:
                worker.messages.append((tag.decode(), queue, message))
            elif not isinstance(answer, bytes):
                self._take_claimed(worker, queue, tag.decode(), answer, due)
        return bool(taken)

    def claim(self, pick: Random) -> bool:
        """Claim the call of a message that was not claimed when it was reserved."""
        worker = self._awake(pick, lambda one: one.messages)
        if worker is None:
            return False
        tag, _, message = worker.messages.pop(pick.randrange(len(worker.messages)))
        one = self._call_of(message)
        request = ClaimRequest(
            one.id, one.call, worker.name, one.terms, worker.new_token(), was_stored=one.is_stored,
            must_match=not one.is_stored,
        )  # fmt: skip
        due = self._due()
        claim = self._claim(request, one, pick)
        worker.acknowledged.append(tag)
        self._take(worker, claim, due)
        return True

    def mark(self, pick: Random) -> bool:
        """Mark some claims as started, in one trip."""
        worker = self._awake(pick, lambda one: self._held(one, lambda held: not held.is_marked))
        if worker is None:
            return False
        waiting = self._held(worker, lambda held: not held.is_marked)
        group = pick.sample(waiting, min(len(waiting), pick.choice([1, 1, 3])))
        pairs = [held.claim.id_and_token for held in group]
        answers = self._repeated(self.ledger.start(pairs), pick)
        for held, answer in zip(group, answers, strict=True):
            one = self.calls[held.claim.run.id]
            if answer == Stored.YES:
                self._require_startable(one)
                self._require_lease(one)
                held.is_marked, held.renewed_at, one.was_marked = True, self.now, True
                continue
            del worker.held[held.claim.token]
            if answer == Stored.CANCELLED:
                self.reaper.fail(held.claim, ToolCancelledError())
        return True

    def begin(self, pick: Random) -> bool:
        """Begin a handler whose mark is confirmed."""
        ready = partial(self._held, wanted=lambda held: held.is_marked and not held.has_begun)
        worker = self._awake(pick, ready)
        if worker is None:
            return False
        held = pick.choice(ready(worker))
        if not held.is_fresh(self.now):
            held.is_marked = False  # it has to be marked again
            return False
        one = self.calls[held.claim.run.id]
        held.has_begun = True
        one.begun.append((worker.name, held.claim.run.attempt))
        self._tell(f"began in {worker.name}, attempt {held.claim.run.attempt}", one)
        self._require_alone(one, held)
        return True

    def finish(self, pick: Random) -> bool:
        """Store the results of runs that have ended."""
        running = partial(self._held, wanted=lambda held: held.has_begun)
        worker = self._awake(pick, running)
        if worker is None:
            return False
        held = pick.choice(running(worker))
        one, claim = self.calls[held.claim.run.id], held.claim
        if one.terms.idempotent and not one.is_event and pick.random() < 0.2:
            return self._retry(worker, held, pick)
        del worker.held[claim.token]
        result = claim.run.ok({"by": worker.name}, 0.0) if pick.random() < 0.7 else self._error(claim)
        self._finish(claim, result, pick)
        self._tell(f"ended in {worker.name}", one)
        return True

    def finish_many(self, pick: Random) -> bool:
        """Store the results of several calls in one script."""
        running = partial(
            self._held, wanted=lambda held: held.has_begun and not is_event(held.claim.run.call)
        )
        worker = self._awake(pick, running)
        if worker is None:
            return False
        group = running(worker)
        rows = [
            self.ledger.ended(
                held.claim,
                serializer.encode(held.claim.run.ok({"by": worker.name}, 0.0).to_wire()),
                outcome="ok",
                kind="plain",
            )
            for held in group
        ]
        answers = self._repeated(self.ledger.finish_many(rows), pick, is_same=False)
        for held, answer in zip(group, answers, strict=True):
            del worker.held[held.claim.token]
            if answer == Stored.CANCELLED:
                self.reaper.fail(held.claim, ToolCancelledError())
        return True

    def suspend(self, pick: Random) -> bool:
        """Make a run pending, or hold a claimed call for an approval."""
        able = partial(
            self._held,
            wanted=lambda held: held.has_begun == held.is_marked and not is_event(held.claim.run.call),
        )
        worker = self._awake(pick, able)
        if worker is None:
            return False
        held = pick.choice(able(worker))
        claim = held.claim
        pending = Pending("job-1", is_approval=not held.has_begun)
        result = claim.run.pending(pending, 0.0, expires_at=(self.now + 3_600) * 1000)
        one = self.calls[claim.run.id]
        del worker.held[claim.token]
        if one.is_damaged:  # its worker logs that the call is lost (ResultWriter)
            return False
        answer = self.ledger.suspend(claim, result).run(self.redis)
        if answer == -1:
            self.reaper.fail(claim, ToolCancelledError())
        elif isinstance(answer, bytes):
            self._finish(claim, claim.run.ok({"completed": True}, 0.0), pick)
        self._tell("is pending", one)
        return True

    def go_on_after_pause(self, pick: Random) -> bool:
        """Queue a call whose pause between two runs is over."""
        worker = self._awake(pick, lambda one: [claim for claim, at in one.pauses if at <= self.now])
        if worker is None:
            return False
        claim, at = worker.pauses.pop(0)
        if at > self.now:
            worker.pauses.append((claim, at))
            return False
        worker.held.pop(claim.token, None)
        self.reaper.run_again(claim)
        return True

    def report_progress(self, pick: Random) -> bool:
        """Report the progress of a run."""
        running = partial(self._held, wanted=lambda held: held.has_begun)
        worker = self._awake(pick, running)
        if worker is None:
            return False
        self.ledger.progress(pick.choice(running(worker)).claim, b'{"done":1}').run(self.redis)
        return True

    def renew(self, pick: Random) -> bool:
        """Renew all leases of a worker."""
        worker = self._awake(pick, lambda one: list(one.held.values()))
        if worker is None:
            return False
        lost = self.ledger.renew([held.claim.id_and_token for held in worker.held.values()]).run(self.redis)
        for token, held in list(worker.held.items()):
            if held.claim.run.id in lost:
                del worker.held[token]
                worker.pauses = [one for one in worker.pauses if one[0].token != token]
            else:
                self._require_lease(self.calls[held.claim.run.id])
                held.renewed_at = max(held.renewed_at, self.now)
        return True

    def give_back(self, pick: Random) -> bool:
        """Release a claim that has not begun."""
        unbegun = partial(self._held, wanted=lambda held: not held.has_begun)
        worker = self._awake(pick, unbegun)
        if worker is None:
            return False
        claim = pick.choice(unbegun(worker)).claim
        del worker.held[claim.token]
        message = self.reaper.message(claim.run.id, claim.run.call)
        release = self.ledger.release(claim, died=False, message=message, is_untouched=True)
        one = self.calls[claim.run.id]
        if not self._repeated(release, pick, is_same=False):
            self.reaper.fail(claim, ToolCancelledError())
        elif self.redis.zscore(self.ledger.keys.running(one.call.agent_name), one.id) is not None:
            raise BrokenPromiseError(f"{self._name(one)} is queued and counts as running")
        self._tell(f"given back by {worker.name}", one)
        return True

    def freeze(self, pick: Random) -> bool:
        """Stop a worker; it goes on later with what it knew."""
        worker = self._awake(pick)
        if worker is None or pick.random() < 0.5:
            return False
        worker.is_frozen = True
        self._note(f"{worker.name} is frozen")
        return True

    def thaw(self, pick: Random) -> bool:
        """Let frozen workers go on."""
        frozen = [worker for worker in self.workers if worker.is_frozen]
        for worker in frozen:
            worker.is_frozen = False
        return bool(frozen)

    def kill(self, pick: Random) -> bool:
        """Kill a worker; another one takes its place."""
        number = pick.randrange(len(self.workers))
        worker = self.workers[number]
        if not (worker.held or worker.messages) and pick.random() < 0.9:
            return False
        self.workers[number] = self._new_worker(number)
        if pick.random() < 0.4:  # the orchestrator has seen it
            self.ledger.end_leases(worker.process).run(self.redis)
            self.left.put_back_of(worker.process)
        self._note(f"{worker.name} was killed")
        return True

    # Everybody's sweeps

    def put_back(self, _: Random) -> bool:
        """Put back the messages of workers that have not renewed their reservations."""
        return bool(self.in_flight.give_back(self.in_flight.overdue(1)))

    def sweep(self, _: Random) -> bool:
        """Take the calls that are due."""
        due = self._due()
        claims = self.ledger.sweep("sweeper").run(self.redis)
        self.swept += claims
        for claim in claims:
            one = self._known(claim.run.id)
            self._tell(f"was swept: {claim.verdict}", one)
            if due.get(claim.run.id, 0) > self._milliseconds + 1:
                raise BrokenPromiseError(f"{self._name(one)} was swept before it was due")
        return bool(claims)

    def settle(self, pick: Random) -> bool:
        """Settle what a sweep has taken, unless the sweeper dies."""
        if not self.swept:
            return False
        claim = self.swept.pop(pick.randrange(len(self.swept)))
        if pick.random() >= 0.15:
            self.reaper.settle(claim)
        return True

    # The world

    def damage(self, pick: Random) -> bool:
        """Let another program overwrite the record of a call."""
        held = {held.claim.run.id for worker in self.workers for held in worker.held.values()}
        open_calls = [one for one in self.calls.values() if one.result is None]
        one = self._choose(pick, [one for one in open_calls if one.id in held] or open_calls)
        if one is None or pick.random() < 0.6:
            return False
        self.redis.set(self.ledger.keys.call(one.id), "overwritten", ex=100_000)
        one.is_damaged = True
        self._tell("has a damaged record", one)
        return True

    def deliver_twice(self, pick: Random) -> bool:
        """Let the broker deliver a message once more."""
        one = self._choose(pick, [one for one in self.calls.values() if one.call.agent_name == AGENT])
        if one is None or one.is_event:
            return False
        self.redis.lpush(QUEUES[0], one.submission.message)
        return True

    def oversleep(self, pick: Random) -> bool:
        """Stop a worker until its leases are over and others have its calls, then let it go on."""
        worker = self._awake(pick, lambda one: one.held)
        if worker is None:
            return False
        worker.is_frozen = True
        for seconds in (9, 9, 9, 9):  # sweepers look all the time, so none spares the claims
            self.now += seconds
            self._show_time()
            self.sweep(pick)
        while self.swept:
            self.reaper.settle(self.swept.pop())
        for name in ("reserve", "claim", "mark", "begin")[: pick.randrange(5)]:
            getattr(self, name)(pick)
        worker.is_frozen = False
        self._note(f"{worker.name} was frozen beyond its leases")
        return True

    def tick(self, pick: Random) -> bool:
        """Let time pass; Redis' clock may also be set back a little."""
        self.now += pick.choice([0.001, 0.5, 4, 4, 9, 9, 31, 40, -2])
        if pick.random() < 0.03:
            self.now += 2 * QUEUE_SECONDS
        self._show_time()
        return True

    # What the steps share

    def _show_time(self) -> None:
        micros = round(self.now * 1_000_000)
        self.redis.hset(CLOCK, mapping={"s": micros // 1_000_000, "us": micros % 1_000_000})

    @property
    def _milliseconds(self) -> float:
        return self.now * 1000

    def _due(self) -> dict[str, float]:
        """Return when each call is due, in ms."""
        rows: list[tuple[bytes, float]]
        rows = cast(Any, self.redis.zrange(self.ledger.keys.due, 0, -1, withscores=True))
        return {name.decode(): score for name, score in rows}

    def _status(self, one: KnownCall) -> bytes | None:
        key = self.ledger.keys.call(one.id)
        return None if one.is_damaged else cast("bytes | None", self.redis.hget(key, "status"))

    def _run(self, script_call: ScriptCall[Any]) -> Any:
        return script_call.run(self.redis)

    def _repeated(self, script_call: ScriptCall[Any], pick: Random, *, is_same: bool = True) -> Any:
        """Run a script, sometimes twice, as after an answer that was lost."""
        answer = self._run(script_call)
        if self.is_healing or pick.random() >= 0.15:
            return answer
        again = self._run(script_call)
        if is_same and again != answer:
            raise BrokenPromiseError(f"the same command was answered with {answer} and then with {again}")
        return answer

    def _new_worker(self, number: int) -> Worker:
        self.processes += 1
        process = f"process{self.processes:03}"
        reservations = ReservationFactory()
        reservations._tag = f"{process}:0:secret:"
        reservations.claim_with(self.claiming)
        return Worker(f"w{number}.{self.processes}", process, reservations)

    def _new_call(self, pick: Random, *, is_stored: bool = True) -> KnownCall | None:
        if len(self.calls) >= MOST_CALLS:
            return None
        number = len(self.calls)
        if is_stored and pick.random() < 0.35:
            fields: Any = {"instance_key": pick.choice(["i1", "i2"]), "event_id": f"e{number}"}
            call = outside_call(self.settings, THINKER, {"n": number}, fields, is_request=True)
            submission = event_submission(self.dispatch, call)
        else:
            call = new_call(AGENT, pick.choice([PLAIN, SAFE]), {"n": number}, {"tool_call_id": f"c{number}"})
            wire, args = serializer.encode(call.to_wire()), serializer.encode(call.args)
            message = self.dispatch.inline(identity_of(call), call, wire)
            submission = Submission(identity_of(call), call, wire, digest_of(call, args), message)
        known = KnownCall(call, submission, number, is_stored)
        self.calls[known.id] = known
        return known

    def _again(self, pick: Random) -> KnownCall | None:
        is_wanted = pick.random() < 0.2
        return (
            self._choose(pick, [one for one in self.calls.values() if one.is_stored]) if is_wanted else None
        )

    def _choose(self, pick: Random, calls: Iterable[KnownCall]) -> KnownCall | None:
        known = list(calls)
        return pick.choice(known) if known else None

    def _awake(self, pick: Random, has_work: Callable[[Worker], Any] = lambda _: True) -> Worker | None:
        able = [worker for worker in self.workers if not worker.is_frozen and has_work(worker)]
        return pick.choice(able) if able else None

    @staticmethod
    def _held(worker: Worker, wanted: Callable[[Held], bool]) -> list[Held]:
        paused = {claim.token for claim, _ in worker.pauses}
        return [held for held in worker.held.values() if wanted(held) and held.claim.token not in paused]

    def _call_of(self, message: bytes) -> KnownCall:
        return self._known(_ID.findall(message)[0].decode())

    def _known(self, call_id: str) -> KnownCall:
        """Return a call; the system's own events become known when they are seen."""
        known = self.calls.get(call_id)
        if known is None:
            record = self.ledger.record(call_id)
            if record is None or not is_event(record.call):
                raise BrokenPromiseError(f"an unknown call {call_id}")
            submission = event_submission(self.dispatch, record.call)
            known = self.calls[call_id] = KnownCall(record.call, submission, len(self.calls))
        return known

    def _claim(self, request: ClaimRequest, one: KnownCall, pick: Random) -> Claim:
        if one.is_event:
            script = self.ledger.claim_event(request, one.submission.message, is_handled_here=True)
        else:
            script = self.ledger.claim(request, with_call=not one.is_stored)
        if one.is_damaged:
            return request.claim((Verdict.HELD.encode(), 0, 0, 0))
        claim: Claim = self._repeated(script, pick, is_same=False)
        return claim

    def _take_claimed(
        self, worker: Worker, queue: str, token: str, answer: Sequence[Any], due: Mapping[str, float]
    ) -> None:
        job = Job(queue, token, answer, asked_at=0.0, clock=lambda: self.now * 1000, worker=worker.name)
        if job.verdict.is_granted:
            self._take(worker, job.claim, due)

    def _take(self, worker: Worker, claim: Claim, due: Mapping[str, float]) -> None:
        one = self._known(claim.run.id)
        if claim.verdict is Verdict.RUN:
            if due.get(one.id, self._milliseconds) < self._milliseconds - 1:
                raise BrokenPromiseError(f"{self._name(one)} may run past its deadline")
            worker.held[claim.token] = Held(claim, self.now)
            self._tell(f"claimed by {worker.name}, attempt {claim.run.attempt}", one)
        elif claim.is_ours:
            self.reaper.settle(claim)

    def _error(self, claim: Claim) -> ToolCallResult:
        return self.reaper.failure(claim, ToolError("it failed"), 0.0)

    def _finish(self, claim: Claim, result: ToolCallResult, pick: Random) -> None:
        script = self.ledger.finish(claim, result, self.reaper.answer(claim, result))
        finished = self._repeated(script, pick, is_same=False)
        if finished.stored is Stored.CANCELLED:
            self.reaper.fail(claim, ToolCancelledError())

    def _retry(self, worker: Worker, held: Held, pick: Random) -> bool:
        claim, pause = held.claim, pick.choice([100, 5_000])
        held.has_begun = held.is_marked = False
        if self.ledger.retry(claim, pause_ms=pause, begun_at=0.0, code="E_TOOL").run(self.redis):
            worker.pauses.append((claim, self.now + pause / 1000))
        else:
            del worker.held[claim.token]
            self._finish(claim, self._error(claim), pick)
        return True

    def _require_lease(self, one: KnownCall) -> None:
        due = self.redis.zscore(self.ledger.keys.due, one.id)
        if not one.is_damaged and (due is None or due < self._milliseconds + LEASE * 1000 - 1):
            raise BrokenPromiseError(f"the lease of {self._name(one)} was not renewed")

    def _require_startable(self, one: KnownCall) -> None:
        if one.result is not None and not one.is_damaged:
            raise BrokenPromiseError(f"{self._name(one)} was marked as started after its end")
        if one.is_cancelled:
            raise BrokenPromiseError(f"{self._name(one)} was marked as started after its cancel")

    def _require_alone(self, one: KnownCall, held: Held) -> None:
        if len(one.begun) > 1 and not one.terms.idempotent:
            raise BrokenPromiseError(f"{self._name(one)} is not idempotent and began in {one.begun}")
        for worker in self.workers:
            for other in worker.held.values():
                is_rival = other is not held and other.has_begun and self.now < other.renewed_at + LEASE
                if not is_rival:
                    continue
                rival = self.calls[other.claim.run.id]
                if rival is one:
                    raise BrokenPromiseError(f"{self._name(one)} runs twice under valid leases")
                if one.is_event and rival.is_event and mailbox_of(one.call) == mailbox_of(rival.call):
                    raise BrokenPromiseError(
                        f"{self._name(one)} and {self._name(rival)} of one mailbox run at once"
                    )
        if one.call.agent_name == THINKER and len(one.begun) == 1:
            self._require_first(one)

    def _require_first(self, one: KnownCall) -> None:
        """Events of one mailbox begin in the order in which they were accepted."""
        for other in self.calls.values():
            is_before = other.is_event and other.number < one.number and not other.is_damaged
            is_neighbour = is_before and mailbox_of(other.call) == mailbox_of(one.call)
            if is_neighbour and self._status(other) not in (None, b"done", b"dead"):
                raise BrokenPromiseError(f"{self._name(one)} began before {self._name(other)} had ended")

    def _name(self, one: KnownCall) -> str:
        return f"{'event' if one.is_event else one.call.tool_name} {one.number}"

    def _tell(self, what: str, one: KnownCall) -> None:
        self._note(f"{self._name(one)} {what}")

    def _note(self, text: str) -> None:
        self.story.append(f"{self.now - 1_700_000_000:9.3f}  {text}")


def _claim_of(record: CallRecord) -> Claim:
    return Claim(Run(record.id, record.call, "ann", 1, 0, lambda: 0.0), "", Verdict.RUN)
