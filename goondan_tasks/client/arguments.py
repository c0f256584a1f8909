"""Checks of the arguments of the client's methods: wrong ones are refused before anything is sent."""

import functools
import inspect
import itertools
import math
import time
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeVar, Unpack, cast, get_args, get_origin

from goondan_tasks.authoring.handoff import EventFields
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.failure import LONGEST_NAME
from goondan_tasks.contract.wording import printable, shown
from goondan_tasks.ledger.call_filter import STATUSES, CallFilter

#: in characters. A tool's name may be a glob, whose search takes time that grows with its length
LONGEST_TEXT = 1_000_000
LONGEST_GLOB = 1_000

#: a ``limit``, an ``offset`` in bytes, or a moment in ms
MOST = 100_000_000_000_000
LONGEST_SECONDS = 1e12

#: returns what a value must be, if it is something else
Check = Callable[[Any], str | None]

Kind = TypeVar("Kind", bound=type)

#: those that answer what is wrong with a call by its result, and one that checks what it is given itself
_UNCHECKED = {"submit", "submit_many", "call", "retrying"}


def checking_arguments(kind: Kind) -> Kind:
    """Make the public methods of a class check their arguments by their annotations (a class decorator)."""
    for name, method in list(vars(kind).items()):
        if inspect.isfunction(method) and not name.startswith("_") and name not in _UNCHECKED:
            checks = _checks_of(method)
            if checks:
                setattr(kind, name, _checking(method, checks))
    return kind


def require_seconds(what: str, value: Any) -> None:
    """Refuse a number of seconds that is none, or NaN; one below 0 means that no time is left.

    Raises:
        ToolInputValidationError: it is not valid.
    """
    if (expected := _seconds(value)) is not None:
        raise _refusal(what, expected, value)


def end_of_wait(timeout: float | None) -> float | None:
    """Return the ``time.monotonic()`` at which a wait of ``timeout`` seconds ends; raises as above."""
    if timeout is None:
        return None
    require_seconds("timeout", timeout)
    return time.monotonic() + timeout


def _checks_of(method: Any) -> dict[str, Check]:
    """Return the checks of a method's arguments by name; some have none, such as outputs."""
    annotations: dict[str, Any] = dict(method.__annotations__)
    for annotation in method.__annotations__.values():
        if get_origin(annotation) is Unpack and get_args(annotation)[0] in (CallFilter, EventFields):
            annotations |= get_args(annotation)[0].__annotations__
    annotations.pop("return", None)
    checks = ((name, _check_of(name, annotation)) for name, annotation in annotations.items())
    return {name: check for name, check in checks if check is not None}


def _check_of(name: str, annotation: Any) -> Check | None:
    if name in _BY_NAME:
        return _or_none(_BY_NAME[name], annotation)
    [kind, *others] = [one for one in _alternatives(annotation) if one is not type(None)]
    return None if others or kind not in _BY_KIND else _or_none(_BY_KIND[kind], annotation)


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    return get_args(annotation) if isinstance(annotation, UnionType) else (annotation,)


def _or_none(check: Check, annotation: Any) -> Check:
    if type(None) not in _alternatives(annotation):
        return check
    return lambda value: None if value is None else check(value)


def _checking(method: Callable[..., Any], checks: Mapping[str, Check]) -> Callable[..., Any]:
    code = method.__code__
    names = code.co_varnames[1 : code.co_argcount]

    @functools.wraps(method)
    def checked(self: Any, /, *args: Any, **fields: Any) -> Any:
        for name, value in itertools.chain(zip(names, args, strict=False), fields.items()):
            check = checks.get(name)
            if check is not None and (expected := check(value)) is not None:
                raise _refusal(f"{method.__name__}(): {name}", expected, value)
        return method(self, *args, **fields)

    return checked


def _refusal(what: str, expected: str, value: Any) -> ToolInputValidationError:
    return ToolInputValidationError(f"{what} must be {expected}, not {_named(value)}.")


def _named(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 64:
        return "such a large number"
    return printable(shown(value))


def _text(value: Any, longest: int = LONGEST_TEXT) -> str | None:
    if not isinstance(value, str):
        return "text"
    if len(value) > longest:
        return f"text of at most {longest:,} characters"
    return None if value.isascii() or _is_encodable(value) else "text without lone surrogates"


def _is_encodable(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _name(value: Any) -> str | None:
    return "a name" if value == "" else _text(value)


def _identity(value: Any) -> str | None:
    return None if isinstance(value, str) else "text"  # all others are unknown


def _approver(value: Any) -> str | None:
    is_name = isinstance(value, str) and len(value) <= LONGEST_NAME and value.isprintable()
    return None if is_name else f"a name of at most {LONGEST_NAME} printable characters"


def _glob(value: Any) -> str | None:
    return _text(value, LONGEST_GLOB)


def _searched(value: Any) -> str | None:
    return _text(value, LONGEST_GLOB)


def _status(value: Any) -> str | None:
    known = isinstance(value, str) and value in STATUSES
    return None if known else f"one of {', '.join(STATUSES)}"


def _seconds(value: Any) -> str | None:
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    is_usable = is_number and (abs(value) <= LONGEST_SECONDS or abs(cast(float, value)) == math.inf)
    return None if is_usable else "a number of seconds"


def _count(value: Any, least: int = 0) -> str | None:
    is_number = isinstance(value, Integral) and not isinstance(value, bool)
    return None if is_number and least <= int(value) <= MOST else f"a whole number from {least} to {MOST:,}"


def _limit(value: Any) -> str | None:
    return _count(value, 1)


def _moments(value: Any) -> str | None:
    are_two = isinstance(value, list | tuple) and len(value) == 2
    are_moments = are_two and all(_count(one) is None for one in value)
    return None if are_moments else "two moments in ms, those of a preview"


def _flag(value: Any) -> str | None:
    return None if isinstance(value, bool) else "True or False"


def _function(value: Any) -> str | None:
    return None if callable(value) else "a function"


def _texts(value: Any) -> str | None:
    is_list = isinstance(value, Iterable) and not isinstance(value, str | bytes | Mapping)
    return None if is_list else "a list of ids"


_BY_NAME: Mapping[str, Check] = {
    "agent": _name,
    "worker": _name,
    "by": _approver,
    "call_id": _identity,
    "tool": _glob,
    "limit": _limit,
    "between": _moments,
    "watch": _function,
    "status": _status,
    "token": _identity,
    "text": _searched,
}
_BY_KIND: Mapping[Any, Check] = {
    str: _text,
    float: _seconds,
    int: _count,
    bool: _flag,
    Iterable[str]: _texts,
}
