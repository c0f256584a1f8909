"""Calls whose approval was decided: their results, and the Turns in which their agents go on."""

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass

from goondan_tasks.client.client import Client
from goondan_tasks.client.following import FollowTerms
from goondan_tasks.client.pending_call import PendingCall
from goondan_tasks.client.turn_events import ToolAnswered, ToolCalled, TurnEvent
from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError, WaitTimeout
from goondan_tasks.contract.events import completion_id
from goondan_tasks.ledger.record import CallRecord


@dataclass(slots=True)
class DecidedCall:
    """A call that a person has decided about, until its agent gets the result."""

    client: Client
    record: CallRecord
    is_shown: bool = False
    has_ended: bool = False
    #: whether it has run and now waits for completion from outside
    comes_later: bool = False

    def look(self, event_id: str) -> str:
        """Return the state of the event that brings the agent the result; the call may still run."""
        with suppress(CallNotFoundError):
            return self.client.look(event_id)
        return "queued"

    def events(self) -> Iterator[TurnEvent]:
        """Yield the call once, and its result once there is one."""
        call, call_id = self.record.call, self.record.id
        if not self.is_shown:
            self.is_shown = True
            yield ToolCalled(step=0, id=call.shown_id, call_id=call_id, tool=call.tool_name, args=call.args)
        if not self.has_ended:
            with suppress(WaitTimeout):
                result = self.client.pending(call_id).result(0)
                self.has_ended, self.comes_later = True, result.status == "pending"
                yield ToolAnswered.of(result, 0)

    def cancel(self) -> bool:
        """Cancel the call; return whether it was still open."""
        with suppress(CallClosedError, CallNotFoundError):
            self.client.cancel(self.record.id)
            return True
        return False


def continuation(
    client: Client, record: CallRecord, decide: Callable[[], None]
) -> Generator[TurnEvent | None]:
    """Decide about a call, and yield its result, and the events of the Turn that begins with it.

    ``None`` comes while there is nothing. A call that now waits for completion from outside ends it.

    Raises:
        GoondanError: what ``decide`` raises.
    """
    call, event_id = DecidedCall(client, record, is_shown=True), completion_id(record.call, record.id)

    def begin() -> PendingCall:
        decide()
        return client.expect(event_id, call.look)

    terms = FollowTerms(opens=True, cancel_on_close=False, is_asker=False)
    with closing(client.follower(event_id, begin, terms).events(ticks=True)) as events:
        for event in events:
            yield from call.events()
            if call.comes_later:
                return
            yield event
