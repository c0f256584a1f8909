"""The rules of the ledger: what each script makes of the record of one call.

A rule takes the abstract record, the token of the caller and what the script reads from its arguments and the
clock; it returns the script's answer and the record afterwards. The search (``model.py``) explores them.
"""

from dataclasses import dataclass
from typing import NamedTuple

OPEN = ("scheduled", "queued", "running", "pending")
ENDED = ("done", "dead")
#: answers of start, finish and suspend
YES, LOST, CANCELLED = "yes", "lost", "cancelled"


class Record(NamedTuple):
    """The record of one call, the lists that hold its id, and its messages.

    ``due`` is what its place in ``due`` means: ``deadline``, ``time`` (before which it must not run),
    ``lease``, ``over`` (a lease that has ended) or nothing. ``place`` is ``running``, ``pending`` or nothing.
    Of a record that has ended only the status, the result, and the claim of a handler that still runs are
    kept.
    """

    status: str = ""
    token: str | None = None
    attempt: int = 0
    due: str = ""
    place: str = ""
    #: whether a worker has claimed it since it was queued last, and the verdict of that claim
    has_worker: bool = False
    verdict: str = ""
    is_unstarted: bool = False
    is_idempotent: bool = False
    deaths: int = 0
    is_cancelled: bool = False
    #: the token of the one who has completed it
    completion: str | None = None
    is_approval: bool = False
    is_approved: bool = False
    #: whether a person has changed its arguments
    is_edited: bool = False
    is_parked: bool = False
    #: the token that was released or retried last; the one whose run is past its limit, while its worker
    #: cannot end it
    released: str | None = None
    overran: str | None = None
    result: str = ""
    #: in its queue, and in flight
    messages: int = 0
    flying: int = 0


