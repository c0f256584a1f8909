"""A subscription to one channel, with half the cost per message of redis-py's ``PubSub``."""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

from typing import Any

from redis import Redis
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError


class Subscription:
    """A connection that receives the messages of a channel. One thread reads; any thread may cancel."""

    def __init__(self, redis: Redis, channel: str) -> None:
        self._pool = redis.connection_pool
        self._connection: Connection = self._pool.get_connection()
        # redis-py's handler would format each message for a debug log
        self._connection._parser.set_pubsub_push_handler(lambda response: response)
        self._channel = channel
        self._is_pinged = False

    def subscribe(self) -> None:
        """Subscribe, also again after an error; messages that were published in between are lost.

        A failure is retried as for a command.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached, or does not answer in time.
        """
        self._connection.disconnect()
        self._connection.retry.call_with_retry(self._subscribe, lambda error: self._connection.disconnect())

    def _subscribe(self) -> None:
        self._connection.connect()
        self._is_pinged = False
        self._send("SUBSCRIBE", self._channel)
        self._next()

    def read(self, seconds: float | None = None) -> bytes | None:
        """Return the next message, or ``None`` if another kind of answer or nothing came.

        Wait for ``seconds``, by default for the socket's timeout. Without ``seconds``, a silent server is
        pinged.

        Raises:
            redis.exceptions.RedisError: the connection is lost, the server has not answered a ping, or it has
                turned out not to be the master.
        """
        if self._connection.should_reconnect():
            raise RedisConnectionError("the server is no longer the master")
        try:
            answer = self._next() if seconds is None else self._next(timeout=seconds)
        except RedisTimeoutError as error:
            if seconds is not None:
                return None
            if self._is_pinged:
                raise RedisConnectionError("the server does not answer") from error
            self._is_pinged = True
            self._send("PING")
            return None
        self._is_pinged = False
        is_message = isinstance(answer, list) and answer[0] == b"message"
        return answer[2] if is_message else None

    def cancel(self) -> None:
        """Unsubscribe; the answer wakes the reading thread.

        Raises:
            redis.exceptions.RedisError: the connection is lost.
        """
        self._send("UNSUBSCRIBE", self._channel)

    def close(self) -> None:
        """Close the connection; no thread may be reading it."""
        self._connection.disconnect()
        self._pool.release(self._connection)

    def _send(self, *command: str) -> None:
        # redis-py's health check would read an answer that belongs to the reading thread
        self._connection.send_command(*command, check_health=False)

    def _next(self, **options: float) -> Any:
        return self._connection.read_response(disconnect_on_error=False, push_request=True, **options)
