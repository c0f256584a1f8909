"""A client without a broker: it answers what a test has put into it."""

import base64
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Self, Unpack, cast

from broker_config.settings import Settings
from goondan_tasks.authoring.tool_api import SendResult
from goondan_tasks.client.bulk import Bounds, BulkAct, BulkResult, BulkRun
from goondan_tasks.client.pending_call import CallOutput
from goondan_tasks.client.status import AgentStatus, QueueStatus
from goondan_tasks.contract.calls import CallDraft
from goondan_tasks.contract.errors import (
    AgentNotFoundError,
    CallClosedError,
    CallNotFoundError,
    CallNotPendingError,
    InstanceNotFoundError,
    NotReplayableError,
    WaitTimeout,
)
from goondan_tasks.contract.messages import JsonObject, ToolCall, ToolCallResult
from goondan_tasks.fleet.agent_registry import AgentRecord, WorkerRecord
from goondan_tasks.fleet.audit import AuditEntry
from goondan_tasks.fleet.call_counts import TotalCounts
from goondan_tasks.fleet.crash_backoff import CrashBackoff
from goondan_tasks.fleet.pauses import Pause
from goondan_tasks.fleet.usage import HandoffCount, Handoffs, Usage
from goondan_tasks.history.failures import FailureGroup, Failures
from goondan_tasks.history.trace import CallStory, Trace, TraceSummary, story_of
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import InstanceInfo
from goondan_tasks.ledger.call_filter import CallFilter, is_wanted
from goondan_tasks.ledger.call_search import CallPage
from goondan_tasks.ledger.record import CallRecord

CALL_ID = "0b7c7a1e-0000-5000-8000-000000000001"

#: Redis time, in ms
SINCE = "2026-02-01T09:00:00.000Z"
NOW = 1_790_000_000_000

META = {
    "id": CALL_ID,
    "agentName": "coder",
    "instanceKey": "default",
    "turnId": "turn-1",
    "traceId": "0" * 32,
    "spanId": "0" * 16,
    "correlationId": "c-1",
    "worker": "coder-7@host",
    "attempt": 1,
    "durationMs": 12.4,
}


def result(status: str = "ok", **fields: Any) -> ToolCallResult:
    """Make the result of a call of ``bash__exec``."""
    return ToolCallResult.from_wire(
        {"toolCallId": "call_1", "toolName": "bash__exec", "status": status, "meta": META, **fields}
    )


def record(status: str = "queued", **fields: Any) -> CallRecord:
    """Make the record of a call of ``bash__exec``."""
    call = {name: META[name] for name in ("agentName", "turnId", "traceId", "spanId", "correlationId")}
    known: dict[str, Any] = {
        "id": CALL_ID,
        "status": status,
        "call": ToolCall.from_wire({**call, "toolCallId": "call_1", "toolName": "bash__exec"}),
        "queued_at": NOW,
        "claimed_at": None,
        "finished_at": None,
        "attempt": 0,
        "worker": None,
        "outcome": None,
        "has_started": False,
        "is_cancelled": False,
        "progress": None,
    }
    return CallRecord(**{**known, **fields})


def worker(name: str = "coder-7@host", agents: tuple[str, ...] = ("coder",), **fields: Any) -> WorkerRecord:
    """Make the record of a live worker."""
    known: dict[str, Any] = {
        "pid": 7,
        "host": "host",
        "concurrency": 8,
        "root_id": "root",
        "started_at": "2026-02-01T10:00:00.000Z",
    }
    return WorkerRecord(name=name, agents=agents, **{**known, **fields})


def agent(name: str, *tools: str) -> AgentRecord:
    """Make the record of an agent with tools of these names."""
    catalog = [{"name": tool, "source": {"type": "config", "name": tool.split("__")[0]}} for tool in tools]
    return AgentRecord(name=name, swarm="coding", workspace="shop", catalog=tuple(catalog))


def queue_status(agent: str, **figures: Any) -> QueueStatus:
    """Make the figures of an agent's queues."""
    known = {"backlog": 0, "running": 0, "workers": 0}
    return QueueStatus(agent=agent, queue=f"agent.{agent}", **{**known, **figures})


