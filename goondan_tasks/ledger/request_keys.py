"""The keys that producers give to their requests, so that a request that is sent again is made once."""

import hashlib
import json
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

from broker_config.serializer import well_formed
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    GoondanError,
    ToolCallConflictError,
    ToolInputValidationError,
)
from goondan_tasks.ledger.record import CallRecords


@contextmanager
def made_once(records: CallRecords, key: str, content: Any, *, seconds: int) -> Iterator[str]:
    """Yield the id of the request that has ``key``: the same one each time, for ``seconds``.

    ``content`` is everything that a repetition must repeat. If the block refuses the first request, the key
    is free again; after an outage it stays taken, since the request may have been accepted.

    Raises:
        ToolCallConflictError: the key was used with other content.
        ToolInputValidationError: the content has no JSON form.
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    name = records.keys.request_key(key)
    digest = _digest(content)
    with records.redis.pipeline() as pipe:
        pipe.set(name, digest, nx=True, ex=seconds)
        pipe.get(name)
        is_new, stored = cast("tuple[Any, bytes | None]", pipe.execute())
    if stored is not None and stored != digest.encode():
        raise ToolCallConflictError(
            "This key was used for another request.",
            suggestion="Take a new key for a new request; to repeat one, send the same fields.",
        )
    try:
        yield uuid.uuid5(uuid.NAMESPACE_URL, name).hex
    except BrokerUnreachableError:
        raise
    except GoondanError:
        if is_new:
            records.redis.delete(name)
        raise


def _digest(content: Any) -> str:
    try:
        text = json.dumps(content, sort_keys=True, separators=(",", ":"), default=str)
    except (RecursionError, TypeError, ValueError) as error:
        raise ToolInputValidationError(f"The request has no JSON form: {str(error)[:200]}.") from error
    return hashlib.sha256(well_formed(text).encode()).hexdigest()
