"""One channel that is listened to; redis-py's ``PubSub`` does more for each message, in twice the time."""

# redis-py leaves the methods of its connections untyped
# mypy: disable-error-code="no-untyped-call"

from typing import Any

from redis import Redis
from redis.connection import Connection
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError


class Subscription:
    """A connection that hears what is published on a channel. One thread reads it, any may cancel it."""

    def __init__(self, redis: Redis, channel: str) -> None:
        self._pool = redis.connection_pool
        self._connection: Connection = self._pool.get_connection()
        # redis-py's own handler formats each message for a log that is not read
        self._connection._parser.set_pubsub_push_handler(lambda response: response)
        self._channel = channel
        self._is_questioned = False

    def subscribe(self) -> None:
        """Begin, or begin again after an error: what was published meanwhile is missed.

        It is retried as commands are.

        Raises:
            redis.exceptions.RedisError: the server cannot be reached, or does not answer in time.
        """
        self._connection.disconnect()
        self._connection.retry.call_with_retry(self._subscribe, lambda error: self._connection.disconnect())

    def _subscribe(self) -> None:
        self._connection.connect()
        self._is_questioned = False
        self._send("SUBSCRIBE", self._channel)
        self._next()

    def read(self, seconds: float | None = None) -> bytes | None:
        """Return the next message; ``None`` for news of the subscription itself, or of none for a while.

        That is ``seconds``, or the socket's timeout; a server that is silent for that long is asked whether
        it lives.

        Raises:
            redis.exceptions.RedisError: the connection is lost, or the server has not answered that.
        """
        try:
            answer = self._next() if seconds is None else self._next(timeout=seconds)
        except RedisTimeoutError as error:
            if seconds is not None:
                return None
            if self._is_questioned:
                raise RedisConnectionError("the server does not answer") from error
            self._is_questioned = True
            self._send("PING")
            return None
        self._is_questioned = False
        is_message = isinstance(answer, list) and answer[0] == b"message"
        return answer[2] if is_message else None

    def cancel(self) -> None:
        """End the subscription: the answer wakes the thread that reads.

        Raises:
            redis.exceptions.RedisError: the connection is lost.
        """
        self._send("UNSUBSCRIBE", self._channel)

    def close(self) -> None:
        """Close the connection, which is not read any more."""
        self._connection.disconnect()
        self._pool.release(self._connection)

    def _send(self, *command: str) -> None:
        # redis-py's own check of the connection would read an answer, which is for the thread that reads
        self._connection.send_command(*command, check_health=False)

    def _next(self, **options: float) -> Any:
        return self._connection.read_response(disconnect_on_error=False, push_request=True, **options)
