"""Redaction of secrets: of values that this process has seen, and of fields with such names.

The set of known secrets is per process, as logging is (000 §12.5.3 rule 2).
"""

import functools
import json
import re
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

from broker_config import serializer
from goondan_tasks.contract.wording import are_plain

MASK = "***"
#: how many secrets are known, the latest ones: each costs a search in every log line and answer
_MOST_SECRETS = 512
#: in characters; shorter texts could be ordinary words
_SHORTEST_SECRET = 8
#: in characters; longer than secrets are
_MARGIN = 65_536
_WORDS = r"secret|pass[-_]?(?:word|wd|phrase)|credential|cookie|(?:api|access|private)[-_]?key"
_NAMES = re.compile(
    rf"(?i){_WORDS}|(?:access|refresh|id|bearer)[-_]?token|token$|code[-_]?verifier|device[-_]?code"
    r"|authorization$"
)
#: for data of models and tools, which choose names freely
_FOREIGN_WORDS = rf"{_WORDS}|pass[-_]?code|pwd|token(?!s)|authorization|session[-_]?id|signature"
_FOREIGN_NAMES = re.compile(rf"(?i){_FOREIGN_WORDS}|^auth$")
#: ``password=…``, ``"apiKey": "…"``, ``Authorization: Bearer …``. It does not match the beginning of a name,
#: and matches names without a value as a whole: searching from each place in a long text without spaces would
#: take quadratic time.
_ASSIGNED = re.compile(
    rf"""(?ix)
    (?:{_FOREIGN_WORDS}) [\w-]*+
    (?:
        ( ["']? \s*+ [:=] \s*+ ["']? )
        (?: (?:bearer|basic) \s++ )?
        [^\s"',;&}})\]]+
    )?
    """
)
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
#: ``https://user:password@host``
_USER_INFO = re.compile(r"(?<=://)[^/@\s]+@")


class KnownSecrets:
    """The secrets that this process has seen recently; thread-safe."""

    def __init__(self) -> None:
        #: whether answers to callers may contain a secret, by secret
        self._values: OrderedDict[str, bool] = OrderedDict()
        #: an immutable copy that is read without the lock
        self._known: tuple[tuple[str, bool], ...] = ()
        #: those that answers must not contain, as they stand in JSON
        self._as_json: tuple[bytes, ...] = ()
        #: shorter texts contain no secret
        self._shortest = sys.maxsize
        self._lock = threading.Lock()

    def add(self, secret: str, *, is_handed_out: bool = False) -> None:
        """Hide a text from now on; if it ``is_handed_out`` (such as a ``state`` in a link), only in logs."""
        if len(secret) < _SHORTEST_SECRET:
            return
        with self._lock:
            self._shortest = min(self._shortest, len(secret))
            # hiding in answers is never revoked
            self._values[secret] = is_handed_out and self._values.get(secret, True)
            self._values.move_to_end(secret)
            if len(self._values) > _MOST_SECRETS:
                self._values.popitem(last=False)
            self._known = tuple(self._values.items())
            self._as_json = tuple(map(_in_json, self._hidden_in_answers()))

    def may_be_in(self, answer: bytes) -> bool:
        """Return whether an answer, as JSON, may contain a secret."""
        return any(secret in answer for secret in self._as_json)

    @property
    def are_known(self) -> bool:
        return bool(self._known)

    def are_in(self, text: str) -> bool:
        """Return whether a text has a secret."""
        return any(secret in text for secret, _ in self._known)

    def hidden_in_log(self, text: str) -> str:
        """Return a text without secrets."""
        if not self._known:
            return text
        return masked(text, [secret for secret, _ in self._known if secret in text])

    def hidden_in_answer(self, value: Any) -> Any:
        """Return a JSON value without the secrets that answers must not contain."""
        if not self._as_json:
            return value
        secrets = self._hidden_in_answers()

        def hidden(text: str) -> str:
            if len(text) < self._shortest:
                return text
            return masked(text, [secret for secret in secrets if secret in text])

        return mapped(value, hidden)

    def hidden_in_part(self, text: str) -> tuple[str, str]:
        """Return a text that goes on without such secrets, and its end that may be the beginning of one."""
        secrets = self._hidden_in_answers()
        longest = min(len(text), max(map(len, secrets), default=1) - 1)
        ends = (text[-count:] for count in range(longest, 0, -1))
        cut = len(text) - next((len(end) for end in ends if any(one.startswith(end) for one in secrets)), 0)
        # one that ends as another begins, or as itself does, is not cut in two
        found = (text.find(secret, max(0, cut - len(secret) + 1)) for secret in secrets)
        cut = min((at for at in found if 0 <= at < cut), default=cut)
        return self.hidden_in_answer(text[:cut]), text[cut:]

    def _hidden_in_answers(self) -> list[str]:
        return [secret for secret, is_handed_out in self._known if not is_handed_out]


