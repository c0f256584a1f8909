"""Admission before the claim, for calls with limits or an idempotencyKey; others cause no trip to Redis.

A call that has to wait leaves its worker at once: its message is acknowledged, and the script that admits it
later pushes a new one to the front of its queue.
"""

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field, replace
from time import monotonic
from typing import Any

import structlog

from broker_config import serializer
from broker_config.pipelined_writer import PipelinedWriter
from broker_config.scripts import ScriptCall
from goondan_tasks.calls import Dispatch
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.ledger.claim_request import ClaimRequest
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.submission import Submission, digest_of
from goondan_tasks.limits.limiter import LimitAnswer, Limits, LimitScripts
from goondan_tasks.messages import CallLogFields, ToolCall
from goondan_tasks.pauses import Paused
from workers.concurrency.watchdog import Watchdog
from workers.revisions.revisions import Revisions

logger = structlog.get_logger(__name__)

#: how long to wait before a broker that did not take a message is tried again
SEND_AGAIN_SECONDS = 5.0

#: the verdict on a claim by the answer of the limiter
_VERDICTS = {"late": Verdict.LIMITED, "share": Verdict.SHARED, "conflict": Verdict.CONFLICT}

MakeClaim = Callable[[ClaimRequest], Claim]

#: entered once the messages before have been admitted
MessageTurn = AbstractContextManager[object]


@dataclass(eq=False)
class CallLimiter:
    """Admits calls on behalf of one worker process, those that have waited included."""

    ledger: Ledger
    writer: PipelinedWriter
    dispatch: Dispatch
    revisions: Revisions
    watchdog: Watchdog
    #: what is paused, as the heartbeat has read it
    paused: Paused = field(default_factory=Paused, init=False)
    #: token of the claim -> the call's limits, and the ms of admission
    _admitted: dict[str, tuple[str, int]] = field(default_factory=dict, init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    #: when the next look is due, if one is scheduled
    _look_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self._limit_scripts = LimitScripts(self.ledger.settings)

    def claim(self, request: ClaimRequest, claim: MakeClaim, turn: MessageTurn) -> Claim:
        """Make a claim if its call is admitted, which is asked in ``turn``; else return its verdict."""
        call = request.call
        registry, in_step = self.revisions.registry(call.bundle_ref), call.step_id is not None
        limits = registry.limits(call.agent_name, call.tool_name, in_step=in_step)
        is_paused = call.tool_name in self.paused.tools(call.agent_name)
        if not is_paused and (limits is None or (limits.is_empty and not call.idempotency_key)):
            return claim(request)
        return self._admit(request, limits or Limits(), claim, turn, is_paused=is_paused)

    def has_admitted(self, claim: Claim) -> bool:
        """Return whether the call holds a permit or key that other calls may wait for."""
        return claim.token in self._admitted

    def begin(self, claim: Claim) -> None:
        """Count the start of a call's handler for its rate, if it has one."""
        call_limits, admitted_at = self._admitted.get(claim.token, ("", 0))
        if "rate " in call_limits:
            script_call = self._limit_scripts.begin(claim.run.id, call_limits, admitted_at)
            self.writer.send(script_call, self._on_answer)

    def leave(self, claim: Claim, *, pauses: bool = False) -> None:
        """Give back the permits of a call, if any, and admit the next; ``pauses`` if it will run again."""
        self._leave(claim.run.id, claim.token, pauses=pauses)

    def _leave(self, call_id: str, token: str, *, pauses: bool = False) -> None:
        admitted = self._admitted.pop(token, None)
        if admitted is not None:
            script_call = self._limit_scripts.leave(call_id, *admitted, pauses=pauses)
            self.writer.send(script_call, self._on_answer)

    def look(self) -> None:
        """Admit the calls whose time has come; every worker does this periodically, as a fallback."""
        self.writer.send(self._limit_scripts.look(), self._on_answer)

    def _admit(
        self, request: ClaimRequest, limits: Limits, claim: MakeClaim, turn: MessageTurn, *, is_paused: bool
    ) -> Claim:
        call_id, call = request.call_id, request.call
        call_limits = limits.for_call(call, is_paused=is_paused)
        script_call = self._limit_scripts.admit(
            call_id,
            call,
            call_limits,
            message=self.dispatch.inline(call_id, call, serializer.encode(call.to_wire())),
            run_seconds=limits.run_seconds(call),
        )
        with turn:  # calls wait for a limit in the order of their messages
            while (answer := self._asked(script_call)).word == "unknown":
                if request.was_stored:
                    return claim(request)  # absent
                # a plain Celery producer queued it
                self.writer.ask(self.ledger.submit(_submission(request), ""))
        if answer.word == "wait":
            return _waiting(request, answer)
        if answer.word == "go":
            self._admitted[request.token] = call_limits, answer.now
            with ExitStack() as on_error:
                on_error.callback(self._leave, call_id, request.token)
                made = claim(request)
                on_error.pop_all()
            return made
        verdict = _VERDICTS[answer.word]
        fields = CallLogFields.of_call(call_id, call, request.worker).known()
        logger.info("call.not_admitted", **fields, verdict=str(verdict), about=answer.about)
        made = claim(request)
        return replace(made, verdict=verdict, about=answer.about) if made.verdict is Verdict.RUN else made

    def _asked(self, script_call: ScriptCall[Any]) -> LimitAnswer:
        answer = LimitAnswer.of(self.writer.ask(script_call))
        self._follow_up(answer)
        return answer

    def _on_answer(self, raw: Any) -> None:
        self._follow_up(LimitAnswer.of(raw))

    def _follow_up(self, answer: LimitAnswer) -> None:
        """Send the messages that the answer contains, and schedule the next look."""
        if answer.unsent:
            self.send_later(answer.unsent)
        if answer.look_in is not None:
            self._look_in(answer.look_in / 1000)

    def _look_in(self, seconds: float) -> None:
        """Look in ``seconds``, unless an earlier look is scheduled."""
        look_at = monotonic() + seconds
        with self._lock:
            if self._look_at is not None and self._look_at <= look_at:
                return
            self._look_at = look_at
        self.watchdog.watch(seconds, self._on_alarm)

    def _on_alarm(self) -> None:
        with self._lock:
            self._look_at = None
        self.look()

    def send_later(self, unsent: Mapping[str, bytes], seconds: float = 0) -> None:
        """Send messages through a broker other than Redis, on a separate thread, since this may block."""
        timer = threading.Timer(seconds, self._send, [unsent])
        timer.daemon = True
        timer.start()

    def _send(self, unsent: Mapping[str, bytes]) -> None:
        rest = dict(unsent)
        try:
            for call_id, call in unsent.items():
                self.dispatch.send(call_id, ToolCall.from_wire(serializer.decode(call)))
                del rest[call_id]
        except BrokerUnreachableError as error:
            logger.warning("call.not_sent", calls=list(rest), reason=str(error))
            self.send_later(rest, SEND_AGAIN_SECONDS)


def _submission(request: ClaimRequest) -> Submission:
    call = request.call
    return Submission(request.call_id, call, serializer.encode(call.to_wire()), digest_of(call))


def _waiting(request: ClaimRequest, answer: LimitAnswer) -> Claim:
    claim = request.claim((Verdict.WAITING.encode(), 0, answer.now, answer.now))
    return replace(claim, about=answer.about)
