"""A history of calls as a busy day leaves it, written into a private Redis by the ledger's own scripts."""

import itertools
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from broker_config import serializer
from broker_config.connections import redis_time
from broker_config.scripts import run_script_calls
from goondan_tasks.contract.calls import identity_of, new_call
from goondan_tasks.contract.messages import ToolCall, ToolCallError, iso_time
from goondan_tasks.contract.output import Pending
from goondan_tasks.fleet.agent_registry import AgentRecord, AgentRegistry
from goondan_tasks.fleet.usage import DayHandoffs, DayUsage, EdgeRow, UsageRow, UsageStore, day_of
from goondan_tasks.fleet.usage import Written as DayTotals
from goondan_tasks.instances.table import Instances
from goondan_tasks.ledger.claim_request import ClaimRequest, ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim, Verdict
from goondan_tasks.ledger.submission import Submission, call_json, digest_of

#: how many calls go through each script at once
_BATCH = 500
#: how many calls of a hundred fail, and in how many ways
_FAILED, _WAYS = 5, 40
_CODES = ("E_TOOL", "E_TOOL_TIMEOUT", "E_TOOL_INVALID_ARGS", "ENOENT", "E_MCP")
_POISONED = "Each of its 3 runs killed its worker."
_TERMS = ClaimTerms()
_HELD = {"message": "The call waits for a person's approval; it has not been run."}
#: how often the arguments of a call repeat a note if they are long
_LONG = 400
#: a piece of an output that becomes longer as HTML
_HARD = '"é" <b> & '
_DAY_MS = 86_400_000
#: what each agent uses on a day
_CALLS, _REQUESTS = (48_211, 0, 0, 0, 0, 0), (0, 21_307, 9_481_220, 7_250_001, 812_344, 120_977)


@dataclass(frozen=True, slots=True)
class History:
    """How much there is of everything."""

    calls: int
    agents: int
    tools: int
    conversations: int
    dead_letters: int
    trace_nodes: int
    output_bytes: int
    #: calls that wait for an approval
    approvals: int = 0
    #: days with usage, today included; hand-offs are those of today
    days: int = 0


@dataclass(frozen=True, slots=True)
class Written:
    """The names of what has been written, for the pages that show one of a kind."""

    agent: str
    tool: str
    instance: str
    call: str
    large_call: str
    failed_call: str
    trace: str


