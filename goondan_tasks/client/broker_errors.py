"""Errors of Redis as producers see them."""

import contextlib
from collections.abc import Iterator

from redis.exceptions import RedisError

from broker_config.connections import reason_unreachable, remedy_of
from goondan_tasks.errors import BrokerUnreachableError


@contextlib.contextmanager
def broker_errors(url: str) -> Iterator[None]:
    """Turn the errors of the Redis at ``url`` into ours, for the length of a ``with`` block.

    Raises:
        BrokerUnreachableError: it cannot be reached, or refuses what was asked.
    """
    try:
        yield
    except RedisError as error:
        raise BrokerUnreachableError(reason_unreachable(url, error), suggestion=remedy_of(error)) from error
