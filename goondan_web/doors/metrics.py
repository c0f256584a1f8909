"""The door ``metrics``: Prometheus metrics of all agents and workers, read from Redis at each scrape."""

import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import accumulate, product

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import choose_encoder, gzip_accepted
from prometheus_client.registry import Collector
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from broker_config.connections import reporting_outages
from broker_config.queues import call_queue, events_queue
from goondan_tasks.client.status import AgentState, AgentStatus
from goondan_tasks.contract.errors import (
    AgentOutcomeUnknownError,
    BrokerUnreachableError,
    ToolOutcomeUnknownError,
    ToolPoisonedError,
)
from goondan_tasks.contract.names import DELEGATE_TOOL, EVENT_TOOLS, MODEL_TOOLS
from goondan_tasks.fleet.call_counts import BUCKETS, REQUEUED, Times, TotalCounts, WorkerCounts
from goondan_tasks.fleet.connections import ConnectionStatus
from goondan_tasks.fleet.http_tokens import READ
from goondan_tasks.ledger.schedules import SLOT_RESULTS, ScheduleState
from goondan_web.callers import require
from goondan_web.door import Access, Door, DoorContext

#: the codes of settled calls that alerts watch
_AFTER_DEATHS = (
    REQUEUED,
    AgentOutcomeUnknownError.code,
    ToolOutcomeUnknownError.code,
    ToolPoisonedError.code,
)

PATH = "/metrics"
#: a version in Accept that the library cannot compare with its own
_ODD_VERSION = re.compile(r"\bversion=(?!\d{1,4}(\.\d{1,4})*\s*([;,]|$))", re.ASCII)

#: returns what is counted of the calls
ReadCounts = Callable[[], TotalCounts]
#: returns all schedules
ReadSchedules = Callable[[], list[ScheduleState]]
#: returns how all Connections fare
ReadConnections = Callable[[], list[ConnectionStatus]]


def _of_queue(field: str) -> Callable[[AgentStatus], float]:
    return lambda status: getattr(status.queue, field) or 0


#: name, help text, and the value of an agent
_GAUGES: tuple[tuple[str, str, Callable[[AgentStatus], float]], ...] = (
    ("running", "Calls and events in hand.", _of_queue("running")),
    ("waiting_for_limit", "Calls that wait for a limit, outside the queue.", _of_queue("waiting_for_limit")),
    ("pending", "Calls that wait for a completion or an approval.", _of_queue("pending")),
    ("scheduled", "Calls and events whose time is to come.", _of_queue("scheduled")),
    (
        "oldest_seconds",
        "How long the oldest call or event has waited for a worker, or for a limit.",
        _of_queue("oldest_seconds"),
    ),
    ("workers", "Live worker processes that take calls.", lambda one: len(one.workers)),
    (
        "dead_letters",
        "Calls whose every run killed its worker, and messages that held no call.",
        _of_queue("dead_letters"),
    ),
    ("mailboxes", "Instances with events that wait or are in hand.", _of_queue("mailboxes")),
    ("late_answers", "Answers that came after their request had ended.", _of_queue("late_answers")),
    (
        "quick_crashes",
        "Workers in a row that crashed as soon as they started.",
        lambda one: one.backoff.crashes,
    ),
    (
        "crash_loop",
        "1 while the agent's workers crash and their next start waits.",
        lambda one: one.state is AgentState.CRASH_LOOP,
    ),
)


class AgentMetrics(Collector):
    """Collects the metrics. ``goondan_up`` is 0 while Redis cannot be reached."""

    def __init__(
        self,
        read: Callable[[], list[AgentStatus]],
        read_counts: ReadCounts,
        read_schedules: ReadSchedules,
        read_connections: ReadConnections,
    ) -> None:
        self._read, self._read_counts = read, read_counts
        self._read_schedules, self._read_connections = read_schedules, read_connections

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering the collector does not read Redis."""
        return ()

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, with a value for each agent, and the workers' counts."""
        up = GaugeMetricFamily("goondan_up", "1 if Redis can be reached.")
        try:
            with reporting_outages():  # a scrape must not wait for the end of an outage
                statuses = self._read()
                counts = self._read_counts()
                schedules = self._read_schedules()
                connections = self._read_connections()
        except BrokerUnreachableError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield _backlog(statuses)
        for name, help_text, value in _GAUGES:
            gauge = GaugeMetricFamily(f"goondan_{name}", help_text, labels=["agent"])
            for status in statuses:
                gauge.add_metric([status.record.name], value(status))
            yield gauge
        paused = GaugeMetricFamily(
            "goondan_paused", "1 while the agent, or its tool, is paused.", labels=["agent", "tool"]
        )
        for status in statuses:
            for pause in status.queue.paused:
                paused.add_metric([pause.agent, pause.tool or ""], 1)
        yield paused
        lost_calls = CounterMetricFamily(
            "goondan_lost_calls", "Calls whose worker has died with them.", labels=["agent"]
        )
        # a counter that appears with the first such call would show no increase
        agents = [one.record.name for one in statuses]
        for agent, count in sorted({**dict.fromkeys(agents, 0), **counts.lost}.items()):
            lost_calls.add_metric([agent], count)
        yield lost_calls
        settled = CounterMetricFamily(
            "goondan_settled_calls",
            "Calls that were ended or queued again outside a run of theirs.",
            labels=["agent", "code"],
        )
        none = dict.fromkeys(product(agents, _AFTER_DEATHS), 0)
        for (agent, code), count in sorted({**none, **counts.settled}.items()):
            settled.add_metric([agent, code], count)
        yield settled
        yield from _counted(counts.workers)
        yield from _scheduled(schedules)
        yield from _connected(connections)


