"""What the fields of resources are made of: the base model and the checks of single values."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    model_validator,
)
from pydantic.alias_generators import to_camel

from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.errors import ConfigError
from goondan_tasks.json_values import member, shown
from goondan_tasks.messages import LONGEST_RUN_SECONDS, JsonObject
from goondan_tasks.names import SEPARATOR, is_name_part
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


#: by the unit of a :data:`Rate`
RATE_PERIODS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
_RATE = re.compile(r"[1-9][0-9]{0,8}/[smh]")


class ResourceModel(BaseModel):
    """A part of a resource: frozen, camelCase in YAML, and strict about unknown fields."""

    model_config = ConfigDict(
        frozen=True, alias_generator=to_camel, extra="forbid", hide_input_in_errors=True, strict=True
    )


def check_tool_part(name: str) -> str:
    """Check the name of a Tool or an export (003 §3.2, DESIGN §6).

    Raises:
        FieldError: it cannot be part of ``{tool}__{export}``.
    """
    if is_name_part(name):
        return name
    if SEPARATOR in name:
        suggestion = f"Use a single '_' or '-': '{SEPARATOR}' separates the Tool from the export."
    elif "." in name:
        suggestion = "Dots are of the older version: the Tool is the namespace, the export the rest."
    else:
        suggestion = "Use letters, digits, '-' and '_'; begin with a letter or digit, end without '_'."
    raise FieldError(f"'{name[:80]}' is no valid name", suggestion, ConfigCode.INVALID_NAME)


def _check_rate(rate: str) -> str:
    if _RATE.fullmatch(rate) is None:
        raise FieldError(f"'{rate[:80]}' is no rate", "Write a count per s, m or h, such as 10/s or 100/m.")
    return rate


def _parse_dependencies(raw: Any) -> dict[str, str]:
    """Read versions by package name, written as a mapping or as a list of ``{name, version}``."""
    if isinstance(raw, list) and all(isinstance(member(item, "name"), str) for item in raw):
        raw = {item["name"]: item.get("version") for item in raw}
    if isinstance(raw, dict) and all(isinstance(version, str) for version in raw.values()):
        return raw
    raise FieldError("this is no list of dependencies", "Write {<package>: '<version>'}.")


NonEmpty = Annotated[str, Field(min_length=1)]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: how long a run may take: no more than a call may ask for
RunSeconds = Annotated[float, Field(gt=0, le=LONGEST_RUN_SECONDS)]
ExportName = Annotated[str, AfterValidator(check_tool_part)]
#: a count per second, minute or hour: ``10/s``, ``100/m``, ``5/h``
Rate = Annotated[str, AfterValidator(_check_rate)]
OneRef = Annotated[Ref, PlainValidator(parse_ref), PlainSerializer(Ref.to_wire)]
Dependencies = Annotated[dict[str, str], PlainValidator(_parse_dependencies)]
OneUse = Annotated[Use, PlainValidator(parse_use), PlainSerializer(Use.to_wire)]

_Item = TypeVar("_Item")
#: a list in YAML, kept as a tuple
Items = Annotated[tuple[_Item, ...], Field(strict=False)]


_NOT_ALPHANUMERIC = re.compile(r"[^A-Z0-9]+")
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def _secret_ref(ref: str) -> str:
    kind, _, name = ref.partition("/")
    if kind != "Secret" or not name or "/" in name:
        raise FieldError(f"'{ref}' names no secret", 'Write "Secret/<name>".', ConfigCode.INVALID_REF)
    return ref


class SecretRef(ResourceModel):
    """A key of a secret."""

    ref: Annotated[str, AfterValidator(_secret_ref)]
    key: str = Field(min_length=1)


class ValueFrom(ResourceModel):
    """Where a value stands: in an environment variable or in a secret."""

    env: Annotated[str, Field(min_length=1)] | None = None
    secret_ref: SecretRef | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.env is None) == (self.secret_ref is None):
            raise FieldError("exactly one of 'env' and 'secretRef' is required", "Keep one of the two.")
        return self


class ValueSource(ResourceModel):
    """A value, or where it stands."""

    value: Any = None
    value_from: ValueFrom | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if ("value" in self.model_fields_set) == (self.value_from is not None):
            raise FieldError("exactly one of 'value' and 'valueFrom' is required", "Keep one of the two.")
        return self


def resolve_value(source: ValueSource, field: str = "", environment: Mapping[str, str] | None = None) -> Any:
    """Return the value. ``field`` is the name of the field that holds the source, such as ``apiKey``.

    Raises:
        ConfigError: no variable of the environment holds it.
    """
    if source.value_from is None:
        return source.value
    # a ValueSource asks for the environment by its definition (facts of 000 §6.5)
    variables = os.environ if environment is None else environment  # noqa: TID251
    names = _variables(source.value_from, field)
    for name in names:
        if variables.get(name, "").strip():
            return variables[name]
    raise ConfigError(
        f"None of the environment variables {', '.join(names)} has a value.",
        code=ConfigCode.REF_NOT_FOUND,
        suggestion=f"Set {names[0]} for this process.",
    )


def secret_variables(name: str, key: str, field: str) -> list[str]:
    """Return the variables that may hold a secret, the most specific one first."""
    parts = [f"{_shouted(name)}_{_shouted(key)}", f"{_shouted(name)}_{_shouted(field)}", _shouted(name)]
    wanted = [part for part in dict.fromkeys(parts) if not part.endswith("_")]
    return [prefix + part for prefix in ("GOONDAN_SECRET_", "SECRET_") for part in wanted]


def _variables(origin: ValueFrom, field: str) -> list[str]:
    if origin.secret_ref is None:
        return [str(origin.env)]
    return secret_variables(origin.secret_ref.ref.partition("/")[2], origin.secret_ref.key, field)


def _shouted(text: str) -> str:
    """Write a name as environment variables are: ``apiKey`` becomes ``API_KEY``."""
    return _NOT_ALPHANUMERIC.sub("_", _CAMEL_HUMP.sub("_", text).upper()).strip("_")
