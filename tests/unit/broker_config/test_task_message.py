"""The task message, compared with the one that Celery itself makes."""

import json
from typing import Any, cast

from celery import Celery

from broker_config.task_message import TaskMessage

MESSAGE = TaskMessage(
    task="goondan.tool_call",
    task_id="7d9c0c5e-0000-0000-0000-000000000000",
    queue="agent.coder",
    kwargs=b'{"call":{"toolName":"bash__exec"}}',
    shadow="bash__exec",
)


def test_headers_are_those_of_celerys_protocol_two() -> None:
    with Celery(broker="memory://") as app:
        theirs: dict[str, Any] = app.amqp.as_task_v2(
            MESSAGE.task_id,
            MESSAGE.task,
            kwargs=json.loads(MESSAGE.kwargs),
            shadow=MESSAGE.shadow,
            ignore_result=True,
            origin="goondan",
            argsrepr="()",
            kwargsrepr="",
        ).headers
    assert MESSAGE.headers == theirs


def test_body_is_that_of_celerys_protocol_two() -> None:
    with Celery(broker="memory://") as app:
        theirs = app.amqp.as_task_v2(MESSAGE.task_id, MESSAGE.task, kwargs=json.loads(MESSAGE.kwargs)).body
    assert json.loads(MESSAGE.body) == json.loads(json.dumps(theirs))


def test_kombus_virtual_channel_reads_envelope() -> None:
    with Celery(broker="memory://") as app, app.connection() as connection, connection.channel() as channel:
        read = cast(Any, channel).message_to_python(json.loads(MESSAGE.to_redis()))
        assert read.payload == json.loads(MESSAGE.body)
        assert read.headers == MESSAGE.headers
        assert read.properties["correlation_id"] == MESSAGE.task_id


def test_every_message_has_delivery_tag_of_its_own() -> None:
    tags = {json.loads(MESSAGE.to_redis())["properties"]["delivery_tag"] for _ in range(3)}
    assert len(tags) == 3


def test_header_of_trace_stands_beside_those_of_protocol() -> None:
    traced = MESSAGE._replace(traceparent="00-a-b-01")

    assert traced.headers == {**MESSAGE.headers, "traceparent": "00-a-b-01"}
    assert json.loads(traced.to_redis())["headers"] == traced.headers

    stated = traced._replace(trace_context={"tracestate": "a=1", "baggage": 'b="é"'})
    assert stated.headers == {**traced.headers, "tracestate": "a=1", "baggage": 'b="é"'}
    assert json.loads(stated.to_redis())["headers"] == stated.headers