def _scheduled(schedules: Iterable[ScheduleState]) -> Iterator[Metric]:
    slots = CounterMetricFamily(
        "goondan_schedule_slots", "Slots of schedules, by what became of them.", labels=["schedule", "result"]
    )
    paused = GaugeMetricFamily(
        "goondan_schedule_paused", "1 while a schedule is paused.", labels=["schedule"]
    )
    for one in schedules:
        for result in SLOT_RESULTS:
            slots.add_metric([one.full_name, result], getattr(one, result))
        paused.add_metric([one.full_name], one.paused is not None)
    yield from (slots, paused)


def _connected(connections: Iterable[ConnectionStatus]) -> Iterator[Metric]:
    events = CounterMetricFamily(
        "goondan_connection_events", "Events from outside.", labels=["connection", "result"]
    )
    running = GaugeMetricFamily(
        "goondan_connection_running", "1 while a process receives its events.", labels=["connection"]
    )
    for one in connections:
        events.add_metric([one.full_name, "accepted"], one.events)
        events.add_metric([one.full_name, "refused"], one.refused)
        running.add_metric([one.full_name], one.state == "running")
    yield from (events, running)


_CALL = ("worker", "process", "agent", "tool")


def _counted(workers: Iterable[WorkerCounts]) -> Iterator[Metric]:
    by_code, by_agent = [*_CALL, "code"], [*_CALL[:3], "code"]
    calls = CounterMetricFamily("goondan_calls", "Tool calls that have ended in a worker.", labels=by_code)
    handoffs = CounterMetricFamily("goondan_handoffs", "Requests of other agents, handled.", labels=by_agent)
    events = CounterMetricFamily("goondan_events", "Other events and answers, handled.", labels=by_agent)
    retries = CounterMetricFamily("goondan_call_retries", "Runs that were tried again.", labels=by_code)
    limit_waits = CounterMetricFamily("goondan_limit_waits", "Calls that waited for a limit.", labels=_CALL)
    waits = HistogramMetricFamily("goondan_call_wait_seconds", "From queue to first run.", labels=_CALL)
    runs = HistogramMetricFamily("goondan_call_run_seconds", "How long handlers took.", labels=_CALL)
    tokens = CounterMetricFamily(
        "goondan_model_tokens",
        "Tokens of requests to models; input has those that were cached, output those of reasoning.",
        labels=[*_CALL[:3], "model", "kind"],
    )
    for worker in workers:
        for one in worker.tools:
            prefix = [worker.worker, worker.process, one.agent]
            for code, count in one.ended.items():
                if one.tool in EVENT_TOOLS:
                    (handoffs if one.tool == DELEGATE_TOOL else events).add_metric([*prefix, code], count)
                else:
                    calls.add_metric([*prefix, one.tool, code], count)
            for code, count in one.retried.items():
                retries.add_metric([*prefix, one.tool, code], count)
            limit_waits.add_metric([*prefix, one.tool], one.limit_waits)
            waits.add_metric([*prefix, one.tool], _buckets(one.waits), one.waits.total)
            runs.add_metric([*prefix, one.tool], _buckets(one.runs), one.runs.total)
            for kind, count in one.tokens.items():
                tokens.add_metric([*prefix, one.tool.removeprefix(MODEL_TOOLS), kind], count)
    yield from (calls, handoffs, events, retries, limit_waits, waits, runs, tokens)


def _buckets(times: Times) -> list[tuple[str, float]]:
    ends = (*(repr(end) for end in BUCKETS), "+Inf")
    return list(zip(ends, accumulate(times.counts), strict=True))


def _backlog(statuses: Iterable[AgentStatus]) -> GaugeMetricFamily:
    gauge = GaugeMetricFamily(
        "goondan_backlog", "Calls and events that wait for a worker.", labels=["agent", "queue"]
    )
    for status in statuses:
        agent, queue = status.record.name, status.queue
        gauge.add_metric([agent, call_queue(agent)], queue.backlog - queue.events)
        gauge.add_metric([agent, events_queue(agent)], queue.events)
    return gauge


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door."""
    client = context.client
    schedules, connections = client.schedules.list, client.connections
    yield metrics_door(AgentMetrics(client.agent_statuses, client.call_counts, schedules, connections))


def metrics_door(collector: Collector) -> Door:
    """Make the door.

    Prometheus uses any name of the host, so that without a token every name will do beyond loopback.
    """
    registry = CollectorRegistry()
    registry.register(collector)

    def scrape(request: Request) -> Response:  # synchronous, so that Starlette runs it in a thread
        require(request, READ)
        accept = request.headers.get("accept", "")
        encode, content_type = choose_encoder("" if _ODD_VERSION.search(accept) else accept)
        text = encode(registry)
        headers = {"Content-Type": content_type, "Vary": "Accept, Accept-Encoding"}
        if gzip_accepted(request.headers.get("accept-encoding", "")):
            return Response(gzip.compress(text), headers={**headers, "Content-Encoding": "gzip"})
        return Response(text, headers=headers)

    return Door("metrics", PATH, [Route(PATH, scrape)], Access.TOKEN_IF_SET, is_polled=True)
