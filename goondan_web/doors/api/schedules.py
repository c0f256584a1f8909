"""Schedules: list them, pause and resume them, fire one now."""

from collections.abc import Sequence
from dataclasses import dataclass

from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.errors import ScheduleNotFoundError
from goondan_tasks.contract.events import is_event
from goondan_tasks.ledger.schedules import ScheduleState
from goondan_web.doors.api.operations import Asked, Content, Operation, Reply
from goondan_web.doors.api.runs import BEGINNING, REPEATABLE, CallView, RunView, TurnView
from goondan_web.doors.api.turns import request_key
from goondan_web.doors.api.wire import Listing, Omissible, Page, page_of


class SchedulePauseBody(Omissible):
    """Why a schedule is paused, and by whom."""

    reason: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Schedules:
    """The operations on schedules; the name of a bundle's schedule may be ``<workspace>/<name>``."""

    client: AsyncClient

    async def list_schedules(self, asked: Asked) -> Reply:
        """List the schedules: when each is due, and what has become of it."""
        states = await self.client.schedules.list()
        return Reply(page_of(states, asked.query, lambda one: [one.full_name], lambda one: one))

    async def run_schedule(self, asked: Asked) -> Reply:
        """Fire a schedule now, outside its slots, whether it is paused or not."""
        run = await self.client.schedules.run(asked.path["name"], request_key=request_key(asked))
        record = await self.client.record(run.id)
        view: RunView = TurnView.of(record) if is_event(record.call) else CallView.of(record)
        return Reply(view, 202, {"Location": view.links["self"]})

    async def pause_schedule(self, asked: Asked) -> Reply:
        """Pause a schedule; runs go on."""
        body: SchedulePauseBody = asked.body
        return Reply(await self.client.schedules.pause(asked.path["name"], body.reason, body.by))

    async def resume_schedule(self, asked: Asked) -> Reply:
        """Resume a schedule with its next slot."""
        return Reply(await self.client.schedules.resume(asked.path["name"]))

    def operations(self) -> Sequence[Operation]:
        """Return them as a table."""
        listed = {200: Content("A page.", Page[ScheduleState])}
        state = {200: Content("The schedule.", ScheduleState)}
        begun = {202: Content("The Turn, or the call, that it has begun.", RunView)}
        unknown = (ScheduleNotFoundError,)
        path = "/v1/schedules/{name}"
        return [
            Operation(
                "GET", "/v1/schedules", "schedules", "read", self.list_schedules, listed, query=Listing
            ),
            Operation(
                "POST",
                f"{path}/run",
                "schedules",
                "admin",
                self.run_schedule,
                begun,
                unknown,
                headers={REPEATABLE: BEGINNING[REPEATABLE]},
            ),
            Operation(
                "POST",
                f"{path}/pause",
                "schedules",
                "admin",
                self.pause_schedule,
                state,
                unknown,
                body=SchedulePauseBody,
            ),
            Operation("POST", f"{path}/resume", "schedules", "admin", self.resume_schedule, state, unknown),
        ]
