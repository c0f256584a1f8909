"""Flower with every agent's queue and without dead workers: ``python -P -m`` and this module.

Flower 2.2 lists the queues that workers consume, and the configured ones only if there is no worker at all
(flower/views/__init__.py, ``get_active_queue_names``). So the queue of an agent whose last worker has died
would vanish from the broker page, just when its backlog grows. Flower also keeps the last answers of
offline workers, such as the tasks they run, forever. While Redis is away it doubles the pause between two
attempts to receive events without a bound (flower/events.py, ``Events.run``), so that it would see nothing
after an outage for as long as the outage has lasted.
"""

import asyncio
import atexit
import contextlib
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from flower import events
from flower.app import Flower
from flower.events import Events, EventsState
from flower.utils.broker import RedisSentinel
from flower.views import BaseHandler
from redis.exceptions import RedisError
from tornado.web import ErrorHandler

from broker_config.connections import connect
from broker_config.keys import Keys
from broker_config.options import declared_queues
from broker_config.settings import Settings
from goondan_tasks import celery
from goondan_tasks.contract.logs import configure_logging
from goondan_tasks.fleet.agent_registry import AgentRegistry
from goondan_tasks.machine.process import is_loopback, names_this_machine

_take_event = EventsState.event
_find_handler = Flower.find_handler

#: how long Flower pauses between two attempts to receive events; its own first pause
RETRY_SECONDS = 2.0


class QueueNames:
    """All queues: those of the bundle, of announced agents, and of running workers."""

    def __init__(self, agent_registry: AgentRegistry) -> None:
        self._agent_registry = agent_registry
        self._announced: set[str] = set()

    def for_page(self, page: Any) -> list[str]:
        """Return their names; ``page`` is Flower's handler of one request."""
        with contextlib.suppress(RedisError):  # the page itself says that the broker cannot be reached
            self._announced = {queue.name for queue in declared_queues(self._agent_registry.agents())}
        configured = {queue.name for queue in page.capp.conf.task_queues or ()}
        workers = page.application.workers.values()
        consumed = {queue["name"] for worker in workers for queue in worker.get("active_queues", ())}
        return sorted(configured | self._announced | consumed)


def present_workers(app: Any) -> Any:
    """Return the answers of workers, without those of workers that are offline."""
    answers = app.inspector.workers
    for name, worker in app.events.state.workers.items():
        if not worker.alive:
            answers.pop(name, None)
    return answers


def keep_workers_only(state: Any, event: dict[str, Any]) -> None:
    """Handle an event; drop the sender again if it is not a worker, but a program that ended a call."""
    _take_event(state, event)
    name = event["hostname"]
    counts = state.counter[name]
    if event["type"] == "worker-offline" and not (counts["worker-heartbeat"] or counts["worker-online"]):
        state.workers.pop(name, None)


class _Again(Exception):  # noqa: N818 - it is no error
    """Ends Flower's loop after a pause, to begin it with a short one again."""


class BoundedPauses:
    """Stands for the module ``time`` in Flower's module of events."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def sleep(_: float) -> NoReturn:
        """Pause before the next attempt to receive events."""
        time.sleep(RETRY_SECONDS)
        raise _Again


def receiving(run: Callable[[Any], None]) -> Callable[[Any], None]:
    """Return Flower's loop that receives events with pauses that do not grow."""

    def receive(thread: Any) -> None:
        while True:
            with contextlib.suppress(_Again):
                return run(thread)

    return receive


def queue_lengths(url: str, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return the lengths of queues as Flower's broker page takes them.

    Raises:
        redis.exceptions.RedisError: the broker cannot be reached.
    """
    with connect(url, name="goondan-flower") as redis, redis.pipeline(transaction=False) as pipe:
        for name in names:
            pipe.llen(name)
        lengths = pipe.execute()
    return [{"name": name, "messages": length} for name, length in zip(names, lengths, strict=True)]


def handler_of(app: Any, request: Any, **options: Any) -> Any:
    """Return what answers a request; refuse those of a web page whose name resolves to this machine.

    As in the guard of goondan_web, this is for loopback addresses without
    authentication.
    """
    known = app.options
    is_open = is_loopback(known.address or "") and not (known.basic_auth or known.auth)
    if is_open and not names_this_machine(request.host):
        return app.get_handler_delegate(request, ErrorHandler, {"status_code": 403})
    return _find_handler(app, request, **options)


def main() -> None:
    """Run Flower through Celery's command line."""
    settings = Settings.load()
    configure_logging(settings)  # with a handler in place, Tornado adds none
    names = QueueNames(
        AgentRegistry(connect(settings.redis_url, name="goondan-flower"), Keys(settings.namespace))
    )
    Flower.workers = property(present_workers)
    EventsState.event = keep_workers_only
    Flower.find_handler = handler_of
    events.time, Events.run = BoundedPauses, receiving(Events.run)
    # Flower would ask one Sentinel only
    RedisSentinel._get_redis_client = lambda *_: None
    RedisSentinel.queues = lambda _, named: asyncio.to_thread(queue_lengths, settings.redis_url, list(named))
    BaseHandler.get_active_queue_names = lambda page: names.for_page(page)
    try:
        celery.main()
    except SystemExit as ended:
        # Python would wait for Flower's threads, which retry an unreachable broker forever
        atexit._run_exitfuncs()
        os._exit(ended.code if isinstance(ended.code, int) else ended.code is not None)


if __name__ == "__main__":
    main()
