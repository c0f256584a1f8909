"""What Celery is told about a call's message."""

from types import SimpleNamespace

from celery.worker import state

from workers.call_request import CallRequest


def test_a_call_that_begins_after_a_lost_connection_counts_as_reserved_again() -> None:
    message = SimpleNamespace(headers={"id": "call-1", "task": "goondan.tool_call"}, channel=None)
    request = CallRequest(message, SimpleNamespace(event_dispatcher=None))
    request.reserve()
    state.reserved_requests.clear()  # as Celery does when it loses its connection
    request.accept()
    assert list(state.reserved_requests) == [request]
    request.end(None)
    assert list(state.reserved_requests) == []
