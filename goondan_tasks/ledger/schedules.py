"""The schedules in one Redis: kept for bundles and at run time, and fired by any worker.

Only Redis' time counts. Each schedule has one next slot; ``fire.lua`` compares it with the slot that a worker
wants to fire, so there is no leader, and no slot is fired twice.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, cast

from pydantic import Field
from redis import Redis
from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.connections import redis_time, rows_of
from broker_config.refusals import refusal_text
from broker_config.scripts import ScriptCall, run_script_calls
from goondan_tasks.contract.calls import identity_of, queue_element
from goondan_tasks.contract.events import is_event
from goondan_tasks.contract.messages import Versioned, WireModel, iso_time
from goondan_tasks.contract.schedules import Due, Firing, Schedule, slot_text
from goondan_tasks.contract.table_rows import (
    naming,
    only_advice,
    read_row,
    report_row,
    time_text,
    whole_number,
)
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.ledger.submission import Submission, call_json, digest_of, event_submission

logger = logging.getLogger(__name__)

#: how long a schedule is kept beyond its next slot, if no worker fires it
TTL_SECONDS = 30 * 86_400
#: how long the key of a run outside the slots is kept
KEPT_SECONDS = 86_400
#: how many schedules one look returns
MOST_DUE = 100
#: the owner of schedules that are made at run time
RUN_TIME = ""
#: how many runs of one are looked at, as in running.lua
_MOST_LOOKED_AT = 100
#: the next slot that ``due_schedules.lua`` writes and returns if it is damaged
UNKNOWN_SLOT = -1

#: the counts of a schedule
SLOT_RESULTS = ("fired", "skipped", "missed", "damaged")

Word = Literal["fired", "skipped", "missed", "damaged", "stale"]


class SchedulePause(Versioned):
    """Who has paused a schedule, and why."""

    reason: str = ""
    by: str = ""
    #: ms, Redis time
    at: int = 0


class ScheduleState(WireModel):
    """A schedule, and what has become of it; times are ISO 8601."""

    schedule: Schedule
    #: its next slot, and when that is due with its jitter; none while it is paused
    next: str | None = None
    due_at: str | None = None
    paused: SchedulePause | None = None
    fired: int = 0
    #: slots that were not fired because an earlier run was open
    skipped: int = 0
    #: slots that were past, and that ``catchUp`` did not make up for
    missed: int = 0
    #: slots whose event could not be accepted, because its mailbox is damaged
    damaged: int = 0
    last_slot: str | None = None
    last_at: str | None = None
    #: the id of the last event or call
    last_id: str | None = None
    #: how the run that ended last did: ``ok`` or ``error``, and its error
    last_outcome: str | None = None
    last_error: str | None = None
    #: how many runs have not ended
    open_runs: int = Field(default=0)

    @property
    def full_name(self) -> str:
        return self.schedule.full_name


class Fired(NamedTuple):
    """What has become of one firing."""

    schedule: Schedule
    firing: Firing
    word: Word
    #: of the event or call; empty if there is none
    call_id: str = ""


class Looked(NamedTuple):
    """What a worker has fired, and in how many seconds the next slot is due."""

    fired: list[Fired]
    next_seconds: float | None


class _Step(NamedTuple):
    """What a script does: a firing, or without one a run outside the slots."""

    schedule: Schedule
    firing: Firing | None
    submission: Submission | None
    #: as the schedule shows it; empty if nothing is fired
    slot: str = ""


class ScheduleStore:
    """The schedules of one namespace. Methods may raise ``redis.exceptions.RedisError``."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._redis: Redis = ledger.redis
        self._keys = ledger.keys

    # What workers do

    def keep(self, owner: str, schedules: Sequence[Schedule], since: float) -> bool:
        """Replace the schedules of a bundle; return whether they are now these.

        They are not if another worker has newer ones: of two, those count that were loaded later (``since``,
        Redis' time in ms). A paused schedule stays paused. Equal times keep the next slot.
        """
        return self._write(owner, schedules, since) >= 0

    def fire_due(self, owners: Sequence[str], cancel: Callable[[Sequence[str]], object]) -> Looked:
        """Fire all slots of these owners that are due, and say when the next one will be.

        ``cancel`` is called with the ids of earlier runs before a slot that replaces them is fired.
        """
        indexes = [self._keys.schedules(owner) for owner in owners]
        look: ScriptCall[list[Any]] = ScriptCall(
            self._ledger.scripts.due_schedules, indexes, [self._keys.prefix, MOST_DUE]
        )
        now, following, *rows = look.run(self._redis)
        steps, replaced, times = list[_Step](), list[str](), [following]
        for definition, expected, *open_runs in rows:
            schedule = read_row(Schedule, definition, "a schedule")
            if schedule is None:
                continue
            firings = self._firings(schedule, int(expected), now)
            steps += (self._step(schedule, firing, now) for firing in firings)
            times.append(firings[-1].following.at)
            if schedule.overlap == "cancel" and any(firing.slot for firing in firings):
                replaced += (call_id.decode() for call_id in open_runs)
        if replaced:
            cancel(replaced)
        fired = self._run(steps)
        if fired and len(rows) >= MOST_DUE:
            return Looked(fired, 0.0)
        known = [at for at in times if at is not None]
        return Looked(fired, max(0.0, min(known) - now) / 1000 if known else None)

    def _firings(self, schedule: Schedule, expected: int, now: float) -> list[Firing]:
        if expected != UNKNOWN_SLOT:
            return schedule.firings(expected, now)
        report_row(
            f"the next slot of the schedule {schedule.full_name!r}", "it goes on with the one after now"
        )
        return [Firing(expected, None, schedule.next(now), 0)]

    def _step(self, schedule: Schedule, firing: Firing, now: float) -> _Step:
        if firing.slot is None:
            return _Step(schedule, firing, None)
        slot = slot_text(firing.slot)
        return _Step(schedule, firing, submission_of(schedule, slot, now, firing.missed), slot)

    def _run(self, steps: Sequence[_Step]) -> list[Fired]:
        if not steps:
            return []
        calls = [self._fire(step) for step in steps]
        words = run_script_calls(self._redis, calls, returns_faults=True)  # one must not stop the others
        return [
            Fired(one.schedule, one.firing, _word_for(one, word), one.submission.id if one.submission else "")
            for one, word in zip(steps, words, strict=True)
            if one.firing is not None
        ]

    def _fire(self, step: _Step, producer: str = "") -> ScriptCall[Word]:
        keys, name = self._keys, step.schedule.full_name
        accepted = None if step.submission is None else self._ledger.submit_batch([step.submission], producer)
        terms: tuple[Any, ...] = ("", step.slot, "", "", 0)
        if step.firing is not None:
            terms = (step.firing.expected, step.slot, *_written(step.firing.following), step.firing.missed)
        return ScriptCall(
            self._ledger.scripts.fire,
            [
                keys.schedule(name),
                keys.schedules(step.schedule.owner),
                keys.schedule_runs(name),
                *(accepted.keys if accepted else [keys.due]),
            ],
            [
                name,
                step.schedule.digest,
                *terms,
                TTL_SECONDS,
                *(accepted.arguments if accepted else [keys.prefix]),
            ],
            _word,
        )

    # What operators and programs do

    def put(self, schedule: Schedule) -> None:
        """Add a schedule at run time; one of that name is replaced.

        Raises:
            RecordDamagedError: another program has overwritten a key.
        """
        self._write(RUN_TIME, [schedule], None)

    def _write(self, owner: str, schedules: Sequence[Schedule], since: float | None) -> int:
        keys, now = self._keys, redis_time(self._redis)
        index = keys.schedules(owner)
        arguments: list[Any] = [keys.prefix, owner, "" if since is None else since, TTL_SECONDS]
        for one in schedules:
            wire = serializer.encode(one.to_wire())
            arguments += (
                one.full_name,
                wire,
                one.digest,
                one.timing_digest,
                one.overlap,
                *_written(one.next(now)),
            )
        written: ScriptCall[int] = ScriptCall(
            self._ledger.scripts.keep_schedules, [index, keys.schedule_owners], arguments
        )
        with naming(index, keys.schedule_owners, *(keys.schedule(one.full_name) for one in schedules)):
            return written.run(self._redis)

    def all(self) -> list[ScheduleState]:
        """Read all schedules, by bundle and name; damaged ones are left out, and logged."""
        return self.states(self.full_names())

    def full_names(self) -> list[str]:
        """Return the full names of all schedules, by bundle and name."""
        owners: list[bytes] = []
        with only_advice(self._keys.schedule_owners):
            owners = cast("list[bytes]", self._redis.hkeys(self._keys.schedule_owners))
        names: list[str] = []
        for owner in sorted(one.decode(errors="replace") for one in owners):
            with only_advice(self._keys.schedules(owner)):
                found = cast("list[bytes]", self._redis.zrange(self._keys.schedules(owner), 0, -1))
                names += sorted(name.decode(errors="replace") for name in found)
        return names

    def states(self, names: Sequence[str]) -> list[ScheduleState]:
        """Read the schedules of these full names; those that are damaged or gone are left out."""
        with self._redis.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(self._keys.schedule(name))
                pipe.zcard(self._keys.schedule_runs(name))
                pipe.zrange(self._keys.schedule_runs(name), 0, _MOST_LOOKED_AT - 1)
            rows = rows_of(pipe)
        noted = [[one.decode() for one in found] if isinstance(found, list) else [] for found in rows[2::3]]
        records = iter(self._ledger.records([one for ids in noted for one in ids]))
        states = (
            self._state(name, state, runs, [next(records) for _ in ids])
            for name, state, runs, ids in zip(names, rows[::3], rows[1::3], noted, strict=True)
        )
        return [state for state in states if state is not None]

    def _state(
        self, name: str, row: Any, runs: Any, noted: Sequence[CallRecord | None]
    ) -> ScheduleState | None:
        """Return the state of a schedule; ``noted`` are the runs that are not known to have ended."""
        if not row:  # it is damaged, or has just been removed
            return None
        ended = [one for one in noted if one is None or one.has_ended]
        fields = {field.decode(errors="replace"): value for field, value in row.items()}
        schedule = read_row(Schedule, fields.get("definition"), f"the schedule {name!r}")
        if schedule is None:
            return None

        def text(field: str) -> str | None:
            return fields.get(field, b"").decode(errors="replace") or None

        def time(field: str) -> str | None:
            return time_text(fields.get(field), f"{field} of the schedule {name!r}")

        return ScheduleState(
            schedule=schedule,
            next=time("next"),
            due_at=time("at"),
            paused=read_row(SchedulePause, fields.get("paused"), f"the pause of the schedule {name!r}"),
            **{one: whole_number(fields.get(one), name) for one in SLOT_RESULTS},
            last_slot=text("lastSlot"),
            last_at=time("lastAt"),
            last_id=text("lastId"),
            open_runs=runs - len(ended) if isinstance(runs, int) else 0,
            **(_ending_of(ended) or {"last_outcome": text("lastOutcome"), "last_error": text("lastError")}),
        )

    def pause(self, schedule: Schedule, reason: str, by: str) -> bool:
        """Pause a schedule; return whether it was not paused before."""
        pause = SchedulePause(reason=reason, by=by, at=int(redis_time(self._redis)))
        return self._pause(schedule, serializer.encode(pause.to_wire()), Due(None, None))

    def resume(self, schedule: Schedule) -> bool:
        """End a pause; return whether there was one. Slots that were due meanwhile are not made up for."""
        return self._pause(schedule, b"", schedule.next(redis_time(self._redis)))

    def _pause(self, schedule: Schedule, pause: bytes, following: Due) -> bool:
        keys = [self._keys.schedule(schedule.full_name), self._keys.schedules(schedule.owner)]
        arguments = [schedule.full_name, pause, *_written(following), TTL_SECONDS]
        change: ScriptCall[int] = ScriptCall(self._ledger.scripts.pause_schedule, keys, arguments)
        with naming(*keys):
            return change.run(self._redis) == 1

    def outside_slots(self, schedule: Schedule, key: str | None = None) -> Submission:
        """Prepare a run outside the slots; for it, ``{{slot}}`` is the time of now.

        The same ``key`` is the same run, at the same time, for KEPT_SECONDS, until the schedule is removed.
        """
        now, suffix = redis_time(self._redis), secrets.token_hex(4)
        if key is not None:
            since = cast("bytes | None", self._redis.hget(self._keys.schedule(schedule.full_name), "since"))
            begun = (since or b"").decode(errors="replace")
            name = self._keys.request_key(f"schedule {schedule.full_name} {schedule.digest} {begun} {key}")
            with self._redis.pipeline() as pipe:
                pipe.set(name, f"{now} {suffix}", nx=True, ex=KEPT_SECONDS)
                pipe.get(name)
                moment, suffix = pipe.execute()[1].decode().split()
            now = float(moment)
        event_id = schedule.event_id(f"{iso_time(now)}+{suffix}")
        return submission_of(schedule, slot_text(int(now)), now, event_id=event_id)

    def run(self, schedule: Schedule, submission: Submission, producer: str) -> Word:
        """Fire a schedule outside its slots, paused or not."""
        origin = submission.call.origin or {}
        return self._fire(_Step(schedule, None, submission, origin["slot"]), producer).run(self._redis)

    def remove(self, schedule: Schedule) -> None:
        """Remove a schedule; its runs go on."""
        name, index = schedule.full_name, self._keys.schedules(schedule.owner)
        with naming(index), self._redis.pipeline() as pipe:
            pipe.zrem(index, name)
            pipe.delete(self._keys.schedule(name), self._keys.schedule_runs(name))
            pipe.execute()


