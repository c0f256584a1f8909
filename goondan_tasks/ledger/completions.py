"""Completes pending calls, and approves or denies calls that wait for an approval."""

import hmac
import json
from collections.abc import Iterable

from broker_config.connections import redis_time, rows_of
from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError
from goondan_tasks.contract.messages import ArgumentEdit, JsonObject, iso_time
from goondan_tasks.contract.names import CallbackToken, callback_token
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.reaper import Reaper
from goondan_tasks.ledger.record import CallRecord, Claim, Outcome, Verdict


class Completions:
    """The pending calls of one ledger. A second completion of a call is refused.

    Every method may raise ``redis.exceptions.RedisError``.
    """

    def __init__(self, ledger: Ledger, reaper: Reaper) -> None:
        self._ledger = ledger
        self._reaper = reaper

    def complete(self, call_id: str, outcome: Outcome, completer: str, *, is_decision: bool = False) -> None:
        """End a pending call; with ``is_decision``, one that waits for an approval.

        Raises:
            CallNotFoundError, CallClosedError, CallNotPendingError: see :meth:`Ledger.resolve`.
            NotJsonError: the outcome has no JSON form.
        """
        resolve = self._ledger.resolve(call_id, outcome, completer, is_decision=is_decision)
        self._end(call_id, resolve.run(self._ledger.redis))

    def complete_with_token(self, call_id: str, token: str, outcome: Outcome) -> None:
        """End a pending call for the holder of its callback URL. Raises also what :meth:`complete` raises.

        Raises:
            CallNotFoundError: the token or the call is unknown; the error does not say which.
        """
        callback = self._callback(call_id, token)
        resolve = self._ledger.resolve(call_id, outcome, "callback", callback=callback)
        self._end(call_id, resolve.run(self._ledger.redis))

    def approve(self, record: CallRecord, by: str, edited: JsonObject | None = None) -> None:
        """Approve a call that waits for it; ``edited`` are arguments that replace those asked for.

        Raises:
            CallNotFoundError, CallClosedError, CallNotPendingError: see :meth:`Ledger.approve`.
        """
        call, redis = record.call, self._ledger.redis
        if edited is not None and not is_same_json(edited, call.args):
            edit = ArgumentEdit(by=by, at=iso_time(redis_time(redis)), asked=call.args)
            call = call.model_copy(update={"args": edited, "edited": edit})
        self._end(record.id, self._ledger.approve(record.id, call, by).run(redis))

    def _end(self, call_id: str, claim: Claim | None) -> None:
        """Settle the claim of the completion that came first; refuse a late one."""
        if claim is None:
            return
        self._reaper.settle(claim)
        if claim.verdict is not Verdict.COMPLETED:
            raise CallClosedError(f"Call {call_id} has ended: it had expired.")

    def _callback(self, call_id: str, token: str) -> CallbackToken:
        """Check the token. The ledger checks that its run is still the latest."""
        key = self._ledger.keys.call(call_id)
        with self._ledger.redis.pipeline(transaction=False) as pipe:
            pipe.hmget(key, "callback", "token")
            [row] = rows_of(pipe)
        callback, claim = row or (None, None)
        claim_token = claim.decode() if callback is None and claim is not None else ""
        if claim_token:  # the handler still runs
            callback = callback_token(call_id, claim_token).encode()
        given = token.encode("utf-8", "backslashreplace")
        if callback is None or not hmac.compare_digest(callback, given):
            raise CallNotFoundError(f"No call {call_id!r} can be completed with this token.")
        return CallbackToken(token, claim_token)

    def approval_count(self, agents: Iterable[str]) -> int:
        """Return how many calls of ``agents`` wait for an approval, without reading them."""
        with self._ledger.redis.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.zcard(self._ledger.keys.approvals(agent))
            return sum(row or 0 for row in rows_of(pipe))

    def approvals(self, agents: Iterable[str]) -> list[CallRecord]:
        """Return the calls of ``agents`` that wait for an approval, the oldest first."""
        keys = self._ledger.keys
        with self._ledger.redis.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.zrange(keys.approvals(agent), 0, -1)
            ids = [call_id.decode(errors="replace") for row in rows_of(pipe) for call_id in row or ()]
        waiting = [one for one in self._ledger.records(ids) if one is not None and one.awaits == "approval"]
        return sorted(waiting, key=lambda record: record.suspended_at or 0)


def is_same_json(one: object, other: object) -> bool:
    """Return whether two values are the same JSON, whatever the order of members; 1, 1.0 and true differ."""
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