def write_history(ledger: Ledger, amounts: History) -> Written:
    """Write a history; the agents have no workers."""
    agents = [f"customer-agent-{number:02}" for number in range(amounts.agents)]
    tools = [f"order-tool{number:02}__run" for number in range(amounts.tools)]
    catalog = tuple({"name": name, "parameters": {"type": "object"}} for name in tools)
    records = [AgentRecord(name=name, swarm="bench", workspace="bench", catalog=catalog) for name in agents]
    AgentRegistry(ledger.redis, ledger.keys).publish_agents(records)
    instances = Instances(ledger.redis, ledger.keys)
    keys = [f"customer-{number:05}" for number in range(amounts.conversations)]
    for agent, key in zip(itertools.cycle(agents), keys, strict=False):
        instances.open(agent, key, workspace="bench", root_id="bench")
    calls = (_call(agents, tools, keys, number) for number in range(amounts.calls))
    ids = _end(ledger, calls, _outcome)
    dead = (_call(agents, tools, keys, number) for number in range(amounts.dead_letters))
    letters = _end(ledger, dead, _outcome, verdict=Verdict.POISONED)
    _end(ledger, trace := list(_trace(agents, tools, amounts.trace_nodes)), _outcome)
    _suspend(ledger, [_call(agents, tools, keys, number, _LONG) for number in range(amounts.approvals)])
    _count(ledger, agents, amounts.days)
    text = _HARD * (amounts.output_bytes // len(_HARD.encode()))
    [large] = _end(ledger, [new_call(agents[0], tools[0], {"text": text[:100_000]}, {})], lambda _: text)
    return Written(agents[0], tools[0], keys[0], ids[-1], large, letters[-1], trace[0].correlation_id)


def _call(
    agents: Sequence[str], tools: Sequence[str], keys: Sequence[str], number: int, times: int = 4
) -> ToolCall:
    """Return one of many calls: they alternate among agents, tools, conversations and users."""
    fields: dict[str, Any] = {"instanceKey": keys[number % len(keys)]}
    if number % 4 == 0:
        fields["auth"] = {"subjects": {"user": f"user-{number % 500}", "tenant": f"tenant-{number % 7}"}}
    args = {"query": f"order {number}", "limit": 20, "note": "as the customer asked " * times}
    # the step between tools shares no factor with that between agents
    tool = tools[number // len(agents) % len(tools)]
    return new_call(agents[number % len(agents)], tool, args, fields)


def _trace(agents: Sequence[str], tools: Sequence[str], nodes: int) -> Iterator[ToolCall]:
    """Yield the calls of one trace: each has caused ten others."""
    trace_id, correlation_id, ids = uuid.uuid4().hex, uuid.uuid4().hex, list[str]()
    for number in range(nodes):
        parent = (
            {"parentId": ids[(number - 1) // 10], "rootId": ids[0]}
            if ids
            else {"parentSpanId": "0" * 15 + "1"}
        )
        fields = {"traceId": trace_id, "correlationId": correlation_id, **parent}
        call = new_call(agents[number % len(agents)], tools[number % len(tools)], {"node": number}, fields)
        ids.append(identity_of(call))
        yield call


def _outcome(number: int) -> Any:
    """Return what a call ends with: its output, or its error."""
    if number % 100 >= _FAILED:
        return {"found": [{"id": f"A-{number}", "paid": True, "total": 129.9}] * 3}
    way = number // 100 % _WAYS
    customer, reason = f"customer {number % 97}", chr(97 + way % 26)
    message = f"Order {number} of '{customer}' was refused for reason {reason}: {uuid.uuid4()}."
    return ToolCallError(code=_CODES[way % len(_CODES)], name="OrderError", message=message)


def _suspend(ledger: Ledger, calls: Sequence[ToolCall]) -> None:
    """Submit and claim calls that then wait for an approval."""
    for claim in _claimed(ledger, calls):
        pending = Pending(claim.run.id, _HELD, is_approval=True)
        result = claim.run.pending(pending, None, expires_at=claim.run.clock() + _DAY_MS)
        ledger.suspend(claim, result).run(ledger.redis)


def _count(ledger: Ledger, agents: Sequence[str], days: int) -> None:
    """Count usage of all agents, each with two Models and as many users, and hand-offs between them."""
    store, now = UsageStore(ledger.redis, ledger.keys), redis_time(ledger.redis)
    rows = [
        UsageRow(agent=agent, model=model, user=f"user-{number:04}@customers.example", counts=counts)
        for number, agent in enumerate(agents)
        for model, counts in (("", _CALLS), ("large", _REQUESTS), ("small", _REQUESTS))
    ]
    hours = {iso_time(now)[11:13]: (1_200, 31)}
    edges = [
        EdgeRow(from_agent=agent, to=agents[(number + step) % len(agents)], hours=hours)
        for step in (1, 7)
        for number, agent in enumerate(agents)
    ]
    with ledger.redis.pipeline() as pipe:
        for at in (now - _DAY_MS * age for age in range(days)):
            written = DayTotals(day_of(at), 1, DayUsage(rows=tuple(rows)), DayHandoffs(rows=tuple(edges)))
            store.put(pipe, "bench", [written], at, days)
        pipe.execute()


def _claimed(ledger: Ledger, calls: Iterable[ToolCall]) -> list[Claim]:
    submissions = [_submission(one) for one in calls]
    ledger.submit_all(submissions, "bench")
    requests = [ClaimRequest(one.id, one.call, "bench", _TERMS) for one in submissions]
    return run_script_calls(ledger.redis, [ledger.claim(one) for one in requests])


def _end(
    ledger: Ledger, calls: Iterable[ToolCall], outcome: Any, verdict: Verdict = Verdict.RUN
) -> list[str]:
    """Submit, claim and end calls; return their ids."""
    ids: list[str] = []
    rest = iter(calls)
    while batch := list(itertools.islice(rest, _BATCH)):
        claims = _claimed(ledger, batch)
        rows = [
            _ended(ledger, replace(claim, verdict=verdict), outcome(len(ids) + at))
            for at, claim in enumerate(claims)
        ]
        stored = ledger.finish_many(rows).run(ledger.redis)
        assert min(stored[: len(rows)]) > 0
        ids += [one.run.id for one in claims]
    return ids


def _submission(call: ToolCall) -> Submission:
    wire = call_json(call, serializer.encode(call.args))
    return Submission(identity_of(call), call, wire, digest_of(call), b"")


def _ended(ledger: Ledger, claim: Claim, outcome: Any) -> tuple[Any, ...]:
    run = claim.run
    if claim.verdict is Verdict.POISONED:
        outcome = ToolCallError(code="E_TOOL_POISONED", name="ToolPoisonedError", message=_POISONED)
    if isinstance(outcome, ToolCallError):
        return ledger.ended_with(claim, run.failed(outcome, run.clock()))
    result = serializer.encode(run.ok(outcome, run.clock()).to_wire())
    is_plain = run.call.auth is None and run.call.parent_id is None
    return ledger.ended(claim, result, outcome="ok", kind="plain" if is_plain else "")
