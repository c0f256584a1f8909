"""Celery's task message, protocol 2, in kombu's envelope for virtual transports.

Producers write it without Celery: no ``saferepr``, no connection pool, and one script can store the
call and queue it. Sources: Celery documentation "Message Protocol", celery/app/amqp.py
``as_task_v2``, kombu/transport/virtual/base.py ``prepare_message``.
"""

import os
from dataclasses import dataclass
from typing import Any

from broker_config import serializer
from broker_config.serializer import quote


@dataclass(frozen=True, slots=True)
class TaskMessage:
    """One task to be run by whoever consumes ``queue``."""

    task: str
    task_id: str
    queue: str
    #: a JSON object
    kwargs: bytes
    #: the name that Flower shows instead of ``task``
    shadow: str | None = None
    #: what Flower shows of the arguments
    kwargsrepr: str = ""
    origin: str = "goondan"
    root_id: str | None = None
    parent_id: str | None = None
    #: W3C's header, for systems that join the trace
    traceparent: str | None = None

    @property
    def headers(self) -> dict[str, Any]:
        """The task headers of protocol 2."""
        return {"lang": "py", **self._own_headers, **_COMMON_HEADERS}

    @property
    def _own_headers(self) -> dict[str, Any]:
        joining = {} if self.traceparent is None else {"traceparent": self.traceparent}
        return {
            "task": self.task,
            "id": self.task_id,
            "shadow": self.shadow,
            "root_id": self.root_id or self.task_id,
            "parent_id": self.parent_id,
            "kwargsrepr": self.kwargsrepr,
            "origin": self.origin,
            **joining,
        }

    @property
    def body(self) -> bytes:
        """The body: ``[args, kwargs, embed]``."""
        return b'[[],%b,{"callbacks":null,"errbacks":null,"chain":null,"chord":null}]' % self.kwargs

    def to_redis(self) -> bytes:
        """Return what stands in the queue's Redis list; its beginning is read by ``claim_on_reserve.lua``."""
        headers = (
            f'"task":{quote(self.task)},"id":{quote(self.task_id)},"shadow":{_text(self.shadow)},'
            f'"root_id":{quote(self.root_id or self.task_id)},"parent_id":{_text(self.parent_id)},'
            f'"kwargsrepr":{quote(self.kwargsrepr)},"origin":{quote(self.origin)}'
        )
        if self.traceparent is not None:
            headers = f'{headers},"traceparent":{quote(self.traceparent)}'
        body, task_id = quote(self.body.decode()), quote(self.task_id)
        tag = os.urandom(16).hex()
        return (_ENVELOPE % (headers, body, task_id, quote(self.queue), tag)).encode()


def _text(value: str | None) -> str:
    return "null" if value is None else quote(value)


#: the headers that all messages have alike
_COMMON_HEADERS: dict[str, Any] = {
    "eta": None,
    "expires": None,
    "group": None,
    "group_index": None,
    "retries": 0,
    "timelimit": [None, None],
    "argsrepr": "()",
    "ignore_result": True,
    "replaced_task_nesting": 0,
    "stamped_headers": None,
    "stamps": {},
}

#: no body_encoding: kombu takes the body as it is
_ENVELOPE = (
    '{"headers":{"lang":"py",%s,'
    + serializer.encode(_COMMON_HEADERS)[1:-1].decode()
    + '},"body":%s,"content-encoding":"utf-8","content-type":"application/json",'
    '"properties":{"correlation_id":%s,"reply_to":"","delivery_mode":2,'
    '"delivery_info":{"exchange":"","routing_key":%s},"priority":0,"delivery_tag":"%s"}}'
)
