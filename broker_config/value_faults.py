"""Messages for invalid values in files and settings, in place of pydantic's."""

from collections.abc import Mapping
from typing import Any

_MOST_SHOWN = 40
_PREFIX = "Value error, "

#: by pydantic's type of error; the messages contain no values, only limits of the field
_TEMPLATES: Mapping[str, str] = {
    "int_parsing": "must be a whole number",
    "int_parsing_size": "must be a smaller number",
    "int_from_float": "must be a whole number",
    "int_type": "must be a whole number",
    "float_parsing": "must be a number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "string_too_short": "must have at least {min_length} characters",
    "too_short": "must have at least {min_length} items",
    "string_too_long": "must have at most {max_length} characters",
    "dict_type": "must be an object",
    "model_type": "must be an object",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "missing": "is missing",
    "extra_forbidden": "is unknown",
    "greater_than": "must be above {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be below {lt}",
    "less_than_equal": "must be at most {le}",
    "literal_error": "must be {expected}",
    "string_pattern_mismatch": "must match {pattern}",
}


def fault_text(fault: Mapping[str, Any], *, shows_value: bool = False) -> str:
    """Return what a value must be, given pydantic's ``ErrorDetails``.

    With ``shows_value``, a short value is added. The message of a validator of our own is returned as it is.
    """
    message: str = fault["msg"]
    template = _TEMPLATES.get(fault["type"])
    if template is None:
        return message.removeprefix(_PREFIX).replace("Input should be", "must be")
    limits = fault.get("ctx", {})
    text = "must not be empty" if limits.get("min_length") == 1 else template.format(**limits)
    given = fault.get("input")
    if shows_value and isinstance(given, str | int | float) and len(str(given)) <= _MOST_SHOWN:
        return f"{text}, not {given!r}"
    return text
