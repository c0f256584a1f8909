"""Reading keys of Redis that other programs may have written: a damaged one concerns what it is about."""

import functools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TypeVar

from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.refusals import is_script_fault, refusal_text
from goondan_tasks.contract.errors import RecordDamagedError
from goondan_tasks.contract.failure import truncate
from goondan_tasks.contract.messages import WireModel, iso_time
from goondan_tasks.contract.on_error import OnError

logger = logging.getLogger(__name__)

#: how many characters of the reason are logged
LONGEST_REASON = 300

Record = TypeVar("Record", bound=WireModel)


def read_row(kind: type[Record], row: bytes | None, name: str) -> Record | None:
    """Read the row called ``name``; one that is damaged, or of a newer version, is logged and left out."""
    if row is None:
        return None
    try:
        return kind.from_wire(serializer.decode(row))
    except ValueError as error:
        report_row(name, " ".join(str(error).split()))
        return None


def whole_number(value: bytes | None, name: str) -> int:
    """Read a count or a time in ms; a damaged one is logged, and counts as 0 like one that is absent."""
    try:
        number = float(value or 0)
        if 0 <= number < 1e15:  # as numbers.lua does
            return int(number)
        reason = f"it is {number}"
    except ValueError as error:
        reason = str(error)
    report_row(name, reason)
    return 0


def time_text(value: bytes | None, name: str) -> str | None:
    """Write a time in ms as ISO 8601; a damaged one is logged, and left out like one that is absent."""
    if not value:
        return None
    try:
        if (number := float(value)) >= 0:
            return iso_time(number)
        reason = f"it is {number}"
    except (ValueError, OverflowError, OSError) as error:  # also years after 9999
        reason = str(error)
    report_row(name, reason)
    return None


def naming(*keys: str) -> OnError:
    """Report an error of Redis that is due to the contents of one of the ``keys``, for a ``with`` block.

    Raises:
        RecordDamagedError: the contents are those of another program.
    """
    return OnError(partial(name_keys, keys))


def name_keys(keys: Iterable[str], error: BaseException) -> None:
    """Raise a RecordDamagedError for an error as :func:`naming` does; return for all others."""
    if isinstance(error, ResponseError) and is_script_fault(error):
        named = " or ".join(map(repr, keys))
        text = f"A Redis key is damaged{named and f', {named}'}: {refusal_text(error)}"
        raise RecordDamagedError(text) from error


@contextmanager
def only_advice(name: str) -> Iterator[None]:
    """Log once, and go on after the ``with`` block, if the key called ``name`` is damaged."""
    try:
        with naming(name):
            yield
    except RecordDamagedError as error:
        report_row(name, error.message)


@functools.lru_cache(maxsize=256)
def report_row(name: str, reason: str) -> None:
    """Log once that a row is left out: tables are read every few seconds."""
    logger.warning("%s in Redis cannot be read and is left out: %s", name, truncate(reason, LONGEST_REASON))
