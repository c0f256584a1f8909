"""What operators do with calls that have failed, and with many calls at once: replay, drop, cancel."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Unpack

from goondan_tasks.client.arguments import checking_arguments
from goondan_tasks.client.bulk import ACTS, Bounds, BulkAct, BulkResult, BulkRun
from goondan_tasks.client.connection import ClientConnection
from goondan_tasks.client.pending_call import PendingCall, require_possible
from goondan_tasks.client.submitter import may_be_replayed, replay_of, require_replayable
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.wording import require_keywords
from goondan_tasks.ledger.call_filter import CallFilter, moments, open_calls
from goondan_tasks.ledger.dead_letters import not_a_letter
from goondan_tasks.ledger.record import CallRecord


@checking_arguments
class LetterClient(ClientConnection):
    """The operations on dead letters, and on all calls that a filter selects."""

    def dead_letters(
        self, agent: str | None = None, limit: int | None = 50, **wanted: Unpack[CallFilter]
    ) -> list[CallRecord]:
        """Return the dead letters of one agent or of all, the latest first.

        These are calls whose every run killed its worker, and messages that held no call. The latter have
        the tool ``(no call)``, and the message and its queue as arguments.
        """
        with self.broker_errors():
            found = self._dead_letters.find(self._agents_of(agent), **wanted)
            return list(itertools.islice(found, limit))

    def dead_letter(self, call_id: str) -> CallRecord:
        """Return one dead letter.

        Raises:
            CallNotFoundError: there is no such call, or it is not a dead letter.
        """
        record = self.record(call_id)
        with self.broker_errors():
            if not self._dead_letters.has(record):
                raise not_a_letter(record.id, record)
        return record

    def replay(self, call_id: str, *, again: bool = False) -> PendingCall:
        """Run a call that has ended with an error, a dead letter or not, again as a new call.

        The old call keeps its result and is marked as replayed; a second replay is refused unless ``again``
        is true. The new call's result names the old one in ``meta.replay_of``.

        Raises:
            NotReplayableError: it has not ended, has succeeded, was refused, or was replayed before.
            CallNotFoundError: there is no such call.
            AgentNotFoundError, PayloadTooLargeError: as :meth:`submit`.
        """
        record = self.record(call_id)
        with self.broker_errors():
            result = self._calls.result(call_id)
        require_replayable(record, result, again=again)
        return self._replay([record])[call_id]

    def act_on_all(
        self,
        act: BulkAct,
        agent: str | None = None,
        *,
        between: tuple[int, int] | None = None,
        limit: int | None = None,
        seconds: float | None = None,
        dry_run: bool = False,
        watch: Callable[[int], object] | None = None,
        **wanted: Unpack[CallFilter],
    ) -> BulkResult:
        """Replay or drop the dead letters that a filter selects, or cancel the calls that have not ended.

        It is done in batches of 200, which may be interrupted: the same act again does the rest, and nothing
        twice. It stops after ``limit`` calls, and after ``seconds``; ``has_more`` says that there are more.
        ``watch`` is called with the number of calls done so far. With ``dry_run`` they are only counted; its
        result has the moments ``between`` which they are, which the act takes instead of ages, and leaves
        alone what came meanwhile. Not replayed are letters that were, and messages that held no call. A call
        with which it cannot be done is counted as failed, and keeps no other.

        Raises:
            ToolInputValidationError: ``act`` is none of ``replay``, ``drop`` and ``cancel``.
        """
        require_keywords("act_on_all()", wanted, CallFilter.__annotations__)
        if act not in ACTS:
            raise ToolInputValidationError(f"act_on_all(): act must be one of {', '.join(ACTS)}.")
        with self.broker_errors():
            span = self._moments(wanted, is_preview=dry_run) if between is None else between
            run = BulkRun(act, self._doing(act), span, watch)
            selected = self._selected(act, agent, wanted, span)
            return run.count(selected) if dry_run else run.carry_out(selected, Bounds(limit, seconds))

    def _moments(self, wanted: CallFilter, *, is_preview: bool) -> tuple[float, float]:
        """Return the moments (ms, Redis time) of what a filter selects; a preview ends now."""
        if is_preview and wanted.get("older_than") is None:
            wanted = CallFilter(**{**wanted, "older_than": 0.0})
        return moments(self._redis, wanted)

    def _selected(
        self, act: BulkAct, agent: str | None, wanted: CallFilter, between: tuple[float, float]
    ) -> Iterator[CallRecord]:
        if act == "cancel":
            return open_calls(self._ledger, agent, wanted, between)
        letters = self._dead_letters.find(self._agents_of(agent), between, **wanted)
        return filter(may_be_replayed, letters) if act == "replay" else letters

    def _doing(self, act: BulkAct) -> Callable[[Sequence[CallRecord]], dict[str, str]]:
        def replay(batch: Sequence[CallRecord]) -> dict[str, str]:
            return {old: new.id for old, new in self._replay(list(batch)).items()}

        def drop(batch: Sequence[CallRecord]) -> dict[str, str]:
            ids = [one.id for one in batch]
            return dict.fromkeys(self._dead_letters.remove(ids, {one.call.agent_name for one in batch}), "")

        def cancel(batch: Sequence[CallRecord]) -> dict[str, str]:
            return dict.fromkeys(self._calls.cancel_many([one.id for one in batch], None), "")

        return {"replay": replay, "drop": drop, "cancel": cancel}[act]

    def drop(self, call_id: str) -> None:
        """Remove a call from the dead letters; its record and its result stay until they expire.

        Raises:
            CallNotFoundError: there is no such dead letter.
        """
        require_possible(call_id)
        with self.broker_errors():
            record = self._ledger.record(call_id)
            agents = [*self.agents(), *([record.call.agent_name] if record else [])]
            if not self._dead_letters.remove([call_id], agents):
                raise not_a_letter(call_id, record)

    def _replay(self, records: list[CallRecord]) -> dict[str, PendingCall]:
        calls = self.submit_again(replay_of(record) for record in records)
        with self.broker_errors():
            self._dead_letters.note_replayed(records, [call.id for call in calls])
        return {record.id: call for record, call in zip(records, calls, strict=True)}
