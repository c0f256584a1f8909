"""Celery's side of messages: calls and events go to our pool, others become dead letters.

A worker reserves no more messages than it has free slots, so that no call waits while another worker is idle.
While all calls are short it reserves more, since a trip to the broker costs more than a short call does. As
soon as one takes long, those that wait for a slot return to their queue. See :mod:`workers.pool.lead`.
"""

import itertools
import logging
from collections.abc import Callable, Mapping
from typing import Any

from celery import bootsteps
from celery.app.task import Context, Task
from celery.exceptions import NotRegistered
from celery.utils.saferepr import saferepr
from celery.worker import state
from celery.worker import strategy as celery_strategy
from celery.worker.consumer import Consumer as CeleryConsumer
from kombu.exceptions import ContentDisallowed, DecodeError

from broker_config.options import celery_url
from broker_config.queues import TOOL_CALL_TASK
from broker_config.scripts import ClaimOnReserve
from broker_config.settings import Settings, hidden_password
from broker_config.transport import require_registered, use_plain_json, use_reservations
from goondan_tasks.contract.errors import ConfigError, ToolCancelledError, ToolInputValidationError
from goondan_tasks.contract.events import EVENT_TASKS
from goondan_tasks.fleet.pauses import Paused
from workers.delivery.delivery import LONGEST_SHOWN
from workers.outcome import outcome_of
from workers.pool.drain import note_shutdown
from workers.pool.monitoring import CallRequest, incoming_of, shown_headers
from workers.pool.pool import CallPool, refuse
from workers.runtime import process_runtime

logger = logging.getLogger(__name__)

LONGEST_TASK_ID = 200

#: what agents' queues carry
TASKS = (TOOL_CALL_TASK, *EVENT_TASKS)


#: what a message's body may name besides the task
_CANVAS = {
    "chord": "the body of a chord",
    "chain": "further tasks of a chain",
    "callbacks": "callbacks (link)",
    "errbacks": "error callbacks (link_error)",
}


