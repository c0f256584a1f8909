"""Celery's task message, protocol 2, in kombu's envelope for virtual transports.

Producers write it without Celery: no ``saferepr``, no connection pool, and one script can store the
call and queue it. Sources: Celery documentation "Message Protocol", celery/app/amqp.py
``as_task_v2``, kombu/transport/virtual/base.py ``prepare_message``.
"""

import os
from dataclasses import dataclass
from typing import Any

from broker_config import serializer


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
        """Return what stands in the queue's Redis list; its beginning is read by ``accompany.lua``."""
        properties = {
            "correlation_id": self.task_id,
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": self.queue},
            "priority": 0,
            "delivery_tag": os.urandom(16).hex(),
        }
        return _ENVELOPE % (
            serializer.encode(self._own_headers)[1:-1],
            _COMMON_HEADERS_JSON,
            serializer.encode(self.body.decode("utf-8")),
            serializer.encode(properties),
        )


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
_COMMON_HEADERS_JSON = serializer.encode(_COMMON_HEADERS)[1:-1]

#: no body_encoding: kombu takes the body as it is
_ENVELOPE = (
    b'{"headers":{"lang":"py",%b,%b},"body":%b,'
    b'"content-encoding":"utf-8","content-type":"application/json","properties":%b}'
)
