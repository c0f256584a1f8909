"""Schedules as they are kept in Redis: what is due when, and the event or call of a slot."""

import uuid
from collections import deque
from hashlib import sha256
from itertools import chain, islice
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, model_validator

from broker_config import serializer
from goondan_tasks.contract.events import DEFAULT_INSTANCE, system_event
from goondan_tasks.contract.messages import (
    LONGEST_INSTANCE_KEY,
    AgentEvent,
    EventSource,
    InstanceKey,
    JsonObject,
    ToolCall,
    Versioned,
    iso_time,
)
from goondan_tasks.contract.names import call_identity
from goondan_tasks.contract.templates import filled
from goondan_tasks.contract.timing import (
    LONGEST_JITTER,
    Timing,
    interval_seconds,
    jitter_ms,
    require_cron,
    require_zone,
)

CatchUp = Literal["skip", "once", "all"]
Overlap = Literal["queue", "skip", "cancel"]

#: the type of the events of schedules
EVENT_TYPE = "schedule.fired"
#: how many missed slots are made up for with ``catchUp: all``, by default and at most
CATCH_UP_LIMIT, MOST_CAUGHT_UP = 24, 1_000
#: a slot that is due for longer is missed, as is each one that is due beside a later one
LATE_MS = 60_000
#: how many missed slots of an outage are counted
MOST_COUNTED = 10_000