#: those of this process
KNOWN_SECRETS = KnownSecrets()


def hide_secrets(_: object, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Remove secrets from a log event, by field name and by value (a structlog processor)."""
    for name in [*filter(is_named_as_secret, event)]:
        event[name] = MASK
    if KNOWN_SECRETS.are_known or not are_plain(event.values()):
        for name, value in event.items():
            event[name] = _field_for_log(name, value)
    return event


@functools.lru_cache(maxsize=1024)
def is_named_as_secret(name: str) -> bool:
    return _NAMES.search(name) is not None


def may_be_secret(name: str) -> bool:
    """Return whether a field of foreign data, such as a tool's argument, is named like a secret."""
    return _FOREIGN_NAMES.search(name) is not None


def without_user(text: str) -> str:
    """Return a text without the users and passwords in its URLs."""
    return _USER_INFO.sub(f"{MASK}@", text)


def hidden_by_place(text: str) -> str:
    """Return a text without likely secrets: values after such a name or ``Bearer``, and users in URLs."""
    text = without_user(text)
    text = _ASSIGNED.sub(_without_value, text)
    return _BEARER.sub(rf"\1 {MASK}", text)


def _without_value(assigned: re.Match[str]) -> str:
    return (
        assigned[0] if assigned[1] is None else f"{assigned.string[assigned.start() : assigned.end(1)]}{MASK}"
    )


def hidden_in_log(value: Any) -> Any:
    """Return a value for logs: without known secrets, and without the values of fields named like one."""
    return _field_for_log("", value)


def _field_for_log(name: str, value: Any) -> Any:
    if is_named_as_secret(name):
        return MASK
    if type(value) is str:
        return KNOWN_SECRETS.hidden_in_log(value)
    if isinstance(value, dict):
        return {
            KNOWN_SECRETS.hidden_in_log(str(key)): _field_for_log(str(key), item)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_field_for_log("", item) for item in value]
    if value is None or isinstance(value, int | float):
        return value
    # such as an exception
    text = value if isinstance(value, str) else repr(value)
    hidden = KNOWN_SECRETS.hidden_in_log(text)
    return value if hidden == text else hidden


def beginning_of(value: Any, characters: int) -> tuple[Any, bool]:
    """Return a JSON value without what comes after so many characters of its text, and whether it is whole.

    What is searched for secrets must not have megabytes to be cut to a page afterwards. Some more is kept, so
    that a secret at the end is found as a whole.
    """
    left = characters + _MARGIN

    def kept(node: Any) -> Any:
        nonlocal left
        if isinstance(node, str):
            part = node[: max(0, left)]
            left -= len(node)
            return part
        if isinstance(node, dict):
            found = {}
            for name, one in node.items():
                if left <= 0:
                    break
                left -= len(name)
                found[name] = kept(one)
            return found
        if isinstance(node, list | tuple):
            items = []
            for one in node:
                if left <= 0:
                    break
                left -= 1
                items.append(kept(one))
            return items
        left -= 1
        return node

    return kept(value), left > 0


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """Return a JSON value with ``change`` applied to each text, including the names of fields."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {mapped(key, change): mapped(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [mapped(item, change) for item in value]
    return value


def well_formed(value: Any) -> Any:
    """Return a JSON value as :func:`serializer.well_formed` leaves its texts; almost all are so already."""
    try:
        serializer.encode(value)
    except serializer.NotJsonError:
        return mapped(value, serializer.well_formed)
    return value


def _in_json(secret: str) -> bytes:
    return json.dumps(secret, ensure_ascii=False)[1:-1].encode("utf-8", "replace")


def masked(text: str, secrets: Iterable[str]) -> str:
    """Return a text without any of the secrets."""
    for secret in sorted(secrets, key=len, reverse=True):  # one may contain another
        text = text.replace(secret, MASK)
    return text
