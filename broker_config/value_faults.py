"""Messages for invalid values in files and settings, in place of pydantic's."""

from collections.abc import Callable, Mapping
from typing import Any

_MOST_SHOWN = 40
_PREFIX = "Value error, "

#: by pydantic's type of error; the messages contain no values, only limits of the field
_WORDS: Mapping[str, Callable[[Mapping[str, Any]], str]] = {
    "int_parsing": lambda limits: "must be a whole number",
    "int_parsing_size": lambda limits: "must be a smaller number",
    "int_from_float": lambda limits: "must be a whole number",
    "int_type": lambda limits: "must be a whole number",
    "float_parsing": lambda limits: "must be a number",
    "float_type": lambda limits: "must be a number",
    "finite_number": lambda limits: "must be a finite number",
    "string_type": lambda limits: "must be text",
    "string_too_short": lambda limits: _at_least(limits["min_length"], "characters"),
    "too_short": lambda limits: _at_least(limits["min_length"], "items"),
    "string_too_long": lambda limits: f"must have {limits['max_length']} characters at most",
    "dict_type": lambda limits: "must be an object",
    "model_type": lambda limits: "must be an object",
    "tuple_type": lambda limits: "must be a list",
    "list_type": lambda limits: "must be a list",
    "bool_type": lambda limits: "must be true or false",
    "bool_parsing": lambda limits: "must be true or false",
    "missing": lambda limits: "is missing",
    "greater_than": lambda limits: f"must be above {limits['gt']}",
    "greater_than_equal": lambda limits: f"must be at least {limits['ge']}",
    "less_than": lambda limits: f"must be below {limits['lt']}",
    "less_than_equal": lambda limits: f"must be at most {limits['le']}",
    "literal_error": lambda limits: f"must be {limits['expected']}",
    "string_pattern_mismatch": lambda limits: f"must match {limits['pattern']}",
}


def _at_least(count: int, what: str) -> str:
    return "must not be empty" if count == 1 else f"must have {count} {what} at least"


def fault_text(fault: Mapping[str, Any], *, shows_value: bool = False) -> str:
    """Return what a value must be, given pydantic's ``ErrorDetails``.

    With ``shows_value``, a short value is added. The message of a validator of our own is returned as it is.
    """
    message: str = fault["msg"]
    words = _WORDS.get(fault["type"])
    if words is None:
        return message.removeprefix(_PREFIX).replace("Input should be", "must be")
    text = words(fault.get("ctx", {}))
    given = fault.get("input")
    if shows_value and isinstance(given, str | int | float) and len(str(given)) <= _MOST_SHOWN:
        return f"{text}, not {given!r}"
    return text
