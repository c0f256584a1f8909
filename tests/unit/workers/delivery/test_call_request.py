"""What Celery is told about a call's message."""

from collections import Counter
from types import SimpleNamespace

import pytest
from celery.worker import state

from workers.delivery.incoming import Incoming
from workers.pool.monitoring import LONGEST_NAME, MOST_NAMES, CallRequest


def request_of(headers: dict[str, object]) -> CallRequest:
    """Make the request of a call's message with these headers."""
    incoming = Incoming("call-1", "agent.coder", {})
    return CallRequest(incoming, headers, SimpleNamespace(event_dispatcher=None))


def test_a_call_that_begins_after_a_lost_connection_counts_as_reserved_again() -> None:
    request = request_of({})
    request.reserve()
    state.reserved_requests.clear()  # as Celery does when it loses its connection
    request.accept()
    assert list(state.reserved_requests) == [request]
    request.end()
    assert list(state.reserved_requests) == []


def begin(tool: object) -> None:
    request = request_of({"shadow": tool})
    request.reserve()
    request.accept()
    request.end()


def test_names_that_a_model_makes_up_are_not_counted_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    monkeypatch.setattr(state, "total_count", counts)
    for number in range(MOST_NAMES + 5):
        begin(f"made__up-{number}")
    begin("made__up-7")
    begin("x" * (LONGEST_NAME + 1))
    assert len(counts) == MOST_NAMES + 1
    assert (counts["made__up-7"], counts["goondan.tool_call"]) == (2, 6)


def test_a_name_that_is_not_text_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()
    monkeypatch.setattr(state, "total_count", counts)
    for name in ({"a": 1}, ["a"], 5, None, ""):
        begin(name)
    assert counts == {"goondan.tool_call": 5}
