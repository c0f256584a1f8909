"""Settings become Celery's configuration."""

import pytest

from broker_config.options import celery_options, celery_url
from broker_config.queues import agent_of, call_queue, events_queue
from broker_config.settings import Settings


@pytest.mark.parametrize(
    ("ours", "celerys"),
    [
        ("redis://h:1/2", "redis://h:1/2"),
        ("unix:///run/r.sock", "redis+socket:///run/r.sock"),
        ("rediss://h/0", "rediss://h/0?ssl_cert_reqs=required"),
        ("rediss://h/0?x=1", "rediss://h/0?x=1&ssl_cert_reqs=required"),
        ("rediss://h/0?ssl_cert_reqs=none", "rediss://h/0?ssl_cert_reqs=none"),
        ("redis://h:1/2?db=3&protocol=2", "redis://h:1/3?protocol=2"),
        ("rediss://:p@h?db=3", "rediss://:p@h/3?ssl_cert_reqs=required"),
        ("unix://:p@/run/r.sock?x=1&db=3", "redis+socket://:p@/run/r.sock?x=1&virtual_host=3"),
        ("amqp://h?db=1", "amqp://h?db=1"),
    ],
)
def test_urls_are_converted_to_celerys_spelling(ours: str, celerys: str) -> None:
    assert celery_url(ours) == celerys


def test_only_json_is_accepted() -> None:
    options = celery_options(Settings(), [])
    assert options["accept_content"] == ["json"]
    assert options["task_serializer"] == "json"


def test_every_agents_queues_are_declared_without_binding() -> None:
    queues = celery_options(Settings(), ["coder", "planner"])["task_queues"]
    assert [queue.name for queue in queues] == [
        "agent.coder",
        "agent.coder.events",
        "agent.planner",
        "agent.planner.events",
    ]
    assert {queue.exchange.name for queue in queues} == {""}


def test_events_are_sent_unless_turned_off() -> None:
    assert celery_options(Settings(), [])["worker_send_task_events"] is True
    assert celery_options(Settings(events="off"), [])["worker_send_task_events"] is False


@pytest.mark.parametrize("agent", ["coder", "a", "a-b", "events"])
def test_queue_tells_its_agent(agent: str) -> None:
    assert agent_of(call_queue(agent)) == agent
    assert agent_of(events_queue(agent)) == agent


def test_foreign_queue_has_no_agent() -> None:
    assert agent_of("celery") is None
