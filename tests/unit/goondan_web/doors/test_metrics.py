"""What Prometheus gets."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from urllib.parse import urlsplit

import httpx2
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.client.status import AgentStatus
from goondan_tasks.contract.errors import BrokerUnreachableError
from goondan_tasks.contract.names import DELEGATE_TOOL, EVENT_TOOL
from goondan_tasks.contract.schedules import Schedule
from goondan_tasks.fleet.call_counts import CallCounts, CountedCall, TotalCounts
from goondan_tasks.fleet.connections import ConnectionStatus
from goondan_tasks.fleet.crash_backoff import CrashBackoff
from goondan_tasks.ledger.schedules import SchedulePause, ScheduleState
from goondan_tasks.machine.process import listening, url_of
from goondan_web.application import make_application
from goondan_web.doors.metrics import AgentMetrics, ReadCounts, metrics_door
from goondan_web.server import served
from tests.unit.goondan_tasks.cli.fake_client import NOW, agent, queue_status, worker


def busy() -> list[AgentStatus]:
    queue = queue_status(
        "coder",
        backlog=5,
        events=2,
        running=3,
        oldest_seconds=1.5,
        dead_letters=4,
        mailboxes=6,
        late_answers=7,
        pending=8,
    )
    return [AgentStatus(agent("coder"), [worker()], queue, CrashBackoff(), is_orchestrated=False, now=NOW)]


def looping() -> list[AgentStatus]:
    backoff = CrashBackoff(crashes=6, retry_at=NOW + 1)
    return [AgentStatus(agent("coder"), [], queue_status("coder"), backoff, is_orchestrated=True, now=NOW)]


def away() -> list[AgentStatus]:
    raise BrokerUnreachableError


def counted() -> TotalCounts:
    counts = CallCounts(lambda agent, tool: True)
    counts.add(
        [
            CountedCall("coder", "a__b", "ok", 0.02, 0.3),
            CountedCall("coder", "a__b", "E_TOOL", None, 7_000.0),
            CountedCall("coder", DELEGATE_TOOL, "ok", 0.0, 1.0),
            CountedCall("coder", EVENT_TOOL, "E_AGENT_FAILED", None, None),
        ]
    )
    counts.add_retry("coder", "a__b", "E_TOOL")
    counts.add_limit_wait("coder", "a__b")
    settled = {("coder", "requeued"): 2, ("coder", "E_TOOL_POISONED"): 1}
    return TotalCounts([counts.totals("w1@host", "p1")], {"coder": 3}, settled)


def nothing() -> TotalCounts:
    return TotalCounts([], {}, {})


def lines(
    read: object,
    read_counts: ReadCounts = nothing,
    read_schedules: Callable[[], list[ScheduleState]] = list,
    read_connections: Callable[[], list[ConnectionStatus]] = list,
) -> list[str]:
    registry = CollectorRegistry()
    registry.register(AgentMetrics(read, read_counts, read_schedules, read_connections))  # type: ignore[arg-type]
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_every_figure_has_gauge() -> None:
    assert lines(busy) == [
        "goondan_up 1.0",
        'goondan_backlog{agent="coder",queue="agent.coder"} 3.0',
        'goondan_backlog{agent="coder",queue="agent.coder.events"} 2.0',
        'goondan_running{agent="coder"} 3.0',
        'goondan_waiting_for_limit{agent="coder"} 0.0',
        'goondan_pending{agent="coder"} 8.0',
        'goondan_scheduled{agent="coder"} 0.0',
        'goondan_oldest_seconds{agent="coder"} 1.5',
        'goondan_workers{agent="coder"} 1.0',
        'goondan_dead_letters{agent="coder"} 4.0',
        'goondan_mailboxes{agent="coder"} 6.0',
        'goondan_late_answers{agent="coder"} 7.0',
        'goondan_quick_crashes{agent="coder"} 0.0',
        'goondan_crash_loop{agent="coder"} 0.0',
        'goondan_lost_calls_total{agent="coder"} 0.0',
        'goondan_settled_calls_total{agent="coder",code="E_AGENT_OUTCOME_UNKNOWN"} 0.0',
        'goondan_settled_calls_total{agent="coder",code="E_TOOL_OUTCOME_UNKNOWN"} 0.0',
        'goondan_settled_calls_total{agent="coder",code="E_TOOL_POISONED"} 0.0',
        'goondan_settled_calls_total{agent="coder",code="requeued"} 0.0',
    ]


def test_worker_counts_show_worker_agent_tool_code() -> None:
    tool = 'process="p1",tool="a__b",worker="w1@host"}'
    shown = [line for line in lines(busy, counted) if "_seconds" not in line and "__delegate" not in line]
    assert [line for line in shown if "process" in line or "lost" in line or "settled" in line] == [
        'goondan_lost_calls_total{agent="coder"} 3.0',
        'goondan_settled_calls_total{agent="coder",code="E_AGENT_OUTCOME_UNKNOWN"} 0.0',
        'goondan_settled_calls_total{agent="coder",code="E_TOOL_OUTCOME_UNKNOWN"} 0.0',
        'goondan_settled_calls_total{agent="coder",code="E_TOOL_POISONED"} 1.0',
        'goondan_settled_calls_total{agent="coder",code="requeued"} 2.0',
        f'goondan_calls_total{{agent="coder",code="ok",{tool} 1.0',
        f'goondan_calls_total{{agent="coder",code="E_TOOL",{tool} 1.0',
        'goondan_handoffs_total{agent="coder",code="ok",process="p1",worker="w1@host"} 1.0',
        'goondan_events_total{agent="coder",code="E_AGENT_FAILED",process="p1",worker="w1@host"} 1.0',
        f'goondan_call_retries_total{{agent="coder",code="E_TOOL",{tool} 1.0',
        f'goondan_limit_waits_total{{agent="coder",{tool} 1.0',
        'goondan_limit_waits_total{agent="coder",process="p1",tool="goondan__event",worker="w1@host"} 0.0',
    ]


def test_tokens_show_with_model_and_their_kind() -> None:
    def asked() -> TotalCounts:
        counts, tokens = CallCounts(lambda agent, tool: True), {"input": 100, "output": 20, "cached": 60}
        counts.add([CountedCall("coder", "goondan__model-large", "ok", 0.02, 0.3, tokens)])
        return TotalCounts([counts.totals("w1@host", "p1")], {}, {})

    who = 'model="large",process="p1",worker="w1@host"}'
    assert [line for line in lines(busy, asked) if "tokens" in line] == [
        f'goondan_model_tokens_total{{agent="coder",kind="input",{who} 100.0',
        f'goondan_model_tokens_total{{agent="coder",kind="cached",{who} 60.0',
        f'goondan_model_tokens_total{{agent="coder",kind="output",{who} 20.0',
        f'goondan_model_tokens_total{{agent="coder",kind="reasoning",{who} 0.0',
    ]


def test_last_histogram_bucket_holds_all_waits_and_runs() -> None:
    tool = 'process="p1",tool="a__b",worker="w1@host"}'
    shown = lines(busy, counted)
    for line in (
        f'goondan_call_run_seconds_bucket{{agent="coder",le="0.1",{tool} 0.0',
        f'goondan_call_run_seconds_bucket{{agent="coder",le="0.5",{tool} 1.0',
        f'goondan_call_run_seconds_bucket{{agent="coder",le="1800.0",{tool} 1.0',
        f'goondan_call_run_seconds_bucket{{agent="coder",le="+Inf",{tool} 2.0',
        f'goondan_call_run_seconds_sum{{agent="coder",{tool} 7000.3',
        f'goondan_call_wait_seconds_count{{agent="coder",{tool} 1.0',
    ):
        assert line in shown


def test_crash_loop_shows() -> None:
    assert 'goondan_quick_crashes{agent="coder"} 6.0' in lines(looping)
    assert 'goondan_crash_loop{agent="coder"} 1.0' in lines(looping)


def test_redis_outage_leaves_only_up_metric() -> None:
    assert lines(away) == ["goondan_up 0.0"]


@contextmanager
def serving(host: str = "127.0.0.1") -> Iterator[str]:
    """Serve the metrics; yield their URL."""
    door = metrics_door(AgentMetrics(busy, nothing, list, list))
    with listening(host, 0) as server, served(make_application([door], Settings.load(), host), server):
        yield f"{url_of(server)}/metrics"


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_they_are_served_over_http(encoding: str) -> None:
    with serving() as url:
        answer = httpx2.get(url, headers={"Accept-Encoding": encoding}, timeout=30)

    assert answer.headers.get("content-encoding", "identity") == encoding
    assert 'goondan_workers{agent="coder"} 1.0' in answer.text


def test_scraper_may_choose_format() -> None:
    with serving() as url:
        answer = httpx2.get(
            url,
            headers={"Accept": "application/openmetrics-text; version=1.0.0"},
            timeout=30,
        )

    assert answer.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    assert answer.text.endswith("# EOF\n")


@pytest.mark.parametrize(
    "accept",
    [
        "text/plain;version=abc",
        'text/plain; version="1.0.0"',
        "text/plain;version=1..0",
        "application/openmetrics-text; version=2.x",
        f"application/openmetrics-text;version={'9' * 5_000}",
        "text/plain, application/openmetrics-text;version=",
    ],
)
def test_odd_version_in_accept_gets_default_format(accept: str) -> None:
    door = metrics_door(AgentMetrics(busy, nothing, list, list))
    client = TestClient(make_application([door], Settings.load(), "127.0.0.1"), base_url="http://127.0.0.1")

    answer = client.get("/metrics", headers={"Accept": accept})

    assert (answer.status_code, answer.headers["content-type"]) == (200, CONTENT_TYPE_PLAIN_0_0_4)


def status_for(url: str, host: str) -> int:
    """Send a request with this Host header; return the status of the answer."""
    connection = HTTPConnection("127.0.0.1", urlsplit(url).port or 0, timeout=30)
    with closing(connection):
        connection.request("GET", "/metrics", headers={"Host": host})
        return connection.getresponse().status


@pytest.mark.parametrize("host", ["127.0.0.1:9464", "localhost", "LOCALHOST:1", "[::1]:9464"])
def test_on_loopback_local_host_name_gets_metrics(host: str) -> None:
    with serving() as url:
        assert status_for(url, host) == 200


@pytest.mark.parametrize("host", ["evil.example:9464", "", "localhost.evil.example", "a:b:c", "[::1"])
def test_on_loopback_foreign_host_name_gets_no_metrics(host: str) -> None:
    with serving() as url:
        assert status_for(url, host) == 403


def test_on_other_addresses_any_host_name_gets_metrics() -> None:
    with serving("0.0.0.0") as url:
        assert status_for(url, "metrics.internal:9464") == 200


def test_schedule_slots_are_counted_by_result() -> None:
    one = Schedule(name="nightly", owner="w", every="1h", agent="coder")
    state = ScheduleState(schedule=one, fired=7, skipped=2, missed=1, paused=SchedulePause())
    shown = [line for line in lines(busy, read_schedules=lambda: [state]) if "schedule_" in line]

    assert shown == [
        'goondan_schedule_slots_total{result="fired",schedule="w/nightly"} 7.0',
        'goondan_schedule_slots_total{result="skipped",schedule="w/nightly"} 2.0',
        'goondan_schedule_slots_total{result="missed",schedule="w/nightly"} 1.0',
        'goondan_schedule_slots_total{result="damaged",schedule="w/nightly"} 0.0',
        'goondan_schedule_paused{schedule="w/nightly"} 1.0',
    ]


def test_connections_are_counted() -> None:
    def connections() -> list[ConnectionStatus]:
        chat = ConnectionStatus(
            workspace="w", name="chat", connector="telegram", state="running", events=7, refused=2
        )
        return [chat, chat.model_copy(update={"name": "shop", "state": "stopped", "events": 0})]

    shown = lines(busy, read_connections=connections)
    assert [line for line in shown if line.startswith("goondan_connection")] == [
        'goondan_connection_events_total{connection="w/chat",result="accepted"} 7.0',
        'goondan_connection_events_total{connection="w/chat",result="refused"} 2.0',
        'goondan_connection_events_total{connection="w/shop",result="accepted"} 0.0',
        'goondan_connection_events_total{connection="w/shop",result="refused"} 2.0',
        'goondan_connection_running{connection="w/chat"} 1.0',
        'goondan_connection_running{connection="w/shop"} 0.0',
    ]