class Consumer(CeleryConsumer):
    """Celery's consumer, made robust against any message: one that holds no call becomes a dead letter.

    Some messages that it cannot read end Celery's own consumer, and then that of the next worker that gets
    them; others it drops.
    """

    # celery-types do not know them
    task_consumer: Any
    connection_errors: tuple[type[Exception], ...]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Make the consumer of a pool.

        Raises:
            SystemExit: the pool or the broker is not ours.
        """
        # not in a signal of Celery's, which goes on after an error of its receivers
        require_pool(kwargs.get("pool"))
        use_plain_json()
        use_reservations()
        super().__init__(*args, **kwargs)
        require_broker(self.app.conf.broker_read_url, Settings.load().redis_url)

    def connection_for_read(self, heartbeat: float | None = None) -> Any:
        """Connect to the broker, before anything is consumed.

        Raises:
            RuntimeError: what takes or decodes messages is not ours; the worker ends.
        """
        connection = super().connection_for_read(heartbeat)
        require_registered(connection)
        return connection

    def create_task_handler(self, *args: Any) -> Callable[[Any], object]:
        """Make the handler of messages; there is a new one after each reconnection."""
        handle = super().create_task_handler(*args)
        self.task_consumer.channel.on_no_message = self._bury_data

        def on_task_received(message: Any) -> None:
            task = message.headers.get("task")
            if task not in TASKS:  # above all Celery's own tasks: no producer may run them here
                return self.on_unknown_task(None, message, KeyError(task))
            error = outcome_of(lambda: handle(message)).error
            if error is None:
                return None
            if not isinstance(error, Exception) or self._is_of_connection(error):
                raise error
            logger.error("a message cannot be handled", exc_info=error)
            return self.bury(message, repr(error))

        return on_task_received

    def _is_of_connection(self, error: Exception) -> bool:
        # kombu counts KeyError among them, but a message may cause one as well
        return isinstance(error, self.connection_errors) and not isinstance(error, LookupError)

    def on_unknown_message(self, body: Any, message: Any) -> None:
        """Reject a message that names no task."""
        self.bury(message, "it names no task")

    def on_unknown_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Reject a message that names an unknown task; its producer gets a result, as from Celery."""
        name, task_id = message.headers.get("task"), message.headers.get("id")
        if _is_task_id(task_id):
            error = NotRegistered(saferepr(name, LONGEST_TASK_ID))
            embed = {} if _fault_of(message) else message.payload[2]
            self.app.backend.mark_as_failure(task_id, error, request=_context_of(message, embed))
        self.bury(message, f"there is no task {saferepr(name, LONGEST_TASK_ID)}")

    def refuse_canvas(self, message: Any, embed: Mapping[str, Any]) -> None:
        """Refuse a call with which others are to be sent, as in a chain or chord, and fail those others.

        The ledger keeps only the call: they could get lost, or be sent twice, and the producer that waits
        for the last of them would wait forever.
        """
        parts = " and ".join(words for name, words in _CANVAS.items() if embed.get(name))
        error = ToolInputValidationError(
            f"The message has {parts}, which the workers of agents do not send. The call was not run.",
            suggestion="Send the call alone, and wait for its result, for example in a task of your own; "
            "a call may be the last task of a chain, or the body of a chord.",
        )
        # the call itself is answered as any other; what it would have sent fails as if it were the chain
        backend: Any = self.app.backend
        request = _context_of(message, {**embed, "chain": None})
        backend.mark_as_failure(request.id, error, request=request, store_result=False)
        backend._fail_chain([*(embed.get("chain") or []), *(embed.get("callbacks") or [])], error)
        process_runtime().delivery.refuse(incoming_of(message), self.hostname, error)
        message.ack_log_error(logger, self.connection_errors)

    def on_invalid_task(self, body: Any, message: Any, exc: Exception) -> None:
        """Reject a message that Celery refuses."""
        self.bury(message, str(exc))

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Reject a message that cannot be decoded."""
        self.bury(message, f"its body cannot be read: {exc}")

    def bury(self, message: Any, reason: str) -> None:
        """Make a dead letter of a message, answer the clients that wait for its call, and acknowledge it."""
        headers = message.headers
        what = {"headers": headers, "body": message.body}
        self._bury(str(message.delivery_info.get("routing_key")), saferepr(what, LONGEST_SHOWN), reason)
        if headers.get("task") in TASKS and _is_task_id(headers.get("id")):
            error = ToolInputValidationError(f"The message cannot be read: {reason}.")
            incoming = incoming_of(message, is_readable=False)
            process_runtime().delivery.refuse(incoming, self.hostname, error)
        if not message.acknowledged:
            message.ack_log_error(logger, self.connection_errors)

    def _bury_data(self, queue: str, data: bytes, reason: str) -> None:
        self._bury(queue, repr(data[:LONGEST_SHOWN]), reason)

    def _bury(self, queue: str, shown: str, reason: str) -> None:
        plain = [text.encode("ascii", "backslashreplace").decode() for text in (reason, shown)]
        process_runtime().delivery.bury(queue, self.hostname, plain[0][:LONGEST_SHOWN], plain[1])


def strategy(task: Task[Any, Any], app: Any, consumer: Any, **options: Any) -> Callable[..., Any]:
    """Make the handler of one task (Celery's ``Task.Strategy``).

    Celery acknowledges and forgets a message whose body it cannot read, so that its producer waits forever; a
    body of another form ends the worker (``on_task_received`` in celery/worker/consumer/consumer.py). Celery
    silently drops a revoked message; here its call ends as cancelled.
    """
    handle = celery_strategy.default(task, app, consumer, **options)

    def on_message(message: Any, body: Any, ack: Any, reject: Any, callbacks: Any) -> Any:
        fault = _fault_of(message)
        if fault is not None:
            return consumer.bury(message, fault)
        embed = message.payload[2]
        if any(embed.values()):
            return consumer.refuse_canvas(message, embed)
        if message.headers["id"] in state.revoked:
            error = ToolCancelledError("The call was revoked.")
            process_runtime().delivery.refuse(incoming_of(message), consumer.hostname, error)
            return message.ack_log_error(logger, consumer.connection_errors)
        if _waits_for_celery(message.headers):
            message.headers.update(shown_headers(incoming_of(message)))
            return handle(message, body, ack, reject, callbacks)
        return _take(consumer.pool, CallRequest.of_message(message, consumer))

    return on_message


def require_pool(pool: object) -> None:
    """Refuse a worker that was started with one of Celery's own pools.

    Raises:
        SystemExit: it was.
    """
    if not isinstance(pool, CallPool):
        kind = type(pool).__module__.rpartition(".")[2]
        refuse(
            ConfigError(
                f"Calls are not carried out by Celery's pool {kind}: it would run them without their limits, "
                "leases and cancels.",
                suggestion="Leave out -P/--pool. For handlers that hold the interpreter, set "
                "`isolation: process` on their Tool; for more calls at once, raise --concurrency.",
            )
        )


def require_broker(named: str, redis_url: str) -> None:
    """Refuse a worker that Celery would let take messages from elsewhere, by ``-b`` or its own variables.

    Raises:
        SystemExit: ``named``, Celery's broker, is not the Redis at ``redis_url``.
    """
    if named != celery_url(redis_url):
        refuse(
            ConfigError(
                f"Celery was given the broker {hidden_password(named)}, but calls lie in the Redis or Valkey "
                f"of GOONDAN_REDIS_URL, {hidden_password(redis_url)}.",
                suggestion="Leave out -b/--broker, unset CELERY_BROKER_URL and CELERY_BROKER_READ_URL, and "
                "name the server in GOONDAN_REDIS_URL.",
            )
        )


def _take(pool: CallPool, request: CallRequest) -> None:
    incoming = request.incoming
    if incoming.is_shutdown:
        note_shutdown(process_runtime(), incoming.wire)
        request.acknowledge()
    elif incoming.is_only_told:
        request.acknowledge()
    else:
        pool.take(request)


def _waits_for_celery(headers: Mapping[str, Any]) -> bool:
    """Return whether the message has a countdown or an expiry, which Celery itself handles."""
    return bool(headers.get("eta") or headers.get("expires"))


def _fault_of(message: Any) -> str | None:
    if not _is_task_id(message.headers.get("id")):
        return "it has no task id"
    try:
        payload = message.payload
    except (DecodeError, ContentDisallowed, ValueError) as error:
        return str(error)
    if not isinstance(payload, list) or len(payload) != 3:
        return "its body is not [args, kwargs, embed]"
    if isinstance(payload[2], dict) and (not any(payload[2].values()) or _names_tasks(payload[2])):
        return None
    return "its body names callbacks that are not tasks"


def _context_of(message: Any, embed: Mapping[str, Any]) -> Context:
    """Return a message's task request, with what Celery needs to fail the tasks that depend on it."""
    return Context({**message.headers, **embed, "delivery_info": {}})


def _names_tasks(embed: Mapping[str, Any]) -> bool:
    lists = [embed.get(name) or [] for name in ("callbacks", "errbacks", "chain")]
    if not all(isinstance(tasks, list) for tasks in lists):
        return False
    tasks = [*itertools.chain(*lists), *([embed["chord"]] if embed.get("chord") else [])]
    return all(isinstance(task, dict) and isinstance(task.get("task"), str) for task in tasks)


def _is_task_id(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TASK_ID and value.isprintable()


class Reservations(bootsteps.StartStopStep):
    """The consumer step that lets the lead take the consumer's queues."""

    #: extensions may register tools before the worker is present
    requires = ("celery.worker.consumer.tasks:Tasks", "workers.pool.heartbeat:Heartbeat")

    def __init__(self, consumer: Any, **options: Any) -> None:
        #: what the current terms are made of: the revision of the bundle, its registry's version, the agents,
        #: what is paused
        self._told: tuple[str | None, int, tuple[str, ...], Paused] | None = None
        super().__init__(consumer, **options)

    def start(self, consumer: Any) -> None:
        """Attach the lead, also after each reconnection."""
        channel, pool = consumer.task_consumer.channel, consumer.pool
        pool.consumer = consumer
        channel.leave_to = pool.lead.look_again
        pool.channel = channel
        _prefetch_slots_only(consumer)
        self._told = None
        pool.deliver_waiting()
        pool.lead.attach(consumer.hostname, lambda: channel.queues, lambda: self._terms(consumer))

    def stop(self, consumer: Any) -> None:
        """Take nothing until there is a connection again."""
        consumer.pool.lead.detach()

    def _terms(self, consumer: Any) -> ClaimOnReserve | None:
        """Return the terms on which calls are claimed, if they have changed."""
        runtime = process_runtime()
        revisions = runtime.revisions
        # for all agents that the process serves: it may resume a paused queue
        active, paused = revisions.active, runtime.limiter.paused
        current = active.ref, active.registry.version, revisions.served, paused
        if current == self._told:
            return None
        self._told = current
        return runtime.delivery.claim_on_reserve(consumer.hostname, revisions.served)


def _prefetch_slots_only(consumer: Any) -> None:
    """Override a prefetch multiplier, which would reserve messages without a free slot."""
    consumer.prefetch_multiplier = 1
    consumer.initial_prefetch_count = consumer.qos.value = consumer.pool.num_processes
    consumer.qos.update()
