"""The metrics of all agents for Prometheus, read from Redis at each scrape."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from broker_config.connections import reporting_outages
from broker_config.queues import call_queue, events_queue
from goondan_tasks.client.status import AgentState, AgentStatus
from goondan_tasks.errors import BrokerUnreachableError


def _of_queue(field: str) -> Callable[[AgentStatus], float]:
    return lambda status: getattr(status.queue, field) or 0


#: name, help text, and the value for one agent
_GAUGES: tuple[tuple[str, str, Callable[[AgentStatus], float]], ...] = (
    ("running", "Calls and events in hand.", _of_queue("running")),
    ("waiting_for_limit", "Calls that wait for a limit, outside the queue.", _of_queue("waiting_for_limit")),
    ("pending", "Calls that wait for a completion or an approval.", _of_queue("pending")),
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
    """Collects the metrics; ``goondan_up`` is 0 while Redis cannot be reached."""

    def __init__(self, read: Callable[[], list[AgentStatus]]) -> None:
        self._read = read

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return nothing, so that registering does not read Redis."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Yield every gauge, with a value for each agent."""
        up = GaugeMetricFamily("goondan_up", "1 if Redis can be reached.")
        try:
            with reporting_outages():  # a scrape must not wait for their end
                statuses = self._read()
        except BrokerUnreachableError:
            up.add_metric([], 0)
            yield up
            return
        up.add_metric([], 1)
        yield up
        yield _backlog(statuses)
        for name, says, value in _GAUGES:
            gauge = GaugeMetricFamily(f"goondan_{name}", says, labels=["agent"])
            for status in statuses:
                gauge.add_metric([status.record.name], value(status))
            yield gauge


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
def serving(read: Callable[[], list[AgentStatus]], host: str, port: int) -> Iterator[str]:
    """Serve the metrics on a thread, for the length of a ``with`` block; yield their URL.

    Raises:
        OSError: nothing can listen there.
    """
    registry = CollectorRegistry()
    registry.register(AgentMetrics(read))
    server, thread = start_http_server(port, host, registry)
    try:
        place = f"[{host}]" if ":" in host else host
        yield f"http://{place}:{server.server_port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