class FakePendingCall:
    """A call whose result is there after ``waits`` attempts to get it."""

    def __init__(self, answer: ToolCallResult | None, waits: int) -> None:
        self.id = CALL_ID
        self._answer = answer
        self._waits = waits

    def result(self, timeout: float) -> ToolCallResult:
        if self._answer is None or self._waits > 0:
            self._waits -= 1
            raise WaitTimeout(self.id, timeout)
        return self._answer

    def cancel(self) -> None:
        raise CallClosedError(f"Call {self.id} has its final result.")


class FakeClient:
    """Holds what commands ask for, and what they submitted."""

    def __init__(self) -> None:
        self.answer: ToolCallResult | None = result(output={"exitCode": 0})
        self.waits = 0
        self.records = [record()]
        self.submitted: list[JsonObject] = []
        self.agent_records = {
            record.name: record for record in (agent("coder", "bash__exec"), agent("planner"))
        }
        self.worker_records = [worker()]
        self.queue_rows: list[QueueStatus] = []
        self.figures: dict[str, QueueStatus] = {}
        self.backoffs: dict[str, CrashBackoff] = {}
        self.is_orchestrated = False
        self.wanted: JsonObject = {}
        self.used: list[Usage] = []
        self.passed: list[HandoffCount] = []
        self.file = b""
        self.instance_infos: list[InstanceInfo] = []
        self.removals: list[InstanceRemoval] = []
        self.asked: list[JsonObject] = []
        self.completed: list[JsonObject] = []
        self.known_traces: dict[str, Trace] = {}
        self.summaries: list[TraceSummary] = []
        self.settings: Settings | None = None
        self.cancelled: list[str] = []
        self.pauses: list[Pause] = []
        self.ended_meanwhile: set[str] = set()
        #: letters with which nothing can be done
        self.refused: set[str] = set()
        self.groups: tuple[FailureGroup, ...] = ()
        self.cursor: str | None = None

    def connected(self, settings: Settings) -> Self:
        """Note what a real client would have been made with."""
        self.settings = settings
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, agent: str, tool: str, args: Any, **fields: Any) -> FakePendingCall:
        if agent not in self.agent_records:
            raise AgentNotFoundError(f"No agent {agent!r}.")
        self.submitted.append({"agent": agent, "tool": tool, "args": args, **fields})
        return FakePendingCall(self.answer, self.waits)

    def ask(self, agent: str, input: Any, **fields: Any) -> tuple[ToolCall, FakePendingCall]:
        self.submitted.append({"agent": agent, "input": input, **fields})
        return self.records[0].call, FakePendingCall(self.answer, self.waits)

    def patience(self, call: ToolCall, timeout: float) -> float:
        return timeout

    def call_off(self, pending: FakePendingCall) -> None: ...

    def send(self, agent: str, input: Any, **fields: Any) -> SendResult:
        self.submitted.append({"agent": agent, "input": input, **fields})
        return SendResult(id=CALL_ID, event_id="e-1", target=agent, accepted=True, correlation_id=CALL_ID)

    def pending(self, call_id: str) -> FakePendingCall:
        self.record(call_id)
        return FakePendingCall(self.answer, self.waits)

    def record(self, call_id: str) -> CallRecord:
        for found in self.records:
            if found.id == call_id:
                return found
        raise CallNotFoundError(f"No call {call_id!r}.")

    def run_now(self, call_id: str) -> None:
        found = self.record(call_id)
        queued = dataclasses.replace(found, status="queued", not_before=None)
        self.records = [queued if one is found else one for one in self.records]

    def cancel(self, call_id: str) -> None:
        found = self.record(call_id)
        if found.status == "done":
            raise CallClosedError(f"Call {call_id} has its final result.")
        status = "done" if found.status == "queued" else found.status
        ended = dataclasses.replace(found, status=status, is_cancelled=True)
        self.records = [ended if one is found else one for one in self.records]

    def resolve(self, call_id: str, output: Any) -> None:
        self._complete(call_id, {"output": output})

    def fail(self, call_id: str, error: str) -> None:
        self._complete(call_id, {"error": error})

    def approvals(self, agent: str | None, **wanted: Unpack[CallFilter]) -> list[CallRecord]:
        found = [one for one in self.calls(agent, 1000) if one.awaits == "approval"]
        return [one for one in found if is_wanted(one, wanted)]

    def approve(self, call_id: str, by: str, args: JsonObject | None = None) -> None:
        self._complete(call_id, {"by": by} if args is None else {"by": by, "args": args})

    def approve_many(self, call_ids: list[str], by: str) -> list[str]:
        for call_id in call_ids:
            self.approve(call_id, by)
        return call_ids

    def deny_many(self, call_ids: list[str], reason: str, by: str) -> list[str]:
        for call_id in call_ids:
            self.deny(call_id, reason, by)
        return call_ids

    def deny(self, call_id: str, reason: str, by: str) -> None:
        self._complete(call_id, {"reason": reason, "by": by})

    def _complete(self, call_id: str, how: JsonObject) -> None:
        found = self.record(call_id)
        if found.status == "done":
            raise CallClosedError(f"Call {call_id} has its final result.")
        if found.status == "queued":
            raise CallNotPendingError(f"Call {call_id} has not been run.")
        self.completed.append({"id": call_id, **how})
        ended = dataclasses.replace(found, status="done") if found.status == "pending" else found
        self.records = [ended if one is found else one for one in self.records]

    def ids_beginning_with(self, text: str) -> list[str]:
        return [one.id for one in self.records if one.id.startswith(text)]

    def calls(self, agent: str | None, limit: int, **wanted: Unpack[CallFilter]) -> list[CallRecord]:
        self.wanted = {name: wanted.get(name) for name in ("older_than", "newer_than")}
        found = [one for one in self.records if agent in {None, one.call.agent_name}]
        return [one for one in found if is_wanted(one, wanted)][:limit]

    def call_page(
        self, agent: str | None, limit: int, *, cursor: str | None, **wanted: Unpack[CallFilter]
    ) -> CallPage:
        self.cursor = cursor
        found = self.calls(agent, limit, **wanted)
        following = "1~more~coder" if len(found) == limit else None
        return CallPage(tuple(found), following, len(found), len(self.records))

    def cancel_all(
        self,
        agent: str | None,
        *,
        dry_run: bool,
        watch: Callable[[CallRecord], object],
        **wanted: Unpack[CallFilter],
    ) -> list[str]:
        assert dry_run
        found = [one for one in self.calls(agent, 1000, **wanted) if one.status != "done"]
        if agent is not None and not found:
            self.catalog(agent)
        for one in found:
            watch(one)
        return [one.id for one in found]

    def cancel_many(self, call_ids: list[str], *, watch: Callable[[int], object]) -> list[str]:
        self.cancelled = call_ids
        watch(len(call_ids))
        return [one for one in call_ids if one not in self.ended_meanwhile]

    def describe(self, call_id: str) -> CallStory:
        return story_of(self.record(call_id), NOW)

    def output(self, call_id: str) -> CallOutput:
        self.record(call_id)
        assert self.answer is not None
        return CallOutput(self.answer, cast(Any, self))

    def submit_drafts(self, drafts: Sequence[CallDraft]) -> list[FakePendingCall]:
        """Answer calls that read a file as a worker does that sends ten bytes at once."""
        starts = [draft.call.args["offset"] for draft in drafts]
        parts = [base64.b64encode(self.file[start : start + 10]).decode() for start in starts]
        size = len(self.file)
        return [FakePendingCall(result(output={"data": part, "size": size}), self.waits) for part in parts]

    def forget(self, call_id: str, agent: str) -> None: ...

    def dead_letters(self, agent: str | None, limit: int | None, **wanted: Any) -> list[CallRecord]:
        letters = [found for found in self.calls(agent, 1000) if found.status == "dead"][:limit]
        self.wanted = wanted
        return letters

    def dead_letter(self, call_id: str) -> CallRecord:
        return self.record(call_id)

    def replay(self, call_id: str, *, again: bool) -> FakePendingCall:
        found = self.record(call_id)
        if found.replayed_by and not again:
            raise NotReplayableError(f"Call {call_id} was replayed before.")
        return FakePendingCall(None, 0)

    def act_on_all(
        self,
        act: BulkAct,
        agent: str | None,
        *,
        between: tuple[int, int] = (0, NOW),
        limit: int | None = None,
        dry_run: bool = False,
        watch: Callable[[int], object] | None = None,
        **wanted: Any,
    ) -> BulkResult:
        def do(batch: Sequence[CallRecord]) -> dict[str, str]:
            if set(self.refused) & {one.id for one in batch}:
                raise AgentNotFoundError("No agent 'gone'.")
            if act == "drop":
                self.records = [one for one in self.records if one not in batch]
            return {one.id: CALL_ID for one in batch}

        run, letters = BulkRun(act, do, between, watch), self.dead_letters(agent, None, **wanted)
        return run.count(letters) if dry_run else run.carry_out(iter(letters), Bounds(limit))

    def audit(self, limit: int, **_: Any) -> list[AuditEntry]:
        return []

    def failures(self, agent: str | None, **ages: Any) -> Failures:
        self.wanted = ages
        return Failures(groups=self.groups, counted=2_000, total=3_000)

    def drop(self, call_id: str) -> None:
        self.records.remove(self.record(call_id))

    def instances(self, agent: str | None, instance_key: str | None = None) -> list[InstanceInfo]:
        found = [info for info in self.instance_infos if agent in {None, info.target}]
        return [info for info in found if instance_key in {None, info.instance_key}]

    def delete_instance(self, key: str, agent: str | None, *, dry_run: bool = False) -> list[InstanceRemoval]:
        self.asked.append({"key": key, "agent": agent, "dry_run": dry_run})
        if not self.removals:
            raise InstanceNotFoundError(f"No instance {key!r}.")
        return self.removals

    def collect_garbage(
        self,
        older_than_seconds: float,
        *,
        unlisted: bool,
        dry_run: bool = False,
        watch: Callable[[InstanceRemoval], object] = lambda removal: None,
    ) -> list[InstanceRemoval]:
        self.asked.append({"seconds": older_than_seconds, "unlisted": unlisted, "dry_run": dry_run})
        for removal in self.removals:
            watch(removal)
        return self.removals

    def agents(self) -> dict[str, AgentRecord]:
        return self.agent_records

    def catalog(self, agent: str) -> tuple[JsonObject, ...]:
        if agent not in self.agent_records:
            raise AgentNotFoundError(f"No agent {agent!r}.")
        return self.agent_records[agent].catalog

    def pause(self, agent: str, tool: str | None, reason: str, by: str) -> Pause:
        self.catalog(agent)
        self.pauses.append(Pause(agent=agent, tool=tool, reason=reason, by=by))
        return self.pauses[-1]

    def resume(self, agent: str, tool: str | None) -> bool:
        self.catalog(agent)
        left = [one for one in self.pauses if (one.agent, one.tool) != (agent, tool)]
        was_paused, self.pauses = left != self.pauses, left
        return was_paused

    def paused(self) -> list[Pause]:
        return self.pauses

    def workers(self) -> list[WorkerRecord]:
        return self.worker_records

    def queues(self) -> list[QueueStatus]:
        return self.queue_rows

    def trace(self, name: str) -> Trace:
        if name not in self.known_traces:
            raise CallNotFoundError(f"No trace {name!r}.")
        return self.known_traces[name]

    def traces(
        self, limit: int, *, older_than: float | None = None, newer_than: float | None = None
    ) -> list[TraceSummary]:
        self.wanted = {"older_than": older_than, "newer_than": newer_than}
        return self.summaries[:limit]

    def call_counts(self) -> TotalCounts:
        return TotalCounts([], {}, {})

    def usage(self, days: int, by: str) -> list[Usage]:
        self.wanted = {"days": days, "by": by}
        return self.used

    def handoffs(self, hours: int) -> Handoffs:
        self.wanted = {"hours": hours}
        return Handoffs(since=SINCE, seconds=1, edges=tuple(self.passed))

    def agent_statuses(self) -> list[AgentStatus]:
        return [
            AgentStatus(
                record=record,
                workers=[worker for worker in self.worker_records if name in worker.agents],
                queue=self.figures.get(name, queue_status(name)),
                backoff=self.backoffs.get(name, CrashBackoff()),
                is_orchestrated=self.is_orchestrated,
                now=NOW,
            )
            for name, record in self.agent_records.items()
        ]