class Schedule(Versioned):
    """What is due, and when. ``owner`` is the workspace of the bundle that declares it, or empty."""

    name: str
    owner: str = ""
    cron: Annotated[str, AfterValidator(require_cron)] | None = None
    every: Annotated[str, AfterValidator(lambda text: interval_seconds(text) and text)] | None = None
    time_zone: Annotated[str, AfterValidator(require_zone)] = "UTC"
    jitter_seconds: Annotated[int, Field(ge=0, le=LONGEST_JITTER)] = 0
    catch_up: CatchUp = "once"
    catch_up_limit: Annotated[int, Field(gt=0, le=MOST_CAUGHT_UP)] = CATCH_UP_LIMIT
    overlap: Overlap = "queue"
    agent: str
    input: Any = None
    #: with a tool, its slots are calls with ``args``; without one they are events with ``input``
    tool: str | None = None
    args: JsonObject = Field(default_factory=dict)
    instance_key: Annotated[InstanceKey, Field(max_length=LONGEST_INSTANCE_KEY)] = DEFAULT_INSTANCE

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.cron is None) == (self.every is None):
            raise ValueError("exactly one of 'cron' and 'every' is required")
        if self.tool is not None and self.input is not None:
            raise ValueError("'input' is for an agent's Turn; a tool gets 'args'")
        if self.tool is None and self.args:
            raise ValueError("'args' need a 'tool'; an agent's Turn gets 'input'")
        if self.catch_up == "all" and self.overlap != "queue":
            raise ValueError("catchUp 'all' makes up for each slot, so it needs overlap 'queue'")
        return self

    @property
    def full_name(self) -> str:
        """The name among the schedules of all bundles: ``<workspace>/<name>``, or the name alone."""
        return f"{self.owner}/{self.name}" if self.owner else self.name

    @property
    def timing(self) -> Timing:
        return Timing(self.cron or "", self.time_zone, interval_seconds(self.every) if self.every else 0)

    @property
    def timing_digest(self) -> str:
        """A digest of what decides the slots, and when each is due."""
        return _digest([self.cron, self.every, self.time_zone, self.jitter_seconds])

    @property
    def digest(self) -> str:
        """A digest of everything."""
        return _digest(self.to_wire())

    def next(self, moment: float) -> "Due":
        """Return the first slot after a moment (ms), and when it is due."""
        return self._due(self.timing.next(moment))

    def _due(self, slot: int | None) -> "Due":
        if slot is None:
            return Due(None, None)
        return Due(slot, slot + jitter_ms(self.full_name, slot, self.jitter_seconds))

    def firings(self, first: int, now: float) -> "list[Firing]":
        """Decide about all slots from ``first`` on that are past at ``now`` (ms), in order.

        The first one is due. Slots that ``catchUp`` does not make up for are counted in the firing of the
        next one, or stand in a firing of none.
        """
        past, count, following = self._past(first, now)
        latest = past[-1]
        is_late = now - (latest.at or 0) > LATE_MS
        made_up = {"skip": 0, "once": 1, "all": self.catch_up_limit}[self.catch_up]
        most = made_up if is_late or self.catch_up == "once" else made_up + 1
        kept = past[len(past) - min(most, len(past)) :]
        missed, expected, firings = count - len(kept), first, list[Firing]()
        for due, after in zip(kept, [*kept, following][1:], strict=True):
            firings.append(Firing(expected, due.slot, after, missed))
            missed, expected = 0, after.slot or 0
        return firings or [Firing(first, None, following, missed)]

    def _past(self, first: int, now: float) -> "tuple[list[Due], int, Due]":
        """Return the latest slots that are due at ``now``, how many are in all, and the first after them."""
        found, count = deque[Due](maxlen=self.catch_up_limit + 1), 0
        for slot in chain([first], self.timing.after(first)):
            due = self._due(slot)
            if count and (due.at or 0) > now:
                return list(found), count, due
            if count == MOST_COUNTED:  # after a long outage, the latest are looked for from its end
                slots = self.timing.after(self._shortly_before(now, slot))
                return self._past(next(slots), now)[0], count, self.next(now)
            found.append(due)
            count += 1
        return list(found), count, Due(None, None)

    def _shortly_before(self, now: float, earliest: int) -> float:
        """Return a moment between which and ``now`` there are enough slots, but few more."""
        span, most = 1_000.0, self.catch_up_limit + 1
        while now - span > earliest:
            found = list(islice(self.timing.after(now - span), most))
            if len(found) == most and (self._due(found[-1]).at or 0) <= now:
                return now - span
            span *= 2
        return earliest - 1

    def event_id(self, slot: str) -> str:
        """Return the id of the event or call of a slot, which is unique among those of its instance."""
        return f"schedule:{self.full_name}:{slot}"

    def call(self, slot: str, now: float, missed: int = 0, *, event_id: str | None = None) -> ToolCall:
        """Return the event of a slot, or its tool call. A trace begins here.

        ``now`` is the Redis time in ms, ``missed`` how many slots were missed before this one. A run outside
        the slots has another ``event_id``.
        """
        event_id, instance = event_id or self.event_id(slot), filled(self.instance_key, {"slot": slot})
        turn_id = f"turn-{event_id}"
        call_id = call_identity(self.agent, instance, turn_id, event_id)
        about: JsonObject = {"schedule": self.full_name, "slot": slot}
        trace_id = uuid.UUID(call_id).hex
        if self.tool is not None:
            return ToolCall(
                tool_call_id=event_id,
                tool_name=self.tool,
                args=filled(self.args, {"slot": slot}),
                agent_name=self.agent,
                instance_key=instance,
                turn_id=turn_id,
                trace_id=trace_id,
                span_id=call_id.replace("-", "")[16:],
                correlation_id=event_id,
                origin=about,
            )
        event = AgentEvent(
            id=event_id,
            type=EVENT_TYPE,
            created_at=iso_time(now),
            trace_id=trace_id,
            metadata={**about, **({"missed": missed} if missed else {})},
            input=filled(self.input, {"slot": slot}),
            instance_key=instance,
            source=EventSource(kind="connector", name="schedule"),
        )
        return system_event(event, self.agent, correlation_id=event_id, origin=about)


class Due(NamedTuple):
    """A slot, and when it is due with its jitter, both in ms; ``None`` if there is none."""

    slot: int | None
    at: int | None


class Firing(NamedTuple):
    """One step of a schedule, from the slot that it expects to the next one."""

    expected: int
    #: the slot that is fired, if any
    slot: int | None
    following: Due
    #: how many slots before this one are given up
    missed: int


def slot_text(slot: int) -> str:
    """Write a slot: ``2026-12-01T09:00:00Z``."""
    return f"{iso_time(slot)[:19]}Z"


def _digest(value: Any) -> str:
    return sha256(serializer.encode(value)).hexdigest()[:32]
