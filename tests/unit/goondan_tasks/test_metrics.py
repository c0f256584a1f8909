"""What Prometheus gets."""

import urllib.request

from prometheus_client import CollectorRegistry, generate_latest

from goondan_tasks.client.status import AgentStatus
from goondan_tasks.crash_backoff import CrashBackoff
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.metrics import AgentMetrics, serving
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


def lines(read: object) -> list[str]:
    registry = CollectorRegistry()
    registry.register(AgentMetrics(read))  # type: ignore[arg-type]
    return [line for line in generate_latest(registry).decode().splitlines() if not line.startswith("#")]


def test_every_figure_has_a_gauge() -> None:
    assert lines(busy) == [
        "goondan_up 1.0",
        'goondan_backlog{agent="coder",queue="agent.coder"} 3.0',
        'goondan_backlog{agent="coder",queue="agent.coder.events"} 2.0',
        'goondan_running{agent="coder"} 3.0',
        'goondan_waiting_for_limit{agent="coder"} 0.0',
        'goondan_pending{agent="coder"} 8.0',
        'goondan_oldest_seconds{agent="coder"} 1.5',
        'goondan_workers{agent="coder"} 1.0',
        'goondan_dead_letters{agent="coder"} 4.0',
        'goondan_mailboxes{agent="coder"} 6.0',
        'goondan_late_answers{agent="coder"} 7.0',
        'goondan_quick_crashes{agent="coder"} 0.0',
        'goondan_crash_loop{agent="coder"} 0.0',
    ]


def test_a_crash_loop_shows() -> None:
    assert 'goondan_quick_crashes{agent="coder"} 6.0' in lines(looping)
    assert 'goondan_crash_loop{agent="coder"} 1.0' in lines(looping)


def test_without_redis_that_is_all_there_is_to_say() -> None:
    assert lines(away) == ["goondan_up 0.0"]


def test_they_are_served_over_http() -> None:
    with serving(busy, "127.0.0.1", 0) as url, urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310
        text = answer.read().decode()

    assert 'goondan_workers{agent="coder"} 1.0' in text
