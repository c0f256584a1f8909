"""What becomes of a shutdown message."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import fakeredis
import pytest

from broker_config.keys import Keys
from goondan_tasks.shutdown import ShutdownRequests
from workers.shutdown import note_shutdown


@pytest.fixture
def requests() -> Iterator[ShutdownRequests]:
    with fakeredis.FakeRedis() as redis:
        yield ShutdownRequests(redis, Keys())


def note(requests: ShutdownRequests, **payload: object) -> None:
    runtime: Any = SimpleNamespace(shutdowns=requests)
    note_shutdown(runtime, {"type": "shutdown", "from": "client", "to": "coder", "payload": payload})


@pytest.mark.parametrize("payload", [{"agent": "coder"}, {}, {"agent": None}])
def test_a_message_asks_the_workers_of_the_agent_it_names_or_was_sent_to(
    requests: ShutdownRequests, payload: dict[str, object]
) -> None:
    note(requests, **payload, reason="new version")

    assert requests.heed("w", ["coder", "planner"], 0) == {"coder": "new version"}


def test_a_message_may_be_about_one_worker(requests: ShutdownRequests) -> None:
    note(requests, worker="w")

    assert requests.heed("w", ["coder"], 0) == {"coder": ""}
    assert requests.heed("other", ["coder"], 0) == {}


@pytest.mark.parametrize("payload", [{"agent": "coder", "worker": "w"}, {"agent": ["coder"]}, {"worker": 7}])
def test_a_message_that_makes_no_sense_is_dropped(
    requests: ShutdownRequests, payload: dict[str, object]
) -> None:
    note(requests, **payload)

    assert requests.heed("w", ["coder"], 0) == {}


@pytest.mark.parametrize("wire", [{}, {"type": "shutdown"}, {"type": "shutdown", "payload": 3}, "drain"])
def test_what_is_no_message_is_dropped(requests: ShutdownRequests, wire: object) -> None:
    note_shutdown(cast(Any, SimpleNamespace(shutdowns=requests)), wire)

    assert requests.heed("w", ["coder"], 0) == {}
