"""What a page is asked for, what a form asks to be done, and what answers them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, TypeVar
from urllib.parse import urlencode

from starlette.responses import Response

from broker_config import serializer
from goondan_tasks.client import Client
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.fleet.http_tokens import READ
from goondan_web.callers import Caller, MissingScopeError
from goondan_web.doors.console.rendering import PATH, Shown, at

Row = TypeVar("Row")
#: how many rows a list shows at most
USUAL_ROWS = 50


@dataclass(frozen=True, slots=True)
class Asking:
    """A request for a page, or with a form (:class:`Acting`)."""

    client: Client
    #: the names in the path, decoded
    path: Mapping[str, str]
    #: of the query, or of the form
    fields: Mapping[str, str]
    caller: Caller

    def text(self, name: str) -> str:
        """Return a field, without spaces around it; empty if it is missing."""
        return self.fields.get(name, "").strip()

    def chosen(self, name: str) -> str | None:
        """Return what a filter chooses; ``None`` for all."""
        return self.text(name) or None

    def number(self, name: str, usual: int, most: int, least: int = 1) -> int:
        """Return a whole number, or the nearest that may be.

        Raises:
            ToolInputValidationError: it is none.
        """
        text = self.text(name) or str(usual)
        if not (text.isascii() and text.isdecimal()):
            raise ToolInputValidationError(f"{name} is {text[:100]!r}, which is not a whole number.")
        return max(least, min(int(text[:15]), most))

    def part(self, rows: Sequence[Row], most: int = USUAL_ROWS) -> tuple[Sequence[Row], Mapping[str, Any]]:
        """Return the rows from the field ``from`` on, and where the first and the following ones are."""
        first = self.number("from", 1, 10**6) - 1
        kept = {name: text for name, text in self.fields.items() if name not in {"from", "format", "done"}}
        hidden = max(0, len(rows) - first - most)
        rest = {
            "first": f"?{urlencode(kept)}" if first else None,
            "next": f"?{urlencode({**kept, 'from': first + most + 1})}" if hidden else None,
            "hidden": hidden,
        }
        return rows[first : first + most], rest

    def agents(self) -> list[str]:
        """Return the names of the agents, which filters offer."""
        return sorted(self.client.agents())

    def require(self, scope: str) -> None:
        """Refuse a caller without a scope.

        Raises:
            MissingScopeError: the caller may not do this.
        """
        if not self.caller.may(scope):
            raise MissingScopeError(f"{self.caller.name} lacks the scope {scope}.")


class Acting(Asking):
    """A form that was sent."""

    __slots__ = ()

    def json(self, name: str, default: bytes) -> Any:
        """Return a field of the form that is JSON.

        Raises:
            ToolInputValidationError: it is not.
        """
        try:
            return serializer.decode(self.text(name).encode() or default)
        except serializer.NotJsonError as error:
            raise ToolInputValidationError(f"The field {name} is not JSON: {error}.") from error

    def next_page(self, usual: str) -> str:
        """Return the page to go on with: that of the console which the form names, or the usual one."""
        back, said = self.text("back"), usual.partition("?")[2]
        is_ours = back.startswith(f"{PATH}/") and back.isprintable()
        return f"{back}?{said}" if is_ours else usual

    @property
    def request_key(self) -> str | None:
        """The key of this form as it is filled in, if it has one: sent twice, it is one request."""
        return sha256(serializer.encode(dict(self.fields))).hexdigest() if self.text("once") else None


def after(word: str, *parts: str) -> str:
    """Return the address of a page that says what was done, by its word."""
    return f"{at(*parts)}?done={word}"


#: blocks; raises errors of the tree
Show = Callable[[Asking], Shown | Response]
#: blocks; returns the address of the page to go on with; raises errors of the tree
Do = Callable[[Acting], str]


@dataclass(frozen=True, slots=True)
class View:
    """A page, and what shows it."""

    path: str
    show: Show
    #: what the caller needs to see it
    scope: str = READ


@dataclass(frozen=True, slots=True)
class Act:
    """What a form does."""

    path: str
    act: Do
