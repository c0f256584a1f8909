"""What a plain YAML scalar means: the core schema of YAML 1.2 (§10.3.2), finite numbers only.

Unlike YAML 1.1, ``yes``, ``no``, ``on``, ``22:22``, ``1_000`` and ``2024-01-01`` are strings.
"""

import math
import re

from goondan_tasks.bundle.findings import ConfigCode, FieldError

Scalar = str | int | float | bool | None

_WORDS: dict[str, Scalar] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_BASES = {"0o": 8, "0x": 16}


def plain_scalar(text: str) -> Scalar:
    """Return the value of an unquoted scalar.

    Raises:
        FieldError: it is a number that JSON cannot carry.
    """
    if text in _WORDS:
        return _WORDS[text]
    try:
        if _INTEGER.fullmatch(text):
            return int(text, _BASES.get(text[:2], 10))
        number = float(text) if _FLOAT.fullmatch(text) else None
    except ValueError:
        number = math.inf
    if _NOT_FINITE.fullmatch(text) or (number is not None and not math.isfinite(number)):
        raise FieldError(
            f"{text[:40]} is no number that JSON can carry",
            "Write a finite number, or quote it if it is text.",
            ConfigCode.PARSE_ERROR,
        )
    return text if number is None else number
