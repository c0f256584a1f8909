"""When a call may run: ``not_before``, a time, or ``delay``, in seconds, as producers give them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from numbers import Real
from typing import Any, Self

from goondan_tasks.contract.messages import ToolCall, epoch_milliseconds, iso_time, wall_clock
from goondan_tasks.contract.wording import shown

#: a year: the record of a call must live until its time has come
LONGEST_DELAY_SECONDS = 366 * 86_400


@dataclass(frozen=True, slots=True)
class Moment:
    """When a call may run; without both fields, at once."""

    #: ISO 8601, UTC
    not_before: str | None = None
    #: counted from the submission, by Redis' clock
    delay_ms: int = 0

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> Self:
        """Read when it may run among the fields of a call or an event.

        Raises:
            ValueError: it is not a time or a number of seconds, or there are both.
        """
        given = (fields.get(name) for name in ("not_before", "notBefore"))
        moment = next((one for one in given if one is not None), None)
        delay = fields.get("delay")
        if moment is not None and delay is not None:
            raise ValueError("delay and not_before: give one of the two")
        if delay is not None:
            return cls(delay_ms=_delay_ms(delay))
        return cls() if moment is None else cls(_time_text(moment))

    def at(self, now_ms: float) -> str | None:
        """Return the time before which the call must not run, for a call that is submitted at ``now_ms``."""
        return iso_time(math.ceil(now_ms + self.delay_ms)) if self.delay_ms else self.not_before


def is_timed(fields: Mapping[str, Any]) -> bool:
    """Return whether the fields of a call say when it may run."""
    return "delay" in fields or "not_before" in fields or "notBefore" in fields


def _delay_ms(delay: Any) -> int:
    is_number = isinstance(delay, Real) and not isinstance(delay, bool)
    if not is_number or not 0 <= delay <= LONGEST_DELAY_SECONDS:
        raise ValueError(
            f"delay: must be a number of seconds from 0 to {LONGEST_DELAY_SECONDS:,} (a year), "
            f"not {shown(delay)}"
        )
    return math.ceil(float(delay) * 1000)


def _time_text(moment: Any) -> str:
    if isinstance(moment, datetime):
        if moment.utcoffset() is None:  # also if its time zone knows none
            raise ValueError(
                "not_before: this datetime has no time zone; write datetime.now(UTC) + …, or .astimezone()"
            )
        try:
            return iso_time(math.ceil(moment.timestamp() * 1000))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"not_before: {moment} is beyond the years 1 to 9999 in UTC") from error
    if not isinstance(moment, str):
        raise ValueError(f"not_before: must be a datetime or ISO 8601 text, not {shown(moment)}")
    try:
        return iso_time(epoch_milliseconds(moment))
    except (ValueError, OverflowError) as error:
        raise ValueError(
            f"not_before: {shown(moment)} is not an ISO 8601 time such as 2026-12-01T09:00+09:00"
        ) from error


def delay_fault(call: ToolCall) -> str:
    """Return what is wrong with a call's time, or nothing. Its record would have to live too long."""
    if call.not_before is None:
        return ""
    seconds = (epoch_milliseconds(call.not_before) - wall_clock()) / 1000
    if seconds <= LONGEST_DELAY_SECONDS + 86_400:  # this machine's clock may differ from Redis'
        return ""
    return f"notBefore: {call.not_before} is more than {LONGEST_DELAY_SECONDS // 86_400} days ahead"
