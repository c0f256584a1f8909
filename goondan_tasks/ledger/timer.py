"""The timer in Redis: ``due`` has the times of calls that are to come, ``limits`` those of wait queues."""

from dataclasses import replace
from importlib.resources import files
from typing import NamedTuple

from broker_config.confirmation import Confirmation
from broker_config.scripts import Script, ScriptCall
from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError
from goondan_tasks.ledger.ledger import Ledger

#: how often a worker looks for what is due, besides at the time of the next one
WAKE_SECONDS = 0.5

#: how many calls one script queues at their time, which takes a few ms
WAKE_BATCH = 200


class Woken(NamedTuple):
    """What has been queued."""

    queued: int
    #: how many of those due it has passed over; ``None`` if no scheduled call is left among them
    passed: int | None
    #: in how many seconds to look again
    seconds: float


class Timer:
    """Queues the scheduled calls of one ledger, and admits those that wait for limits."""

    def __init__(self, ledger: Ledger) -> None:
        self._keys, self._lease_ms = ledger.keys, round(ledger.settings.lease_seconds * 1000)
        self._limit_terms = ledger.limit_terms
        folder = files("goondan_tasks.ledger") / "scripts"
        made_of = ("ttl", "numbers", "wrong_type", "mailboxes", "scheduled", "waking")
        confirmed = Confirmation.of(ledger.settings, is_required=False)
        self._wake = Script.read(folder, *made_of, "permits", "wake")
        self._run_now = replace(Script.read(folder, *made_of, "run_now"), confirmation=confirmed)

    def wake(self, passed: int = 0) -> ScriptCall[Woken]:
        """Queue the calls whose time has come, ``WAKE_BATCH`` at most, and check due wait queues of limits.

        ``passed`` is that of the answer before, to go on behind what is due and not scheduled.
        """

        def parse(answer: list[int]) -> Woken:
            queued, left, ms = answer
            return Woken(queued, None if left < 0 else left, ms / 1000)

        ahead = round(WAKE_SECONDS * 1000)
        arguments = [self._keys.prefix, WAKE_BATCH, self._lease_ms, ahead, passed, self._limit_terms]
        return ScriptCall(self._wake, [self._keys.due, self._keys.limits], arguments, parse)

    def run_now(self, call_id: str) -> ScriptCall[None]:
        """Queue a scheduled call at once; one whose time has come stays as it is.

        Reading the answer raises CallNotFoundError (the call is unknown, expired or unreadable) or
        CallClosedError (it has its final result, or is cancelled).
        """

        def parse(answer: bytes) -> None:
            if answer == b"closed":
                raise CallClosedError(f"Call {call_id} has its final result, or is cancelled.")
            if answer == b"unknown":
                raise CallNotFoundError(
                    f"No call {call_id!r}: it is unknown, expired, damaged or of a newer version."
                )

        keys = [self._keys.call(call_id), self._keys.due]
        return ScriptCall(self._run_now, keys, [self._keys.prefix, call_id], parse)
