"""The schedules of all bundles, and those that programs make at run time."""

import re
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from broker_config import serializer
from goondan_tasks.client.acts import OF_SCHEDULES
from goondan_tasks.client.arguments import checking_arguments
from goondan_tasks.client.known_agents import KnownAgents
from goondan_tasks.client.pending_call import CallService, PendingCall
from goondan_tasks.client.submitter import Submitter
from goondan_tasks.contract.errors import (
    ScheduleNotFoundError,
    ScheduleOfBundleError,
    ToolInputValidationError,
    ToolNotInCatalogError,
)
from goondan_tasks.contract.events import DEFAULT_INSTANCE
from goondan_tasks.contract.messages import JsonObject, faults_of
from goondan_tasks.contract.schedules import CATCH_UP_LIMIT, Schedule, slot_text
from goondan_tasks.contract.schema import compile_schema
from goondan_tasks.contract.wording import closest, hint
from goondan_tasks.fleet.audit import AuditLog, recording
from goondan_tasks.ledger.schedules import ScheduleState, ScheduleStore, named, own_name, submission_of

_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,98}[A-Za-z0-9])?")


@recording(OF_SCHEDULES, "schedule.")
@checking_arguments
@dataclass(frozen=True, slots=True)
class Schedules:
    """What a client does with schedules; threads may share it.

    A schedule is named by its name, or in full, as ``<workspace>/<name>``, if it is that of a bundle. Every
    method raises BrokerUnreachableError as those of the client do.
    """

    _store: ScheduleStore
    _known_agents: KnownAgents
    _submitter: Submitter
    _calls: CallService
    _producer: str
    _audit: AuditLog
    _broker_errors: Callable[[], AbstractContextManager[None]]

    def list(self) -> list[ScheduleState]:
        """Return all schedules, by bundle and name: when each is due, and what has become of it."""
        with self._broker_errors():
            return self._store.all()

    def add(
        self,
        name: str,
        agent: str,
        input: Any = None,
        *,
        cron: str | None = None,
        every: str | None = None,
        time_zone: str = "UTC",
        jitter_seconds: int = 0,
        catch_up: str = "once",
        catch_up_limit: int = CATCH_UP_LIMIT,
        overlap: str = "queue",
        tool: str | None = None,
        args: JsonObject | None = None,
        instance_key: str = DEFAULT_INSTANCE,
    ) -> ScheduleState:
        """Add a schedule: by ``cron`` or ``every``, a Turn of the agent, or with ``tool`` a call of its tool.

        One of that name that was made at run time is replaced: it stays paused if it was, and keeps its
        counts. Workers notice a new one within 5 seconds.

        Raises:
            AgentNotFoundError: no such agent.
            ToolNotInCatalogError: the agent has no such tool.
            ToolInputValidationError: a field is not valid, or ``args`` do not fit the tool.
            PayloadTooLargeError: the input or the arguments exceed ``MAX_ARGS_BYTES``.
        """
        if not _NAME.fullmatch(name):
            raise ToolInputValidationError(
                f"{name[:100]!r} is not the name of a schedule.",
                suggestion="Use letters, digits, '.', '_' and '-', 100 at most; begin and end with no sign.",
            )
        fields = {
            "name": name,
            "agent": agent,
            "input": input,
            "cron": cron,
            "every": every,
            "timeZone": time_zone,
            "jitterSeconds": jitter_seconds,
            "catchUp": catch_up,
            "catchUpLimit": catch_up_limit,
            "overlap": overlap,
            "tool": tool,
            "args": {} if args is None else args,
            "instanceKey": instance_key,
        }
        try:
            schedule = Schedule.from_wire(fields)
            serializer.encode(schedule.to_wire())
        except ValidationError as error:
            raise ToolInputValidationError(
                f"The schedule is not valid: {faults_of(error)}.",
                suggestion="Correct what the message names.",
            ) from error
        except serializer.NotJsonError as error:
            raise ToolInputValidationError(f"The schedule is not valid JSON: {error}.") from error
        with self._broker_errors():
            self._require_target(schedule)
            self._store.put(schedule)
            return self._one(name)

    def pause(self, name: str, reason: str = "", by: str = "") -> ScheduleState:
        """Pause a schedule: no slot is due until it is resumed; runs go on.

        Raises:
            ScheduleNotFoundError: there is none of that name, or several.
        """
        with self._broker_errors():
            self._store.pause(self._one(name).schedule, reason, by)
            return self._one(name)

    def resume(self, name: str) -> ScheduleState:
        """Resume a schedule with its next slot; those of the pause are not made up for.

        Raises:
            ScheduleNotFoundError: as :meth:`pause`.
        """
        with self._broker_errors():
            self._store.resume(self._one(name).schedule)
            return self._one(name)

    def run(self, name: str, *, request_key: str | None = None) -> PendingCall:
        """Fire a schedule now, outside its slots, whether it is paused or not.

        The same ``request_key`` is the same run, for a day.

        Raises:
            ScheduleNotFoundError: as :meth:`pause`.
        """
        with self._broker_errors():
            while True:
                schedule = self._one(name).schedule
                submission = self._store.outside_slots(schedule, request_key)
                self._calls.listener.start()
                [pending] = self._calls.pending([submission.id])
                if self._store.run(schedule, submission, self._producer) != "stale":
                    return pending  # else it was changed meanwhile

    def remove(self, name: str) -> None:
        """Remove a schedule that was made at run time; its runs go on.

        Raises:
            ScheduleNotFoundError: as :meth:`pause`.
            ScheduleOfBundleError: a bundle declares it.
        """
        with self._broker_errors():
            schedule = self._one(name).schedule
            if schedule.owner:
                raise ScheduleOfBundleError(
                    f"The schedule {schedule.name!r} is declared by the bundle of {schedule.owner!r}."
                )
            self._store.remove(schedule)

    def _one(self, name: str) -> ScheduleState:
        known = self._store.full_names()
        found = self._store.states(named(known, name))  # the others are not read: there may be thousands
        if len(found) == 1:
            return found[0]
        if found:
            names = " and ".join(repr(one.full_name) for one in found)
            raise ScheduleNotFoundError(
                f"Several schedules are called {name!r}.", suggestion=f"Write {names}."
            )
        meant = closest(name, [*known, *map(own_name, known)])
        more = f" Did you mean {meant!r}?" if meant else ""
        raise ScheduleNotFoundError(f"There is no schedule {name[:200]!r}.{more}")

    def _require_target(self, schedule: Schedule) -> None:
        agent = self._known_agents.require(schedule.agent)
        example = submission_of(schedule, slot_text(0), 0)
        self._submitter.require_sizes(example.call)
        if schedule.tool is None:
            return
        items = {item["name"]: item for item in self._known_agents.current(agent.name).catalog}
        if schedule.tool not in items:
            raise ToolNotInCatalogError(
                f"Agent {agent.name!r} has no tool {schedule.tool!r}.",
                suggestion=hint(schedule.tool, items, "It has no tools."),
            )
        if faults := compile_schema(items[schedule.tool].get("parameters")).faults(example.call.args):
            raise ToolInputValidationError(f"The arguments do not fit {schedule.tool}: {'; '.join(faults)}.")
