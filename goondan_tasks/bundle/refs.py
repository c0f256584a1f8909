"""References from one resource to others, in every form of the specification.

``"Tool/bash"``; ``{kind, name, package?}``; ``{ref: <either>}``; and, where a list is wanted,
``{selector: {kind?, name?, matchLabels?}, overrides?: {spec?, metadata?}}`` (002 appendix A;
DESIGN §6 for ``overrides``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.json_values import shown
from goondan_tasks.messages import JsonObject
from goondan_tasks.spelling import hint

_REF_FIELDS = {"kind", "name", "package", "apiVersion"}
_SELECTOR_FIELDS = {"kind", "name", "matchLabels"}
_OVERRIDE_FIELDS = {"spec", "metadata"}


@dataclass(frozen=True, slots=True)
class Ref:
    """One resource, by kind and name."""

    kind: str
    name: str
    #: the package it comes from; ``None`` means this bundle
    package: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    def to_wire(self) -> JsonObject:
        """Return it as YAML may say it."""
        package = {} if self.package is None else {"package": self.package}
        return {"kind": self.kind, "name": self.name, **package}


@dataclass(frozen=True, slots=True)
class Selector:
    """Every resource that has this kind, this name and these labels; what is not given matches all."""

    kind: str | None = None
    name: str | None = None
    match_labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        labels = ", ".join(f"{key}={value}" for key, value in self.match_labels.items())
        return " with ".join(part for part in (f"{self.kind or 'any'}/{self.name or '*'}", labels) if part)

    def to_wire(self) -> JsonObject:
        """Return it as YAML may say it."""
        fields = {"kind": self.kind, "name": self.name, "matchLabels": dict(self.match_labels)}
        return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Use:
    """An item of ``tools`` or ``extensions``: which resources an Agent uses, and how it changes them."""

    target: Ref | Selector
    #: merged into each selected resource; a null removes the field (DESIGN §6)
    overrides: JsonObject = field(default_factory=dict)
    #: merged over ``spec.config`` of an Extension for this Agent, key by key (DESIGN §6)
    config: JsonObject | None = None

    def to_wire(self) -> JsonObject:
        """Return it as YAML may say it."""
        if isinstance(self.target, Selector):
            overrides = {"overrides": self.overrides} if self.overrides else {}
            return {"selector": self.target.to_wire(), **overrides}
        config = {} if self.config is None else {"config": self.config}
        return {"ref": self.target.to_wire(), **config} if config else self.target.to_wire()


def parse_ref(raw: Any) -> Ref:
    """Read a reference to one resource.

    Raises:
        FieldError: it has none of the forms.
    """
    if isinstance(raw, dict) and "ref" in raw:
        _refuse_others(raw, {"ref"})
        raw = raw["ref"]
    if isinstance(raw, str):
        kind, slash, name = raw.partition("/")
        if slash and kind and name and "/" not in name:
            return Ref(kind, name)
        raise _invalid(f"{shown(raw)} is no reference", 'Write "<Kind>/<name>", such as "Tool/bash".')
    if isinstance(raw, dict):
        _refuse_others(raw, _REF_FIELDS)
        return Ref(_text(raw, "kind"), _text(raw, "name"), _optional_text(raw, "package"))
    raise _invalid(f"{shown(raw)} is no reference", 'Write "<Kind>/<name>" or {kind: …, name: …}.')


def parse_use(raw: Any) -> Use:
    """Read an item of ``tools`` or ``extensions``.

    Raises:
        FieldError: it has none of the forms.
    """
    if not isinstance(raw, dict):
        return Use(parse_ref(raw))
    if "selector" in raw:
        _refuse_others(raw, {"selector", "overrides"})
        overrides = _object(raw, "overrides")
        _refuse_others(overrides, _OVERRIDE_FIELDS)
        return Use(_selector(_object(raw, "selector")), overrides)
    if "overrides" in raw:
        raise _invalid(
            "'overrides' needs a selector",
            "Write {selector: {kind: Tool, name: …}, overrides: {spec: …}}.",
        )
    config = _object(raw, "config") if "config" in raw else None
    return Use(parse_ref({key: value for key, value in raw.items() if key != "config"}), config=config)


def _selector(raw: JsonObject) -> Selector:
    _refuse_others(raw, _SELECTOR_FIELDS)
    labels = _object(raw, "matchLabels")
    wrong = next((key for key, value in labels.items() if not isinstance(value, str)), None)
    if wrong is not None:
        raise _invalid(f"the label '{wrong}' must be a string", "Quote the label's value.")
    if not raw:
        raise _invalid("the selector is empty", "Give it a kind, a name or matchLabels.")
    return Selector(_optional_text(raw, "kind"), _optional_text(raw, "name"), labels)


def _refuse_others(raw: JsonObject, known: set[str]) -> None:
    for name in raw:
        if name not in known:
            raise _invalid(f"unknown field '{name[:80]}'", hint(name, sorted(known)))


def _text(raw: JsonObject, name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not value:
        raise _invalid(f"'{name}' must be a non-empty string", 'Write "<Kind>/<name>" or {kind: …, name: …}.')
    return value


def _optional_text(raw: JsonObject, name: str) -> str | None:
    return _text(raw, name) if name in raw else None


def _object(raw: JsonObject, name: str) -> JsonObject:
    value = raw.get(name, {})
    if not isinstance(value, dict):
        raise _invalid(f"'{name}' must be an object, not {shown(value)}", f"Write {name}: {{…}}.")
    return value


def _invalid(message: str, suggestion: str) -> FieldError:
    return FieldError(message, suggestion, ConfigCode.INVALID_REF)
