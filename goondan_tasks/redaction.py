"""Redaction of secrets: values that this process has seen, and fields whose names say that they are secret.

Logging is per process, and so is the set of known secrets (000 §12.5.3 rule 2).
"""

import functools
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

MASK = "***"
#: the least recently used are forgotten beyond this number: each costs a search in every log line and answer
_MOST = 512
#: shorter texts could be ordinary words
_SHORTEST = 8
_WORDS = r"secret|pass[-_]?(?:word|wd|phrase)|credential|cookie|(?:api|access|private)[-_]?key"
_NAMES = re.compile(
    rf"(?i){_WORDS}|(?:access|refresh|id|bearer)[-_]?token|token$|code[-_]?verifier|device[-_]?code"
    r"|authorization$"
)
#: in what comes from models and tools, where a name may mean anything
_FOREIGN_WORDS = rf"{_WORDS}|pass[-_]?code|pwd|token(?!s)|authorization|session[-_]?id|signature"
_FOREIGN_NAMES = re.compile(rf"(?i){_FOREIGN_WORDS}|^auth$")
#: ``password=…``, ``"apiKey": "…"``, ``Authorization: Bearer …``. It does not match the beginning of a name:
#: trying that from each character of a long text without spaces takes time quadratic in its length.
_ASSIGNED = re.compile(
    rf"""(?ix)
    ( (?:{_FOREIGN_WORDS}) [\w-]* ["']? \s* [:=] \s* ["']? )
    (?: (?:bearer|basic) \s+ )?
    [^\s"',;&}})\]]+
    """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
#: ``https://user:password@host``
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


class KnownSecrets:
    """The secrets that this process has seen lately; safe in threads."""

    def __init__(self) -> None:
        #: for each secret, whether answers to callers may contain it
        self._values: OrderedDict[str, bool] = OrderedDict()
        #: the same as an immutable copy that readers use without the lock
        self._known: tuple[tuple[str, bool], ...] = ()
        #: no shorter text contains a secret
        self._shortest = sys.maxsize
        self._lock = threading.Lock()

    def add(self, secret: str, *, is_handed_out: bool = False) -> None:
        """Hide a text from now on; one that ``is_handed_out`` (a ``state`` in its link) only from logs."""
        if len(secret) < _SHORTEST:
            return
        with self._lock:
            self._shortest = min(self._shortest, len(secret))
            # a secret that answers must not contain stays one
            self._values[secret] = is_handed_out and self._values.get(secret, True)
            self._values.move_to_end(secret)
            if len(self._values) > _MOST:
                self._values.popitem(last=False)
            self._known = tuple(self._values.items())

    @property
    def are_known(self) -> bool:
        return bool(self._known)

    def hidden_in_log(self, text: str) -> str:
        """Return a text without any secret."""
        return masked(text, [secret for secret, _ in self._known if secret in text])

    def hidden_in_answer(self, value: Any) -> Any:
        """Return a JSON value without the secrets that answers must not contain; unchanged if it has none."""
        secrets = [secret for secret, is_handed_out in self._known if not is_handed_out]
        if not secrets:
            return value

        def hidden(text: str) -> str:
            if len(text) < self._shortest:
                return text
            return masked(text, [secret for secret in secrets if secret in text])

        return mapped(value, hidden)

    def begun_in(self, text: str) -> int:
        """Return how many characters at the end of a text may be the beginning of such a secret."""
        secrets = [secret for secret, is_handed_out in self._known if not is_handed_out]
        longest = min(len(text), max(map(len, secrets), default=1) - 1)
        ends = (text[-count:] for count in range(longest, 0, -1))
        return next((len(end) for end in ends if any(one.startswith(end) for one in secrets)), 0)


#: of this process
KNOWN_SECRETS = KnownSecrets()


def hide_secrets(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Remove secrets from a log event, by field name and by value (a structlog processor)."""
    for name, value in event.items():
        event[name] = _without_named(name, value)
    return event


@functools.lru_cache(maxsize=1024)
def is_named_as_secret(name: str) -> bool:
    return _NAMES.search(name) is not None


def may_be_secret(name: str) -> bool:
    """Say whether a field of a tool's arguments, say, is named like a secret."""
    return _FOREIGN_NAMES.search(name) is not None


def hidden_by_place(text: str) -> str:
    """Return a text without what stands where secrets do: behind such a name, ``Bearer``, or in a URL."""
    shown = _USER_INFO.sub(f"{MASK}@", text)
    shown = _ASSIGNED.sub(rf"\1{MASK}", shown)
    return _BEARER.sub(rf"\1 {MASK}", shown)


def hidden_in_log(value: Any) -> Any:
    """Return a value as logs show it: without known secrets, nor what stands in fields that are named so."""
    return _without_named("", value)


def _without_named(name: str, value: Any) -> Any:
    if is_named_as_secret(name):
        return MASK
    if isinstance(value, dict):
        return {
            KNOWN_SECRETS.hidden_in_log(str(key)): _without_named(str(key), item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_named("", item) for item in value]
    if value is None or isinstance(value, int | float):
        return value
    # an exception, say, is written down by its repr
    text = value if isinstance(value, str) else repr(value)
    hidden = KNOWN_SECRETS.hidden_in_log(text)
    return value if hidden == text else hidden


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with each of its texts changed, the names of fields included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {mapped(key, change): mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(item, change) for item in value]
    return value


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text without any of the secrets."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may be the beginning of another
        text = text.replace(secret, MASK)
    return text
