"""Requests that workers drain."""

from collections.abc import Iterator

import fakeredis
import pytest
from pydantic import ValidationError
from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.shutdown import ShutdownRequest, ShutdownRequests
from tests.waiting import wait_until


@pytest.fixture
def redis() -> Iterator[Redis]:
    with fakeredis.FakeRedis() as redis:
        yield redis


@pytest.fixture
def requests(redis: Redis) -> ShutdownRequests:
    return ShutdownRequests(redis, Keys())


def test_nobody_is_asked_at_first(requests: ShutdownRequests) -> None:
    assert requests.heed("w", ["a", "b"], 0) == {}


def test_a_request_for_an_agent_is_about_that_agent(requests: ShutdownRequests) -> None:
    requests.ask(ShutdownRequest(agent="a", reason="new version"))

    assert requests.heed("w", ["a", "b"], 0) == {"a": "new version"}
    assert requests.heed("w", ["b"], 0) == {}


def test_a_request_for_a_worker_is_about_all_of_its_agents(requests: ShutdownRequests) -> None:
    requests.ask(ShutdownRequest(worker="w", reason="moved"))

    assert requests.heed("w", ["a", "b"], 0) == {"a": "moved", "b": "moved"}
    assert requests.heed("other", ["a", "b"], 0) == {}


def test_a_worker_that_begins_later_is_not_meant(requests: ShutdownRequests) -> None:
    before = requests.now()
    wait_until(lambda: requests.now() > before)
    requests.ask(ShutdownRequest(agent="a"))

    assert requests.heed("w", ["a"], before) == {"a": ""}
    assert requests.heed("w", ["a"], requests.now()) == {}


def test_a_request_does_not_stand_for_ever(requests: ShutdownRequests, redis: Redis) -> None:
    requests.ask(ShutdownRequest(agent="a"))

    assert redis.ttl(Keys().shutdown("agent:a")) > 0


@pytest.mark.parametrize("about", [{}, {"agent": "a", "worker": "w"}, {"agent": ""}, {"agent": 3}])
def test_a_request_is_about_one_agent_or_one_worker(about: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ShutdownRequest.from_wire(about)
