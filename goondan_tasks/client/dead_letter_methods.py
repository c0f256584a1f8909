"""What a client can do about dead letters."""

import itertools
from typing import Unpack

from goondan_tasks.client.connection import Connection
from goondan_tasks.client.pending_call import PendingCall, require_possible
from goondan_tasks.client.replay import may_be_replayed, replay_of, require_replayable
from goondan_tasks.errors import (
    CallNotFoundError,
)
from goondan_tasks.ledger.dead_letters import LetterFilter, batches
from goondan_tasks.ledger.record import CallRecord


class DeadLetterMethods(Connection):
    """The methods of :class:`goondan_tasks.client.Client` about what has failed for good."""

    def dead_letters(
        self, agent: str | None = None, limit: int | None = 50, **wanted: Unpack[LetterFilter]
    ) -> list[CallRecord]:
        """Return the dead letters of one agent or of all, the latest first.

        They are the calls whose every run killed its worker, and the messages that held no call: those have
        the tool ``(no call)``, and as arguments what came and by which queue.
        """
        with self._broker_errors():
            found = self._dead_letters.find(self._agents_of(agent), **wanted)
            return list(itertools.islice(found, limit))

    def dead_letter(self, call_id: str) -> CallRecord:
        """Return one dead letter.

        Raises:
            CallNotFoundError: there is no such call, or it is no dead letter.
            BrokerUnreachableError: Redis cannot be reached.
        """
        record = self.record(call_id)
        with self._broker_errors():
            if not self._dead_letters.has(record):
                raise _no_letter(record.id, record)
        return record

    def replay(self, call_id: str, *, again: bool = False) -> PendingCall:
        """Run a call again that has ended with an error, a dead letter or not, as a new call.

        The old one keeps its result and is marked as replayed: a second replay is refused, unless
        ``again`` says so. The new one's result names the old in ``meta.replay_of``.

        Raises:
            NotReplayableError: it has not ended, has ended well, was refused, or was replayed before.
            CallNotFoundError: there is no such call.
            AgentNotFoundError, PayloadTooLargeError, BrokerUnreachableError: as :meth:`submit`.
        """
        record = self.record(call_id)
        with self._broker_errors():
            result = self._calls.result(call_id)
        require_replayable(record, result, again=again)
        return self._replay([record])[call_id]

    def replay_all(self, agent: str | None = None, **wanted: Unpack[LetterFilter]) -> dict[str, PendingCall]:
        """Replay the dead letters that were not yet replayed; return the new calls by the old ones' ids.

        What holds no call is left alone. Raises as :meth:`replay`; what was replayed is marked as such.
        """
        letters = [letter for letter in self.dead_letters(agent, None, **wanted) if may_be_replayed(letter)]
        return {old: new for batch in batches(letters) for old, new in self._replay(batch).items()}

    def drop(self, call_id: str) -> None:
        """Let a call be no dead letter any more; its record and its result stay until their time.

        Raises:
            CallNotFoundError: there is no such dead letter.
        """
        require_possible(call_id)
        with self._broker_errors():
            record = self._ledger.record(call_id)
            agents = [*self.agents(), *([record.call.agent_name] if record else [])]
            if not self._dead_letters.remove([call_id], agents):
                raise _no_letter(call_id, record)

    def drop_all(self, agent: str | None = None, **wanted: Unpack[LetterFilter]) -> int:
        """Drop dead letters, replayed or not; return how many."""
        letters = self.dead_letters(agent, None, **wanted)
        with self._broker_errors():
            return self._dead_letters.remove([letter.id for letter in letters], self._agents_of(agent))

    def _replay(self, records: list[CallRecord]) -> dict[str, PendingCall]:
        calls = self._submit_again(replay_of(record) for record in records)
        with self._broker_errors():
            self._dead_letters.note_replayed(records, [call.id for call in calls])
        return {record.id: call for record, call in zip(records, calls, strict=True)}


def _no_letter(call_id: str, record: CallRecord | None) -> CallNotFoundError:
    reason = "it is unknown or expired"
    if record is not None:
        reason = "it was dropped" if record.status == "dead" else f"it is {record.outcome or record.status}"
    return CallNotFoundError(
        f"Call {call_id} is no dead letter: {reason}.", suggestion="`goondan dead-letters list` shows them."
    )
