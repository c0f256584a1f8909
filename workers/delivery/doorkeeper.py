"""The door before the claim: calls with limits, or an idempotencyKey, ask to be admitted.

A call without either passes by; nothing is sent for it. One that has to wait leaves its worker at once:
its message is acknowledged, and whoever lets it in sends a new one to the front of its queue.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from time import monotonic
from typing import Any

import structlog

from broker_config import serializer
from broker_config.courier import Courier
from goondan_tasks.dispatch import Dispatch
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.submission import Submission, digest_of
from goondan_tasks.limits.errands import Answer, LimitErrands
from goondan_tasks.limits.gates import Limits
from goondan_tasks.messages import ToolCall
from workers.concurrency.watchdog import Watchdog
from workers.revisions.revisions import Revisions

logger = structlog.get_logger(__name__)

#: how long to wait before a broker that did not take a message is tried again
SEND_AGAIN_SECONDS = 5.0

#: what becomes of a claim after such an answer
_VERDICTS = {"late": Verdict.LIMITED, "share": Verdict.SHARED, "conflict": Verdict.CONFLICT}

Ask = Callable[[ClaimRequest, Callable[[Claim], None]], None]


class Doorkeeper:
    """Admits calls on behalf of one worker process, and lets in those whose time has come."""

    def __init__(
        self,
        ledger: Ledger,
        courier: Courier,
        dispatch: Dispatch,
        *,
        revisions: Revisions,
        watchdog: Watchdog,
    ) -> None:
        self._ledger = ledger
        self._courier = courier
        self._dispatch = dispatch
        self._revisions = revisions
        self._watchdog = watchdog
        self._errands = LimitErrands(ledger.settings)
        #: token of the claim -> gates, and the ms of admission
        self._admitted: dict[str, tuple[str, int]] = {}
        self._lock = threading.Lock()
        self._look_at: float | None = None

    def claim(self, request: ClaimRequest, ask: Ask, then: Callable[[Claim], None]) -> None:
        """Claim a call by ``ask``, once it is admitted; ``then`` gets the claim, or what came of it.

        As with ``ask``, the courier is flushed by whoever calls this.
        """
        call = request.call
        registry, in_step = self._revisions.registry(call.bundle_ref), call.step_id is not None
        limits = registry.limits(call.agent_name, call.tool_name, in_step=in_step)
        if limits is None or (limits.is_empty and not call.idempotency_key):
            ask(request, then)
        else:
            self._admit(request, limits, ask, then)

    def has_admitted(self, claim: Claim) -> bool:
        """Say whether the call holds something that others may wait for."""
        return claim.token in self._admitted

    def leave(self, claim: Claim, *, pauses: bool = False) -> None:
        """Give back what the call holds, if anything, and let the next ones in; it may pause before a run."""
        admitted = self._admitted.pop(claim.token, None)
        if admitted is not None:
            self._courier.send(self._errands.leave(claim.run.id, *admitted, pauses=pauses), self._on_answer)

    def look(self) -> None:
        """Let in the calls whose time has come; every worker does this now and then, as a net."""
        self._courier.send(self._errands.look(), self._on_answer)

    def _admit(self, request: ClaimRequest, limits: Limits, ask: Ask, then: Callable[[Claim], None]) -> None:
        call_id, call = request.call_id, request.call
        gates = limits.gates(call)
        errand = self._errands.admit(
            call_id,
            call,
            gates,
            message=self._dispatch.inline(call_id, call, serializer.encode(call.to_wire())),
            run_seconds=limits.run_seconds(call),
        )

        def on_answer(raw: Any) -> None:
            answer = Answer.of(raw)
            self._heed(answer)
            if answer.word == "unknown":  # plain Celery queued it
                self._courier.send(self._ledger.errands.submit(_submission(request), ""), lambda _: None)
                self._courier.send(errand, on_answer)
            elif answer.word == "wait":
                then(_waiting(request, answer))
            elif answer.word == "go":
                self._admitted[request.token] = gates, answer.now
                ask(request, then)
                self._courier.flush()
            else:
                verdict = _VERDICTS[answer.word]
                logger.info("call.not_admitted", call_id=call_id, verdict=str(verdict), about=answer.about)
                ask(request, lambda claim: then(_judged(claim, verdict, answer.about)))
                self._courier.flush()

        self._courier.put_off(errand, on_answer, is_urgent=True)

    def _on_answer(self, raw: Any) -> None:
        self._heed(Answer.of(raw))

    def _heed(self, answer: Answer) -> None:
        """Do what every answer asks for."""
        if answer.unsent:
            self.send_later(answer.unsent)
        if answer.look_in is not None:
            self._look_in(answer.look_in / 1000)

    def _look_in(self, seconds: float) -> None:
        """Look again in ``seconds``, unless that is arranged anyway."""
        look_at = monotonic() + seconds
        with self._lock:
            if self._look_at is not None and self._look_at <= look_at:
                return
            self._look_at = look_at
        self._watchdog.watch(seconds, self._on_alarm)

    def _on_alarm(self) -> None:
        with self._lock:
            self._look_at = None
        self.look()

    def send_later(self, unsent: Mapping[str, bytes], seconds: float = 0) -> None:
        """Send messages by a broker beside Redis, on a thread of their own: this one must not wait."""
        timer = threading.Timer(seconds, self._send, [unsent])
        timer.daemon = True
        timer.start()

    def _send(self, unsent: Mapping[str, bytes]) -> None:
        rest = dict(unsent)
        try:
            for call_id, call in unsent.items():
                self._dispatch.send(call_id, ToolCall.from_wire(serializer.decode(call)))
                del rest[call_id]
        except BrokerUnreachableError as error:
            logger.warning("call.not_sent", calls=list(rest), reason=str(error))
            self.send_later(rest, SEND_AGAIN_SECONDS)


def _submission(request: ClaimRequest) -> Submission:
    call = request.call
    return Submission(request.call_id, call, serializer.encode(call.to_wire()), digest_of(call))


def _waiting(request: ClaimRequest, answer: Answer) -> Claim:
    claim = request.claim((Verdict.WAITING.encode(), 0, answer.now, answer.now))
    return replace(claim, about=answer.about)


def _judged(claim: Claim, verdict: Verdict, about: str) -> Claim:
    return replace(claim, verdict=verdict, about=about) if claim.verdict is Verdict.RUN else claim
