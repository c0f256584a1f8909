"""The filter by which pages select calls: its fields in addresses and forms, and what they mean."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from goondan_tasks.ledger.call_filter import CallFilter
from goondan_web.doors.console.asking import Asking
from goondan_web.doors.console.rendering import at

#: the fields that the client's filter has, too
_SAME = ("tool", "instance", "status", "code", "text", "subject", "fingerprint")
#: the fields of addresses and forms; ``since`` is an age in seconds
FILTER_FIELDS = ("agent", *_SAME, "since")
#: the ages that a form offers, in seconds
TIMES = {"900": "15 minutes", "3600": "hour", "21600": "6 hours", "86400": "day"}
_WILD = re.compile(r"([*?[])")


@dataclass(frozen=True, slots=True)
class ChosenFilter:
    """A filter as a person has chosen it."""

    agent: str | None
    wanted: CallFilter
    #: its fields in addresses and forms, without empty ones
    fields: Mapping[str, str]


def chosen_filter(asked: Asking) -> ChosenFilter:
    """Return the filter of an address, or of a form.

    Raises:
        ToolInputValidationError: the age is not a whole number.
    """
    given = {name: text for name in FILTER_FIELDS if (text := asked.text(name))}
    wanted = CallFilter(**{name: given.get(name) for name in _SAME})  # type: ignore[typeddict-item]
    if "since" in given:
        wanted["newer_than"] = float(asked.number("since", 0, 10**9))
    return ChosenFilter(given.get("agent"), wanted, given)


def link(*parts: str, **query: str | None) -> str:
    """Return an address of the console with a query, without what is empty."""
    text = urlencode({name: value for name, value in query.items() if value})
    return f"{at(*parts)}?{text}" if text else at(*parts)


def literal(tool: str) -> str:
    """Return a glob that means this tool alone."""
    return _WILD.sub(r"[\1]", tool)