def submission_of(
    schedule: Schedule, slot: str, now: float, missed: int = 0, *, event_id: str | None = None
) -> Submission:
    """Prepare the event or call of a slot; see :meth:`Schedule.call`."""
    call = schedule.call(slot, now, missed, event_id=event_id)
    if is_event(call):
        return event_submission(call)
    call_id, args = identity_of(call), serializer.encode(call.args)
    wire = call_json(call, args)
    return Submission(call_id, call, wire, digest_of(call, args), queue_element(call_id, call, wire))


def named(full_names: Sequence[str], name: str) -> list[str]:
    """Return the schedules that a person means by a name: its full name, or the name in any bundle."""
    return [one for one in full_names if one == name] or [one for one in full_names if own_name(one) == name]


def own_name(full_name: str) -> str:
    """Return a schedule's name without that of its bundle."""
    return full_name.rpartition("/")[2]


def _ending_of(ended: Sequence[CallRecord | None]) -> dict[str, str | None]:
    """Return how the last of these runs ended, as running.lua notes it later; empty if that is unknown."""
    for one in reversed(ended):
        if one is not None and one.outcome is not None:
            error = one.error
            text = None if error is None else f"{error.code}: {error.message[:500]}"
            return {"last_outcome": one.outcome, "last_error": text}
    return {}


def _written(due: Due) -> tuple[int | str, int | str]:
    return ("" if due.slot is None else due.slot), ("" if due.at is None else due.at)


def _word_for(step: _Step, word: Word | ResponseError) -> Word:
    if not isinstance(word, ResponseError):
        return word
    report_row(f"a key of the schedule {step.schedule.full_name!r}", refusal_text(word))
    return "stale"


def _word(answer: bytes) -> Word:
    return cast("Word", answer.decode())
