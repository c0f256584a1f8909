"""One swarm: its calls, its workers, its clock, and what has been seen of them.

What happens in it are the steps of ``producers``, ``workers``, ``sweeps`` and ``faults``.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, cast

from redis import Redis

from broker_config import serializer
from broker_config.in_flight import InFlight, LeftMessages, ReservationFactory
from broker_config.queues import call_queue, events_queue
from broker_config.scripts import ClaimOnReserve, ScriptCall
from broker_config.settings import Settings
from goondan_tasks.authoring.handoff import outside_call
from goondan_tasks.contract.calls import identity_of, new_call, queue_element
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import ToolCall, epoch_milliseconds, iso_time
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.completions import Completions
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import Claim
from goondan_tasks.ledger.submission import Submission, call_json, digest_of, event_submission
from tests.simulation.admission import (
    Limit,
    Limiters,
    Writer,
    limits_of,
    terms_of_tools,
    terms_on_reserve,
)
from tests.simulation.clock import VIRTUAL
from tests.simulation.conformance import Conformance, script_names
from tests.simulation.parts import LeadPart, ProducerPart
from tests.simulation.refusals import was_refused
from tests.simulation.scripts import CLOCK, watch_scripts
from workers.delivery.limiter import CallLimiter

LEASE = 30.0
QUEUE_SECONDS = 3600.0
AGENT, THINKER = "coder", "planner"
QUEUES = (call_queue(AGENT), events_queue(THINKER), events_queue(AGENT))
#: not idempotent, and idempotent
PLAIN, SAFE = "bash__plain", "bash__safe"
#: the tools with limits whose calls a walk has
THEMES = (
    ("gate__plain", "gate__safe", "gate__serial"),
    ("gate__solo",),
    ("gate__serial",),
    ("pace__plain", "pace__safe"),
    ("pace__slow",),
    ("once__plain",),
    (PLAIN, SAFE),  # with keys of the caller
    ("gate__safe", "gate__solo", "gate__serial", "pace__safe", "pace__slow"),
)
TERMS = terms_of_tools()
MOST_CALLS = 12
#: how long streams are kept, in s
KEEP = 100_000
LOOK = Path(__file__).with_name("look.lua")
_ID = re.compile(rb'"id": ?"([^"]+)"')


class BrokenPromiseError(AssertionError):
    """A promise of the ledger was broken."""


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
    #: whether somebody has asked to run it before its time
    is_run_now: bool = False
    #: the time (ms) of its next run, after one that has failed
    retry_at: float = 0
    #: whether another version or program has changed fields of its record: nothing is promised about it
    is_foreign: bool = False
    #: whether it may be cancelled, completed or accepted although nobody was told so (``outages``)
    is_doubtful: bool = False
    #: whether another program has deleted its message
    has_lost_message: bool = False
    #: whether Redis went back to a copy from before it was accepted (``restores``)
    is_lost: bool = False
    #: whether a person may have changed its arguments, so that they differ from those of calls with its key
    is_edited: bool = False
    #: whether a mark of it was confirmed, and whether it was completed while it was pending
    was_marked: bool = False
    is_completed: bool = False
    result: bytes | None = None
    limits: tuple[Limit, ...] = ()

    @property
    def id(self) -> str:
        return self.submission.id

    @property
    def terms(self) -> ClaimTerms:
        return TERMS.get(self.call.tool_name, TERMS[PLAIN])

    @property
    def is_event(self) -> bool:
        return is_event(self.call)

    @property
    def not_before(self) -> float:
        """The time (ms) before which it must not begin; 0 if there is none."""
        if self.is_run_now or self.retry_at:
            return 0 if self.is_run_now else self.retry_at
        is_free = self.call.not_before is None or not self.is_stored
        return 0 if is_free else epoch_milliseconds(self.call.not_before or "")

    @property
    def key_line(self) -> str:
        """The limit of its idempotencyKey as text, empty if it has none."""
        return next((limit.line for limit in self.limits if limit.kind == "key"), "")


@dataclass(eq=False)
class Held:
    """A claim that a worker holds."""

    claim: Claim
    #: when the claim was made, or renewed, by the worker's clock
    renewed_at: float
    is_marked: bool = False
    has_begun: bool = False
    #: whether its result is stored, and its handler still runs
    has_result: bool = False
    #: whether its worker could do nothing until it was past its time limit: it counts for no limit any more
    is_overdue: bool = False
    #: whether its worker has counted its start for the rates; else that is done when it ends
    is_counted: bool = False
    #: whether Redis went back to a copy that does not know its claim or its last renewal, and its mark
    has_lost_lease: bool = False
    has_lost_mark: bool = False

    def is_fresh(self, now: float) -> bool:
        """Whether its worker may begin it (``Job.require_fresh``)."""
        return now - self.renewed_at < LEASE * 3 / 4

    def is_exclusive(self, now: float) -> bool:
        """Whether nothing may run beside it: its lease is valid, and Redis knows it."""
        return now < self.renewed_at + LEASE and not self.has_lost_lease

    def note_mark(self, now: float) -> None:
        """Note that Redis has confirmed its mark, and with it the lease."""
        self.is_marked, self.renewed_at = True, now
        self.has_lost_lease = self.has_lost_mark = False


@dataclass(eq=False)
class Worker:
    """One worker process. After a kill, another process takes its place."""

    name: str
    process: str
    reservations: ReservationFactory
    writer: Writer
    limiter: CallLimiter
    is_frozen: bool = False
    #: messages that were reserved and not claimed: tag, queue, text
    messages: list[tuple[str, str, bytes]] = field(default_factory=list)
    #: the messages that it needs no more: each tag, and the key of the record that replaces it, or ""
    acknowledged: list[tuple[str, str]] = field(default_factory=list)
    held: dict[str, Held] = field(default_factory=dict)
    tokens: int = 0

    def new_token(self) -> str:
        self.tokens += 1
        return f"{self.process}-secret-{self.tokens}"

    def count_start(self, held: Held) -> None:
        """Count the start of a run now, instead of at its end; Redis has just confirmed its mark."""
        held.is_counted = True
        self.limiter.begin(held.claim)
        self.writer.flush()

    def leave_damaged(self, is_damaged: bool, held: Held) -> None:
        """Release what a run that has ended holds, if its record is damaged."""
        if is_damaged:
            self.limiter.leave_damaged(held.claim)
            self.writer.flush()

    def held_if(self, wanted: Callable[[Held], bool]) -> list[Held]:
        """Return the claims that are wanted."""
        return [held for held in self.held.values() if wanted(held)]


class Parts:
    """The parts under test. They keep nothing of a walk, so all worlds of a process share them."""

    def __init__(self, redis: Redis) -> None:
        self.redis = redis
        self.settings = Settings.model_validate({"lease_seconds": LEASE, "call_timeout_seconds": 300})
        self.ledger = Ledger(redis, self.settings)
        self.reaper = Reaper(self.ledger, "https://help/")
        self.lead, self.producer = LeadPart(redis, self.ledger), ProducerPart(self.ledger, self.reaper)
        self.completions = Completions(self.ledger, self.reaper)
        self.in_flight = InFlight(lambda script_call: script_call.run(redis))
        self.left = LeftMessages(redis, LEASE)
        self.limiters = Limiters(self.ledger)
        #: claims that ask limits, and those of the workers before, which do not
        self.claiming = [self._claiming(asks_limits=asks) for asks in (True, False)]
        reservations = ReservationFactory()
        reservations.claim_with(self.claiming[0])
        self.script_names = script_names(self.ledger, self.in_flight, reservations)
        self.look: str = cast(Any, redis.script_load(LOOK.read_text("utf-8")))

    def _claiming(self, *, asks_limits: bool) -> ClaimOnReserve:
        tools = {
            name: terms_on_reserve(name, terms, asks_limits=asks_limits) for name, terms in TERMS.items()
        }
        events = {QUEUES[1]: {"goondan.delegate": TERMS[PLAIN]}, QUEUES[2]: {"goondan.event": TERMS[PLAIN]}}
        return self.ledger.claim_on_reserve("worker", 3, {QUEUES[0]: tools, **events})


class World:
    """The state of the swarm and what has been seen of it, and what all steps share."""

    def __init__(self, parts: Parts) -> None:
        self.redis, self.settings, self.ledger = parts.redis, parts.settings, parts.ledger
        self.reaper, self.completions, self.in_flight = parts.reaper, parts.completions, parts.in_flight
        self.lead, self.producer = parts.lead, parts.producer
        self.left, self.claiming = parts.left, parts.claiming
        self.limiters = parts.limiters
        self.redis.flushdb()
        self.now = 1_700_000_000.0
        self.calls: dict[str, KnownCall] = {}
        self.conformance = Conformance(parts.script_names, self._is_idempotent)
        #: whether the scripts are held against the rules of the model
        self.is_followed = True
        watch_scripts(self.conformance.see)
        self._look = parts.look
        #: the row and the final result of each call that is followed, as of the last look
        self.seen: dict[str, tuple[str, bytes]] = {}
        #: the latest time so far: Redis' clock may be set back
        self.latest = self.now
        self.show_time()
        self.publish_agents()
        #: the generator of the current step
        self.pick = Random(0)
        #: the limits of all calls, by name, and time (ms) and call of the starts that each rate counts
        self.limits: dict[str, Limit] = {}
        self.starts: dict[str, list[tuple[int, str]]] = {}
        self.limit_states: dict[str, Any] = {}
        #: the tokens that models have used, by slot of 10 s
        self.used_tokens: dict[int, int] = {}
        #: the calls whose final results were seen for the first time after the last step
        self.ended: list[KnownCall] = []
        #: the tools of most calls of this world, once it is chosen
        self.theme: tuple[str, ...] | None = None
        self.swept: list[Claim] = []
        #: the worker that acts in the current step, and calls whose submission was broken off
        self.acting: Worker | None = None
        self.unsure: list[KnownCall] = []
        #: the records of calls, and of the events that their ends cause, while no rules are followed
        self.answers: set[tuple[str, str]] = set()
        #: the calls of which another program has written that they are due in days
        self.far: set[str] = set()
        #: the number of the next call at least: one whose only message is lost is known no longer
        self.numbered = 0
        self.is_healing = False
        self.processes = 0
        self.workers = [self.new_worker(number) for number in range(3)]
        #: the story of the walk, a line for each thing that happened
        self.story: list[str] = []

    def show_time(self) -> None:
        seconds, micros = self._time()
        self.redis.hset(CLOCK, mapping={"s": seconds, "us": micros})

    def _time(self) -> tuple[int, int]:
        """Return the time (s, and us beyond) for the scripts, after telling it to all else."""
        VIRTUAL.now, self.latest = self.now, max(self.now, self.latest)
        micros = round(self.now * 1_000_000)
        self.conformance.now = micros // 1000
        return divmod(micros, 1_000_000)

    @property
    def milliseconds(self) -> float:
        return round(self.now * 1_000_000) / 1000  # the microseconds that TIME tells

    def look(self) -> None:
        """Read what the checks after each step compare. A moment passes: no two steps happen at once."""
        self.now += 0.001
        rows = self.conformance.rows() if self.is_followed else self._all_rows()
        given: list[str | int] = [*self._time(), self.ledger.keys.prefix, len(QUEUES), *QUEUES]
        for row in rows:
            given += row
        found = cast(Any, self.redis.evalsha(self._look, 0, *given))
        self.seen = {
            row[0]: (text.decode(), result)
            for row, text, result in zip(rows, found[::2], found[1::2], strict=True)
        }

    def _all_rows(self) -> list[tuple[str, str, int]]:
        known = [one for one in self.calls.values() if not one.is_damaged]
        return [(one.id, one.call.agent_name, 0) for one in known]

    def publish_agents(self) -> None:
        """Announce the agents, as workers do; where the table is not read, what is in it does not matter."""
        self.redis.hset(self.ledger.keys.agents, mapping={AGENT: "{}", THINKER: "{}"})
        self.redis.expire(self.ledger.keys.agents, 100_000)

    def stop_following(self) -> None:
        """Hold the scripts no longer against the rules of the model."""
        self.is_followed = False
        watch_scripts(lambda script_call, _: self.note_end(script_call))

    def note_end(self, script_call: ScriptCall[Any]) -> None:
        """Note the event that the end of a call causes, if the script is one that ends it so."""
        if script_call.script is self.ledger._scripts.finish_event and len(script_call.keys) > 6:
            self.answers.add((script_call.keys[1], script_call.keys[6]))

    def submit_again(self) -> None:
        """Submit the calls again whose submission was broken off."""
        if not self.unsure:
            return
        for one in self.unsure:
            self.renumber(one)
        admissions = self.ledger.submit_all([one.submission for one in self.unsure], "p1")
        unsure, self.unsure = self.unsure, []
        for one, admission in zip(unsure, admissions, strict=True):
            if admission.is_conflict and not one.is_damaged:
                raise BrokenPromiseError(f"{self.name(one)} is in conflict with itself")
            self.tell("submitted again", one)

    def renumber(self, one: KnownCall) -> None:
        """Let a lost call that is submitted again be the latest one."""
        if one.is_lost:
            one.is_lost, one.number = False, self.next_number()

    def next_number(self) -> int:
        """Return the number of the next call."""
        number = max(self.numbered, len(self.calls))
        self.numbered = number + 1
        return number

    @property
    def is_claimed(self) -> bool:
        """Whether a call was claimed at the last look; an event may be although it has its result."""
        return any(text.split("|", 2)[1] for text, _ in self.seen.values() if text)

    def push(self, one: KnownCall) -> None:
        """Queue the message of a tool call, as another program does."""
        self.redis.lpush(QUEUES[0], one.submission.message)
        if not one.is_damaged:
            self.conformance.push(one.id)

    def due(self) -> dict[str, float]:
        """Return when each call is due, in ms."""
        rows: list[tuple[bytes, float]]
        rows = cast(Any, self.redis.zrange(self.ledger.keys.due, 0, -1, withscores=True))
        return {name.decode(): score for name, score in rows if not name.startswith(b"@")}

    def status(self, one: KnownCall) -> bytes | None:
        key = self.ledger.keys.call(one.id)
        return None if one.is_damaged else cast("bytes | None", self.redis.hget(key, "status"))

    def repeated(self, script_call: ScriptCall[Any], pick: Random, *, is_same: bool = True) -> Any:
        """Run a script, sometimes twice, as after an answer that was lost."""
        answer = script_call.run(self.redis)
        if self.is_healing or pick.random() >= 0.15:
            return answer
        again = script_call.run(self.redis)
        if is_same and again != answer and not was_refused():
            raise BrokenPromiseError(f"the same command was answered with {answer} and then with {again}")
        return answer

    def is_faulty(self, share: float) -> bool:
        """Whether something goes wrong that goes wrong in a share of all cases."""
        return not self.is_healing and self.pick.random() < share

    def queues_of(self, _: Worker) -> Sequence[str]:
        """Return the queues that a worker reads."""
        return QUEUES

    def request(self, worker: Worker, one: KnownCall, tag: str) -> ClaimRequest | None:
        """Return with what a worker claims a call; nothing if it has dealt with the message otherwise."""
        return ClaimRequest(
            one.id, one.call, worker.name, one.terms, worker.new_token(), was_stored=one.is_stored,
            must_match=not one.is_stored,
        )  # fmt: skip

    def check_claimed(self, worker: Worker, one: KnownCall) -> None:
        """Raise BrokenPromiseError if a worker may not have this claim."""

    def close(self) -> None:
        """End what must not reach into the next world; the walk is over."""

    def end(self, worker: Worker) -> None:
        """Let a worker process die; another one takes its place."""
        number = self.workers.index(worker)
        worker.writer.is_dead = True
        for held in worker.held.values():
            self.forget_start(held)
        self.workers[number] = self.new_worker(number)

    def forget_start(self, held: Held) -> None:
        """Forget the start of a run that is given up uncounted with a damaged record: nobody knows of it."""
        one = self.calls[held.claim.run.id]
        if one.is_damaged and held.has_begun and not held.is_counted:
            self.starts = {
                name: [start for start in known if start[1] != one.id] for name, known in self.starts.items()
            }

    def count_starts(self) -> None:
        """Let workers count the starts of what they run, as they do when a run takes more than a moment."""
        for worker in self.workers:
            for held in worker.held.values():
                if held.has_begun and not held.is_counted:
                    worker.count_start(held)

    def new_worker(self, number: int) -> Worker:
        self.processes += 1
        process = f"process{self.processes:03}"
        reservations = ReservationFactory()
        reservations._tag = f"{process}:0:secret:"
        # every second one asks before each claim, as the workers of the version before
        reservations.claim_with(self.claiming[self.processes % 2])
        writer = Writer(self.redis, self.is_faulty)
        limiter = self.limiters.make(writer)
        return Worker(f"w{number}.{self.processes}", process, reservations, writer, limiter)

    def new_call(
        self, pick: Random, *, is_stored: bool = True, tools: Sequence[str] = ()
    ) -> KnownCall | None:
        if len(self.calls) >= MOST_CALLS:
            return None
        number = self.next_number()
        time = {}
        if is_stored and pick.random() < 0.2:
            time = {"not_before": iso_time(self.milliseconds + pick.choice([-1_000, 2_000, 20_000, 200_000]))}
        keep = {"keep": KEEP} if is_stored and number % 3 == 0 else {}
        if is_stored and not tools and pick.random() < 0.35:
            fields: Any = {
                "instance_key": pick.choice(["i1", "i2"]),
                "event_id": f"e{number}",
                **time,
                **keep,
            }
            call = outside_call(self.settings, THINKER, {"n": number}, fields, is_request=True)
            submission = event_submission(call)
        else:
            call = self._tool_call(number, pick, tools).model_copy(update={**time, **keep})
            args = serializer.encode(call.args)
            wire = call_json(call, args)  # as producers write it: the record of a plain call is made small
            message = queue_element(identity_of(call), call, wire)
            submission = Submission(identity_of(call), call, wire, digest_of(call, args), message)
        known = KnownCall(call, submission, number, is_stored, limits=limits_of(call))
        self.calls[known.id] = known
        self.limits.update((limit.name, limit) for limit in known.limits)
        if known.limits:
            self.conformance.ignore_messages(known.id)
        return known

    def _tool_call(self, number: int, pick: Random, tools: Sequence[str]) -> ToolCall:
        fields: dict[str, Any] = {"tool_call_id": f"c{number}"}
        if not tools:
            return new_call(AGENT, pick.choice([PLAIN, SAFE]), {"n": number}, fields)
        fields["instance_key"] = pick.choice(["i1", "i2"])
        tool = pick.choice(tools)
        if tool in (PLAIN, SAFE):
            fields["idempotency_key"] = pick.choice(["k1", "k2"])
            return new_call(AGENT, tool, {"n": pick.choice([0, 0, 0, 1])}, fields)
        if tool == "gate__safe" and pick.random() < 0.4:
            fields["idempotency_key"] = "k1"
            return new_call(AGENT, tool, {"n": 0}, fields)
        if pick.random() < 0.2:
            fields["deadline"] = iso_time(self.milliseconds + pick.choice([20_000, 70_000]))
        args = {"order": pick.choice(["a", "b"])} if tool == "once__plain" else {}
        return new_call(AGENT, tool, {"n": number, **args}, fields)

    def _is_idempotent(self, call_id: str) -> bool:
        return call_id in self.calls and self.calls[call_id].terms.idempotent

    def choose(self, pick: Random, calls: Iterable[KnownCall]) -> KnownCall | None:
        known = list(calls)
        return pick.choice(known) if known else None

    def awake(self, pick: Random, has_work: Callable[[Worker], Any] = lambda _: True) -> Worker | None:
        able = [worker for worker in self.workers if not worker.is_frozen and has_work(worker)]
        self.acting = pick.choice(able) if able else None
        return self.acting

    def call_of(self, message: bytes) -> KnownCall:
        return self.known(_ID.findall(message)[0].decode())

    def is_without_record(self, message: bytes) -> bool:
        """Whether a message is of a call that nobody knows, or of none."""
        call_id = next((one.decode() for one in _ID.findall(message)), "")
        return call_id not in self.calls and not self.redis.exists(self.ledger.keys.call(call_id))

    def known(self, call_id: str) -> KnownCall:
        """Return a call; the system's own events become known when they are seen."""
        known = self.calls.get(call_id)
        if known is None:
            record = self.ledger.record(call_id)
            if record is None or not is_event(record.call):
                raise BrokenPromiseError(f"an unknown call {call_id}")
            submission = event_submission(record.call)
            known = self.calls[call_id] = KnownCall(record.call, submission, len(self.calls))
        return known

    def name(self, one: KnownCall) -> str:
        return f"{'event' if one.is_event else one.call.tool_name} {one.number}"

    def tell(self, what: str, one: KnownCall) -> None:
        self.note(f"{self.name(one)} {what}")

    def note(self, text: str) -> None:
        self.story.append(f"{self.now - 1_700_000_000:9.3f}  {text}")
