"""Admission before the claim, for calls with limits that are not claimed on reserve; others cause no trip.

A call that has to wait leaves its worker at once: its message is acknowledged, and the script that admits it
later pushes a new one to the front of its queue. The script that ends a run releases what its call holds, and
the timer (:mod:`goondan_tasks.ledger.timer`) admits those for which time must pass.
"""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

import structlog

from broker_config import serializer
from broker_config.pipelined_writer import PipelinedWriter
from broker_config.scripts import ScriptCall
from goondan_tasks.contract.calls import queue_element
from goondan_tasks.contract.errors import GoondanError
from goondan_tasks.contract.messages import CallLogFields, ToolCall
from goondan_tasks.fleet.pauses import Paused
from goondan_tasks.ledger.claim_request import ClaimRequest, read_call
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import LimitAnswer, Limits, LimitScripts
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.submission import Submission, digest_of

logger = structlog.get_logger(__name__)

#: the verdict on a claim by the answer of the limiter
_VERDICTS = {"late": Verdict.LIMITED, "share": Verdict.SHARED, "conflict": Verdict.CONFLICT}

MakeClaim = Callable[[ClaimRequest], Claim]

#: entered once the messages before have been admitted
MessageTurn = AbstractContextManager[object]


class LimitedTools(Protocol):
    """The tools of a revision of the bundle (:class:`workers.tools.registry.Registry`)."""

    def limits(self, agent: str, name: str, *, in_step: bool = True) -> Limits | None:
        """Return the limits of a tool's calls; ``None`` if there can be none."""


@dataclass(eq=False)
class CallLimiter:
    """Admits calls on behalf of one worker process, those that have waited included."""

    ledger: Ledger
    writer: PipelinedWriter
    #: returns the tools of a revision, those of the active one for ``None``; may raise a GoondanError
    tools_of: Callable[[str | None], LimitedTools]
    #: what is paused, as the heartbeat has read it
    paused: Paused = field(default_factory=Paused, init=False)

    def __post_init__(self) -> None:
        self._limit_scripts = LimitScripts(self.ledger)

    def claim(self, request: ClaimRequest, claim: MakeClaim, turn: MessageTurn) -> Claim:
        """Make a claim if its call is admitted, which is asked in ``turn``; else return its verdict."""
        call, limits = request.call, self._limits_of(request.call)
        is_paused = call.tool_name in self.paused.tools(call.agent_name)
        if not is_paused and (limits is None or (limits.is_empty and not call.idempotency_key)):
            return claim(request)
        return self._admit(request, limits or Limits(), claim, turn, is_paused=is_paused)

    def _limits_of(self, call: ToolCall) -> Limits | None:
        tools, in_step = self.tools_of(call.bundle_ref), call.step_id is not None
        return tools.limits(call.agent_name, call.tool_name, in_step=in_step)

    def is_waited_for(self, call: ToolCall) -> bool:
        """Return whether a call may hold a permit or key that other calls wait for."""
        try:
            limits = self._limits_of(call)
        except GoondanError:  # it was refused because of its revision
            return False
        return limits is not None and not (limits.is_empty and call.idempotency_key is None)

    def begin(self, claim: Claim) -> None:
        """Count the start of a run for its rate, if it has one, since it may take long."""
        limits = self._limits_of(claim.run.call)
        if limits is not None and limits.rate is not None:
            self.writer.send(self._limit_scripts.begin(claim.run.id, claim.token, limits.rate), _ignore)

    def leave_damaged(self, claim: Claim) -> None:
        """Release what a run holds that has ended, and whose record is damaged; else its end does so."""
        call = claim.run.call
        if self.is_waited_for(call) and (limits := self._limits_of(call)) is not None:
            held = limits.for_call(call)
            self.writer.put_off(self._limit_scripts.leave(claim.run.id, claim.token, held), _ignore)

    def admit_claimed(self, claim: Claim) -> Claim:
        """Ask for the idempotencyKey of a claimed call, if it has one; return the claim, or its verdict."""
        call = claim.run.call
        limits = (self._limits_of(call) if claim.verdict is Verdict.RUN else None) or Limits()
        if claim.verdict is not Verdict.RUN or not limits.has_key(call):
            return claim
        answer = self.writer.ask(self._asking(claim.run.id, call, limits, token=claim.token))
        if answer.word == "go":
            return claim
        verdict = Verdict.WAITING if answer.word == "wait" else _VERDICTS[answer.word]
        if verdict is not Verdict.WAITING:
            self._log(claim.run.log_fields, verdict, answer)
        return replace(claim, verdict=verdict, about=answer.about)

    def _asking(
        self,
        call_id: str,
        call: ToolCall,
        limits: Limits,
        *,
        is_paused: bool = False,
        token: str = "",
        is_on_record: bool = True,
    ) -> ScriptCall[LimitAnswer]:
        return self._limit_scripts.admit(
            call_id,
            call,
            limits.for_call(call, is_paused=is_paused),
            message=queue_element(call_id, call, serializer.encode(call.to_wire())),
            run_seconds=limits.run_seconds(call),
            token=token,
            is_on_record=is_on_record,
        )

    def _log(self, fields: Mapping[str, Any], verdict: Verdict, answer: LimitAnswer) -> None:
        logger.info("call.not_admitted", **fields, verdict=str(verdict), about=answer.about)

    def _admit(
        self, request: ClaimRequest, limits: Limits, claim: MakeClaim, turn: MessageTurn, *, is_paused: bool
    ) -> Claim:
        call_id, call = request.call_id, request.call
        asking = partial(self._asking, call_id, limits=limits, is_paused=is_paused)
        script_call = asking(call, is_on_record=False)
        with turn:  # calls wait for a limit in the order of their messages
            while (answer := self.writer.ask(script_call)).word in ("unknown", "approved"):
                if answer.word == "approved":  # a person may have changed the arguments after the message
                    script_call = asking(read_call(call_id, answer.about.encode()) or call)
                elif request.was_stored:
                    return claim(request)  # absent
                else:  # a plain Celery producer queued it
                    self.writer.ask(self.ledger.submit(_submission(request), ""))
        if answer.word == "wait":
            return _waiting(request, answer)
        if answer.word == "go":
            return claim(request)
        verdict = _VERDICTS[answer.word]
        self._log(CallLogFields.of_call(call_id, call, request.worker).known(), verdict, answer)
        made = claim(request)
        return replace(made, verdict=verdict, about=answer.about) if made.verdict is Verdict.RUN else made


def _ignore(_: Any) -> None:
    """Nothing follows from the answer."""


def _submission(request: ClaimRequest) -> Submission:
    call = request.call
    return Submission(request.call_id, call, serializer.encode(call.to_wire()), digest_of(call))


def _waiting(request: ClaimRequest, answer: LimitAnswer) -> Claim:
    claim = request.claim((Verdict.WAITING.encode(), 0, answer.now, answer.now))
    return replace(claim, about=answer.about)