@dataclass(frozen=True, slots=True)
class Rules:
    """The rules; ``without`` names those that are left out, to show what they are for."""

    most: int = 3
    #: what a death during a run counts; one before the run has started counts 1
    full_death: int = 5
    without: frozenset[str] = frozenset()

    def has(self, rule: str) -> bool:
        """Whether a rule is in force."""
        return rule not in self.without

    def accept(self, record: Record, *, is_later: bool = False) -> tuple[str, Record]:
        """``submit.lua``: store and queue a new call, or schedule it."""
        if record.status:
            return "known", record
        if is_later:
            due = "time" if self.has("a scheduled call is due at its time") else ""
            return "new", Record("scheduled", due=due, messages=record.messages, flying=record.flying)
        return "new", Record("queued", due="deadline", messages=record.messages + 1, flying=record.flying)

    def wake(self, record: Record) -> Record:
        """``waking.lua``: queue a scheduled call."""
        messages = record.messages + self.has("waking sends a message")
        return record._replace(status="queued", due="deadline", messages=messages)

    def claim(
        self, record: Record, token: str, *, is_late: bool, idempotent: bool, has_call: bool = False
    ) -> tuple[str, Record]:
        """``claim_call``: claim it for a run, or for the error that is its result."""
        is_pending = record.status == "pending" and self.has("a pending call is not claimed")
        if is_pending or (record.status in ENDED and self.has("a call that has ended is not claimed")):
            return "done", record
        if record.token is not None and record.token == token:
            return record.verdict, record
        if not record.status and not has_call:
            return "absent", record
        if record.status == "running" and self.has("a claimed call is not claimed"):
            return "held", record
        if record.status == "scheduled" and self.has("a scheduled call is not claimed"):
            return "held", record
        verdict = "run"
        if is_late and self.has("a call past its deadline is not run"):
            verdict = "expired"
        elif record.deaths >= self.full_death * self.most:
            verdict = "poisoned"
        return verdict, record._replace(
            status="running", token=token, attempt=record.attempt + (verdict == "run"), due="lease",
            place="running", has_worker=True, verdict=verdict, is_idempotent=idempotent,
            is_unstarted=self.has("a claim is not a start"),
        )  # fmt: skip

    def start(self, record: Record, token: str) -> tuple[str, Record]:
        """``start.lua``: mark the run as started."""
        if record.token != token and self.has("start compares tokens"):
            return LOST, record
        if record.is_cancelled and self.has("start looks for a cancel"):
            return CANCELLED, record
        if record.status in ENDED and self.has("an event that has ended is not started"):
            return LOST, record._replace(due="over")  # the next sweep takes it out of its mailbox
        is_unstarted = record.is_unstarted and not self.has("start leaves a mark")
        return YES, record._replace(is_unstarted=is_unstarted, due="lease")

    def renew(self, record: Record, token: str) -> tuple[str, Record]:
        """``renew.lua``: begin the lease anew."""
        if record.token != token and self.has("renew compares tokens"):
            return LOST, record
        return YES, record._replace(due="lease", overran=None)

    def keep(self, record: Record, *, is_past_limit: bool) -> tuple[str, Record]:
        """``keep_leases.lua``: keep the lease of a started run whose worker's interpreter is held."""
        if record.is_unstarted:
            return "left", record
        if (record.is_cancelled or is_past_limit) and record.status != "done":
            return "over", record._replace(overran=record.token, due="over")
        return "kept", record._replace(due="lease")

    def finish(
        self, record: Record, token: str, result: str, *, is_dead: bool = False, still_runs: bool = False
    ) -> tuple[str, Record]:
        """``finish.lua``, ``finish_event.lua``: store the result; an event may keep its claim."""
        if record.token != token and self.has("finish compares tokens"):
            return LOST, record
        if record.status == "done" and record.token == token:  # its result was stored while its handler ran
            return (YES, record) if still_runs else (LOST, record._replace(token=None, due=""))
        if record.is_cancelled and result != "cancelled" and self.has("finish looks for a cancel"):
            return CANCELLED, record
        ended = Record(
            "dead" if is_dead else "done", result=result, messages=record.messages, flying=record.flying
        )
        if still_runs:
            ended = ended._replace(
                token=token, due="lease", has_worker=True, is_cancelled=record.is_cancelled
            )
        return YES, ended

    def suspend(self, record: Record, token: str, *, is_approval: bool) -> tuple[str, Record]:
        """``suspend.lua``: make it pending."""
        if record.token != token:
            return LOST, record
        if record.is_cancelled:
            return CANCELLED, record
        if record.completion is not None and not is_approval:
            return "completed", record
        pending = record._replace(
            status="pending", token=None, verdict="", is_unstarted=False, is_idempotent=False, deaths=0,
            due="deadline", place="pending",
        )  # fmt: skip
        if is_approval:
            pending = pending._replace(
                is_approval=True,
                completion=None,
                attempt=record.attempt - 1,
                is_idempotent=record.is_idempotent,
            )
        return "pending", pending

    def resolve(
        self, record: Record, token: str, *, is_late: bool, is_decision: bool, is_event: bool = False
    ) -> tuple[str, Record]:
        """``resolve.lua``: complete it, or deny it."""
        if not record.status or is_event:
            return "other" if record.status else "unknown", record
        if record.status in ENDED or record.is_cancelled:
            return "closed", record
        is_first = record.completion is None or not self.has("the first completion counts")
        if not is_first and record.completion != token:
            return "closed", record
        if record.status != "pending":
            has_no_run = record.status == "scheduled" or (record.status == "queued" and record.attempt == 0)
            if is_decision or has_no_run:
                return "other", record
            return "kept", record._replace(completion=token)
        if is_decision != record.is_approval:
            return "other", record
        if is_first and is_late:
            return "expired", record._replace(token=token, due="lease")
        return "taken", record._replace(completion=token, token=token, due="lease")

    def approve(
        self, record: Record, token: str, *, is_late: bool, is_edited: bool = False
    ) -> tuple[str, Record]:
        """``approve.lua``: queue a call that waits for an approval, with other arguments if it is edited."""
        if not record.status:
            return "unknown", record
        is_denied = record.is_approval and record.completion is not None
        if record.status in ENDED or record.is_cancelled or is_denied:
            return "closed", record
        if record.status != "pending" or not record.is_approval:
            return "other", record
        if is_late:
            return "expired", record._replace(token=token, due="lease")
        return "approved", record._replace(
            status="queued", is_approval=False, is_approved=True, token=None, has_worker=False,
            due="deadline", place="", messages=record.messages + 1, is_edited=is_edited,
        )  # fmt: skip

    def release(
        self, record: Record, token: str, *, died: bool, is_untouched: bool = False, has_message: bool = True
    ) -> tuple[str, Record]:
        """``release.lua``: queue it again."""
        if record.released == token and record.status == "queued":
            return YES, record
        is_ours = record.token == token or not self.has("release compares tokens")
        if not is_ours or record.is_cancelled or record.status != "running":
            return LOST, record
        is_unstarted = record.is_unstarted or is_untouched
        if not (is_unstarted or record.is_idempotent) and self.has("release looks for the mark"):
            return LOST, record
        deaths = record.deaths + (0 if not died else 1 if is_unstarted else self.full_death)
        messages = record.messages + (has_message and self.has("release sends a message"))
        return YES, record._replace(
            status="queued", token=None, released=token, verdict="", has_worker=False, is_unstarted=False,
            deaths=deaths, attempt=record.attempt - (is_unstarted and not died), due="deadline", place="",
            messages=messages,
        )  # fmt: skip

    def retry(self, record: Record, token: str, *, is_late: bool) -> tuple[str, Record]:
        """``retry.lua``: schedule another run; ``is_late``: its time would come after the deadline."""
        if record.released == token:
            return YES, record
        if record.token != token or record.is_cancelled or is_late or record.status in ENDED:
            return LOST, record
        token_left = None if self.has("a retry gives up the claim") else token
        return YES, record._replace(
            status="scheduled", token=token_left, released=token, verdict="", has_worker=False,
            is_unstarted=False, completion=None, place="",
            due="time" if self.has("a retry is due at its time") else "",
        )  # fmt: skip

    def sweep(
        self, record: Record, token: str, *, is_event: bool = False, is_late: bool = False
    ) -> tuple[str, Record]:
        """``sweep.lua``: take a call that is due; no verdict if there is nothing to decide.

        A scheduled call is queued, unless it ``is_late``: past its deadline, too. An event that has overrun
        keeps its claim: its handler still runs.
        """
        is_unfinished = record.status == "done" and record.token is not None
        if record.status not in OPEN and not is_unfinished:
            return "", record._replace(due="")
        if record.status == "scheduled" and not is_late:
            return "", self.wake(record)
        is_held = _is_held(record)
        if is_held and is_event:
            token = record.token or token
        is_waiting = record.status in {"scheduled", "queued"}
        taken = record._replace(
            status="running" if is_waiting else record.status, token=token, due="lease",
            overran=token if is_held else record.overran,
        )  # fmt: skip
        return self._verdict(record), taken

    def _verdict(self, record: Record) -> str:
        is_started = not record.is_unstarted
        if record.is_cancelled:
            return "cancelled"
        if record.status == "pending":
            if record.completion is not None:
                return "completed"
            return "unapproved" if record.is_approval else "unresolved"
        if record.status in {"scheduled", "queued"} or not record.has_worker:
            return "expired"
        verdict = "requeue"
        if _is_held(record):
            verdict = "overran"
        elif is_started and not record.is_idempotent and self.has("sweep looks for the mark"):
            verdict = "unknown"
        elif record.deaths + (self.full_death if is_started else 1) >= self.full_death * self.most:
            verdict = "poisoned"
        if verdict != "requeue" and record.completion is not None:
            return "completed"
        return verdict

    def cancel(self, record: Record, token: str) -> tuple[str, Record]:
        """``cancel.lua``: mark it, and take it if no worker runs it."""
        if not record.status:
            return "unknown", record
        is_repeated = record.is_cancelled and record.token == token
        if record.is_cancelled and not is_repeated:
            return "marked", record
        is_completed = record.status == "pending" and record.completion is not None
        if record.status in ENDED or is_completed:
            return "closed", record
        if record.status == "running" and not is_repeated:
            return "marked", record._replace(is_cancelled=True)
        return "taken", record._replace(is_cancelled=True, status="running", token=token, due="lease")


def _is_held(record: Record) -> bool:
    """Whether it is past its limit, or cancelled, and runs in a worker that cannot end it."""
    has_overrun = record.overran is not None and record.overran == record.token
    return record.status == "running" and has_overrun and not record.is_unstarted
