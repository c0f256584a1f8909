"""Sending a call's message through a broker beside the ledger's Redis."""

import pytest
from kombu import Connection

from broker_config import serializer
from goondan_tasks.calls import KombuDispatch, identity_of, new_call
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.messages import ToolCall


def test_a_message_waits_in_the_brokers_queue_for_a_worker_that_is_not_there_yet() -> None:
    call = new_call("dispatched", "bash__exec", {"command": "ls"}, {})
    KombuDispatch("memory://localhost").send(identity_of(call), call)
    with Connection("memory://localhost") as connection, connection.SimpleQueue("agent.dispatched") as queue:
        message = queue.get(timeout=30)
    assert message.headers["id"] == identity_of(call)
    assert message.headers["traceparent"] == f"00-{call.trace_id}-{call.span_id}-01"
    args, kwargs, _ = serializer.decode(message.body or "")
    assert (args, ToolCall.from_wire(kwargs["call"])) == ([], call)


@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_away_is_named_without_its_password(scheme: str) -> None:
    call = new_call("coder", "bash__exec", {}, {})
    dispatch = KombuDispatch(f"{scheme}://user:secret@127.0.0.1:1/1")
    with pytest.raises(BrokerUnreachableError, match=r"user:\*\*\*@127\.0\.0\.1:1/1") as refused:
        dispatch.send(identity_of(call), call)
    assert "secret" not in str(refused.value)
