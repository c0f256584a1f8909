"""What is read out of a message: the trace of a call that another program has queued, and how large it is."""

import uuid
from typing import Any

import pytest

from goondan_tasks.contract.calls import MAX_CONTEXT_BYTES
from goondan_tasks.contract.errors import PayloadTooLargeError, ToolInputValidationError
from goondan_tasks.contract.messages import ToolCall
from workers.delivery.incoming import Incoming

SENDER = "4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
HEADER = f"00-{SENDER}-01"
CALL = {"agentName": "coder", "toolName": "bash__exec"}


def trace_of(wire: dict[str, Any], traceparent: object) -> tuple[str, str, str | None]:
    """Return what a call is traced by: traceId, correlationId and the span that asked for it."""
    call = Incoming(str(uuid.UUID(int=7)), "agent.coder", wire, traceparent=traceparent).call(1000)
    return call.trace_id, call.correlation_id, call.parent_span_id


def test_untraced_call_takes_trace_of_message_sender() -> None:
    trace_id, span_id = SENDER.split("-")

    assert trace_of(CALL, HEADER) == (trace_id, trace_id, span_id)
    assert trace_of({**CALL, "correlationId": "order-7"}, HEADER) == (trace_id, "order-7", span_id)


def event_of(kind: str, payload: dict[str, Any]) -> ToolCall:
    """Read an event of 2,000 bytes where 1,000 are allowed."""
    filled = {"id": "e1", "eventId": "e1", "status": "ok", "response": "x" * 2000, **payload}
    message = {"type": kind, "from": "reviewer", "to": "coder", "toInstanceKey": "i", "payload": filled}
    incoming = Incoming(str(uuid.UUID(int=7)), "agent.coder.events", message, task=f"goondan.{kind}")
    return incoming.call(1000)


@pytest.mark.parametrize(
    ("kind", "payload"), [("delegate_result", {}), ("event", {"type": "toolCall.completed"})]
)
def test_call_end_news_arrives_whatever_its_size(kind: str, payload: dict[str, Any]) -> None:
    assert event_of(kind, payload).args["payload"]["response"] == "x" * 2000


@pytest.mark.parametrize("kind", ["delegate", "event"])
def test_event_that_is_too_large_is_refused(kind: str) -> None:
    with pytest.raises(PayloadTooLargeError):
        event_of(kind, {"type": "agent.send"})


def incoming(**fields: Any) -> Incoming:
    return Incoming(str(uuid.UUID(int=7)), "agent.coder", {**CALL, **fields})


@pytest.mark.parametrize("name", ["instanceKey", "instance_key"])
def test_celery_call_with_empty_instance_key_is_refused(name: str) -> None:
    with pytest.raises(ToolInputValidationError, match="instanceKey: must not be empty"):
        incoming(**{name: ""}).call(1000)


@pytest.mark.parametrize(
    ("fields", "payload"),
    [
        ({"toInstanceKey": ""}, {}),
        ({"fromInstanceKey": ""}, {}),
        ({"fromInstanceKey": "k" * 1025}, {}),
        ({"toInstanceKey": ""}, {"instanceKey": "i"}),
        ({}, {"instanceKey": ""}),
    ],
)
def test_celery_event_with_impossible_instance_key_is_refused(
    fields: dict[str, Any], payload: dict[str, Any]
) -> None:
    message = {"type": "event", "from": "client", "to": "coder", "payload": {"id": "e", **payload}, **fields}
    event = Incoming(str(uuid.UUID(int=7)), "agent.coder.events", message, task="goondan.event")

    with pytest.raises(ToolInputValidationError, match=r"InstanceKey|instanceKey"):
        event.call(1000)


@pytest.mark.parametrize(
    "fields",
    [
        {"instanceKey": "k" * 1025},
        {"auth": {"token": "x" * 65_536}},
        {"origin": {"page": "x" * 65_536}},
    ],
)
def test_refusal_of_oversized_call_omits_oversized_fields(fields: dict[str, Any]) -> None:
    refused = incoming(**fields)

    with pytest.raises(PayloadTooLargeError):
        refused.call(1000)
    placeholder = refused.placeholder()
    assert len(placeholder.instance_key) <= 1024
    assert (placeholder.auth, placeholder.origin) == (None, None)


def test_context_of_exactly_limit_is_taken() -> None:
    auth = {"token": "x" * (MAX_CONTEXT_BYTES - len('{"token":""}'))}
    taken = incoming(instanceKey="k" * 1024, auth=auth, origin=auth)

    assert taken.call(1000).auth == auth
    assert taken.placeholder().auth == auth


@pytest.mark.parametrize("name", ["traceId", "trace_id"])
def test_trace_of_its_own_goes_before_senders(name: str) -> None:
    own = "a1" * 16

    assert trace_of({**CALL, name: own}, HEADER) == (own, own, None)


@pytest.mark.parametrize("header", [None, "garbage", 5, "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
def test_trace_is_messages_own_without_readable_header(header: object) -> None:
    own = f"{7:032x}"

    assert trace_of(CALL, header) == (own, own, None)
