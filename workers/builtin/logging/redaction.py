"""What must not stand in a log: the values of keys that look secret, and secrets in the midst of text."""

import re
from collections.abc import Mapping
from typing import Any

REDACTED = "[redacted]"

LONGEST_TEXT = 1_000
MOST_ITEMS = 50
DEEPEST = 8

_WORDS = (
    r"pass[-_]?(?:word|wd|phrase|code)|passwd|pwd|secret|token(?!s)|api[-_]?key|access[-_]?key|private[-_]?key"
    r"|authorization|credential|cookie|session[-_]?id|signature"
)
_SECRET_KEY = re.compile(rf"(?i){_WORDS}|^auth$")
#: ``password=…``, ``"apiKey": "…"``, ``Authorization: Bearer …``
_ASSIGNED = re.compile(
    rf"""(?ix)
    ( [\w-]* (?:{_WORDS}) [\w-]* ["']? \s* [:=] \s* ["']? )
    (?: (?:bearer|basic) \s+ )?
    [^\s"',;&}})\]]+
    """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
#: ``https://user:password@host``
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


def redacted(value: Any, depth: int = 0) -> Any:
    """Return a copy of JSON for the log: without secrets, and cut where it is long or deep."""
    if isinstance(value, str):
        return redacted_text(value)
    if not isinstance(value, Mapping | list | tuple):
        return value
    if depth == DEEPEST:
        return "…"
    if isinstance(value, Mapping):
        shown = list(value.items())[:MOST_ITEMS]
        cut: dict[str, Any] = {"…": len(value) - MOST_ITEMS} if len(value) > MOST_ITEMS else {}
        return {str(key): _member(key, item, depth + 1) for key, item in shown} | cut
    more = ["…"] if len(value) > MOST_ITEMS else []
    return [redacted(item, depth + 1) for item in value[:MOST_ITEMS]] + more


def redacted_text(text: str) -> str:
    """Return a text for the log."""
    shown = text[:LONGEST_TEXT]
    shown = _USER_INFO.sub(f"{REDACTED}@", shown)
    shown = _ASSIGNED.sub(rf"\1{REDACTED}", shown)
    shown = _BEARER.sub(rf"\1 {REDACTED}", shown)
    return f"{shown}…" if len(text) > LONGEST_TEXT else shown


def _member(key: Any, value: Any, depth: int) -> Any:
    if _SECRET_KEY.search(str(key)) and value is not None:
        return REDACTED
    return redacted(value, depth)
