"""The types of resource fields: the base model, references, ValueSources and checked scalars.

A reference has one of the specification's forms: ``"Tool/bash"``; ``{kind, name, package?}``;
``{ref: <either>}``; in a list also ``{selector: {kind?, name?, matchLabels?}, overrides?: {spec?,
metadata?}}`` (002 appendix A; DESIGN §6 for ``overrides``).

A ValueSource is ``{value: …}``, ``{valueFrom: {env: NAME}}`` or
``{valueFrom: {secretRef: {ref: "Secret/<name>", key: …}}}``. Secrets come from the environment too, under the
names of :func:`secret_variables`. Only :func:`resolve_value` reads the environment.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, NoReturn, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)
from pydantic.alias_generators import to_camel

from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.messages import LONGEST_RUN_SECONDS, JsonObject
from goondan_tasks.contract.names import SEPARATOR, is_name_part
from goondan_tasks.contract.redaction import KNOWN_SECRETS, is_named_as_secret
from goondan_tasks.contract.timing import TimingError
from goondan_tasks.contract.wording import hint, member, shown

_REF_FORMS = 'Write "<Kind>/<name>", such as "Tool/bash", or {kind: …, name: …}.'
#: the length of a period, by the unit of a :data:`Rate`
RATE_PERIODS_MS = {"s": 1_000, "m": 60_000, "h": 3_600_000}
_NOT_ALPHANUMERIC = re.compile(r"[^A-Z0-9]+")
#: the prefixes of variables with the worker's settings, and with secrets
SETTINGS = "GOONDAN_"
SECRETS = ("GOONDAN_SECRET_", "SECRET_")
_CAMEL_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class Ref:
    kind: str
    name: str
    #: the package that declares it; ``None`` means this bundle
    package: str | None = None

    def __str__(self) -> str:
        return f"{self.kind}/{self.name}"

    def to_wire(self) -> JsonObject:
        package = {} if self.package is None else {"package": self.package}
        return {"kind": self.kind, "name": self.name, **package}


@dataclass(frozen=True, slots=True)
class Selector:
    """Selects resources by kind, name and labels; a part that is not given matches all."""

    kind: str | None = None
    name: str | None = None
    match_labels: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        labels = ", ".join(f"{key}={value}" for key, value in self.match_labels.items())
        return " with ".join(part for part in (f"{self.kind or 'any'}/{self.name or '*'}", labels) if part)

    def to_wire(self) -> JsonObject:
        fields = {"kind": self.kind, "name": self.name, "matchLabels": dict(self.match_labels)}
        return {name: value for name, value in fields.items() if value}


@dataclass(frozen=True, slots=True)
class Use:
    """An item of ``tools`` or ``extensions``: the resources that an Agent uses, and its changes to them."""

    target: Ref | Selector
    #: merged into each selected resource; a null removes the field (DESIGN §6)
    overrides: JsonObject = field(default_factory=dict)
    #: merged over ``spec.config`` of an Extension for this Agent, key by key (DESIGN §6)
    config: JsonObject | None = None

    def to_wire(self) -> JsonObject:
        if isinstance(self.target, Selector):
            overrides = {"overrides": self.overrides} if self.overrides else {}
            return {"selector": self.target.to_wire(), **overrides}
        target = self.target.to_wire()
        return target if self.config is None else {"ref": target, "config": self.config}


def parse_ref(raw: Any) -> Ref:
    """Read a reference to one resource.

    Raises:
        FieldError: it is not a reference.
    """
    if isinstance(raw, dict) and "ref" in raw:
        _only(raw, "ref")
        raw = raw["ref"]
    if isinstance(raw, dict):
        _only(raw, "kind", "name", "package", "apiVersion")
        package = _text(raw, "package") if "package" in raw else None
        return Ref(_text(raw, "kind"), _text(raw, "name"), package)
    kind, _, name = raw.partition("/") if isinstance(raw, str) else ("", "", "")
    if not kind or not name or "/" in name:
        _refuse(f"{shown(raw)} is not a reference", _REF_FORMS)
    return Ref(kind, name)


def parse_use(raw: Any) -> Use:
    """Read an item of ``tools`` or ``extensions``.

    Raises:
        FieldError: it is neither a reference nor a selector.
    """
    if not isinstance(raw, dict):
        return Use(parse_ref(raw))
    if "selector" in raw:
        _only(raw, "selector", "overrides")
        overrides = _object(raw, "overrides")
        _only(overrides, "spec", "metadata")
        return Use(_selector(_object(raw, "selector")), overrides)
    if "overrides" in raw:
        suggestion = "Write {selector: {kind: Tool, name: …}, overrides: {spec: …}}."
        _refuse("'overrides' needs a selector", suggestion)
    config = _object(raw, "config") if "config" in raw else None
    return Use(parse_ref({key: value for key, value in raw.items() if key != "config"}), config=config)


def _selector(raw: JsonObject) -> Selector:
    _only(raw, "kind", "name", "matchLabels")
    labels = _object(raw, "matchLabels")
    for key, value in labels.items():
        if not isinstance(value, str):
            _refuse(f"the label '{key}' must be a string", "Quote the label's value.")
    if not raw:
        _refuse("the selector is empty", "Give it a kind, a name or matchLabels.")
    kind, name = (_text(raw, part) if part in raw else None for part in ("kind", "name"))
    return Selector(kind, name, labels)


def _only(raw: JsonObject, *known: str) -> None:
    for name in raw:
        if name not in known:
            _refuse(f"unknown field '{name[:80]}'", hint(name, sorted(known)))


def _text(raw: JsonObject, name: str) -> str:
    value = raw.get(name)
    if not isinstance(value, str) or not value:
        _refuse(f"'{name}' must be a non-empty string", _REF_FORMS)
    return value


def _object(raw: JsonObject, name: str) -> JsonObject:
    value = raw.get(name, {})
    if not isinstance(value, dict):
        _refuse(f"'{name}' must be an object, not {shown(value)}", f"Write {name}: {{…}}.")
    return value


def _refuse(message: str, suggestion: str) -> NoReturn:
    raise FieldError(message, suggestion, ConfigCode.INVALID_REF)


class ResourceModel(BaseModel):
    """The base of resources and their parts: frozen, camelCase in YAML, without unknown fields."""

    model_config = ConfigDict(
        frozen=True,
        alias_generator=to_camel,
        extra="forbid",
        hide_input_in_errors=True,
        strict=True,
        defer_build=True,
    )


class KeptSpec(ResourceModel):
    """A spec whose further fields belong to programs outside this project."""

    model_config = ConfigDict(extra="allow")


def check_tool_part(name: str) -> str:
    """Check the name of a Tool or export (003 §3.2, DESIGN §6).

    Raises:
        FieldError: it cannot be part of ``{tool}__{export}``.
    """
    if is_name_part(name):
        return name
    if SEPARATOR in name:
        suggestion = f"Use a single '_' or '-': '{SEPARATOR}' separates the Tool from the export."
    elif "." in name:
        suggestion = "Dots are for the older version only: here the Tool is the namespace of the export."
    else:
        suggestion = "Use letters, digits, '-' and '_'; begin with a letter or digit, end without '_'."
    raise FieldError(f"'{name[:80]}' is not a valid name", suggestion, ConfigCode.INVALID_NAME)


def checked(accepts: Callable[[str], object], what: str, suggestion: str) -> AfterValidator:
    """Return a validator that refuses a text that is not ``what`` it should be, as ``accepts`` decides."""

    def check(text: str) -> str:
        if accepts(text):
            return text
        raise FieldError(f"'{text[:80]}' is not {what}", suggestion)

    return AfterValidator(check)


def by_rule(rule: Callable[[str], object]) -> AfterValidator:
    """Return a validator that refuses a text that a rule of :mod:`goondan_tasks.contract.timing` refuses."""

    def check(text: str) -> str:
        try:
            rule(text)
        except TimingError as error:
            raise FieldError(error.message, error.suggestion) from error
        return text

    return AfterValidator(check)


def _parse_dependencies(raw: Any) -> dict[str, str]:
    """Read versions by package name from a mapping or a list of ``{name, version}``."""
    if isinstance(raw, list) and all(isinstance(member(item, "name"), str) for item in raw):
        raw = {item["name"]: item.get("version") for item in raw}
    if isinstance(raw, dict) and all(isinstance(version, str) for version in raw.values()):
        return raw
    raise FieldError("the dependencies are malformed", "Write {<package>: '<version>'}.")


def _check_requirement(text: str) -> str:
    from packaging.requirements import InvalidRequirement, Requirement  # few bundles have any

    try:
        Requirement(text)
    except InvalidRequirement as error:
        message = f"'{text[:80]}' is not a requirement: {str(error).partition(chr(10))[0]}"
        raise FieldError(message, "Write it as pip reads it (PEP 508), such as 'httpx>=0.27,<1'.") from error
    return text


def _fields_schema(required: tuple[str, ...], **fields: JsonObject) -> JsonObject:
    return {"type": "object", "properties": fields, "required": required, "additionalProperties": False}


def _ref_schema(**config: JsonObject) -> JsonObject:
    """Return the JSON Schema of what :func:`parse_ref` reads; ``config`` adds fields to the objects."""
    text: JsonObject = {"type": "string", "pattern": "^[^/]+/[^/]+$"}
    named = {name: {"type": "string", "minLength": 1} for name in ("kind", "name", "package")}
    fields = {**named, "apiVersion": {}}
    target = {"anyOf": [text, _fields_schema(("kind", "name"), **fields)]}
    beside = [
        _fields_schema(("kind", "name"), **fields, **config),
        _fields_schema(("ref",), ref=target, **config),
    ]
    return {"anyOf": [text, *beside]}


def _use_schema() -> JsonObject:
    text: JsonObject = {"type": "string", "minLength": 1}
    labels = {"type": "object", "additionalProperties": {"type": "string"}}
    selector = {**_fields_schema((), kind=text, name=text, matchLabels=labels), "minProperties": 1}
    overrides = _fields_schema((), spec={}, metadata={})
    selected = _fields_schema(("selector",), selector=selector, overrides=overrides)
    return {"anyOf": [*_ref_schema(config={"type": "object"})["anyOf"], selected]}


NonEmpty = Annotated[str, Field(min_length=1)]
#: a Python package, by PEP 508
Requirement = Annotated[str, AfterValidator(_check_requirement)]
Positive = Annotated[int, Field(gt=0)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
#: how long a run may take; the limit is the same as for a call
RunSeconds = Annotated[float, Field(gt=0, le=LONGEST_RUN_SECONDS)]
ExportName = Annotated[str, AfterValidator(check_tool_part)]
#: a count per second, minute or hour: ``10/s``, ``100/m``, ``5/h``
Rate = Annotated[
    str,
    checked(
        re.compile(r"[1-9][0-9]{0,8}/[smh]").fullmatch,
        "a rate",
        "Write a count per s, m or h, such as 10/s or 100/m.",
    ),
    WithJsonSchema({"type": "string", "pattern": "^[1-9][0-9]{0,8}/[smh]$"}),
]
OneRef = Annotated[
    Ref, PlainValidator(parse_ref), PlainSerializer(Ref.to_wire), WithJsonSchema(_ref_schema())
]
Dependencies = Annotated[
    dict[str, str],
    PlainValidator(_parse_dependencies, json_schema_input_type=dict[str, str] | list[dict[str, str]]),
]
OneUse = Annotated[
    Use, PlainValidator(parse_use), PlainSerializer(Use.to_wire), WithJsonSchema(_use_schema())
]

_Item = TypeVar("_Item")
#: a list in YAML, kept as a tuple
Items = Annotated[tuple[_Item, ...], Field(strict=False)]


def _check_secret_ref(ref: str) -> str:
    kind, _, name = ref.partition("/")
    if kind != "Secret" or not name or "/" in name:
        _refuse(f"'{ref}' is not a reference to a secret", 'Write "Secret/<name>".')
    return ref


class SecretRef(ResourceModel):
    ref: Annotated[str, AfterValidator(_check_secret_ref)]
    key: NonEmpty


class ValueFrom(ResourceModel):
    """Where a value comes from: an environment variable or a secret."""

    env: NonEmpty | None = None
    secret_ref: SecretRef | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.env is None) == (self.secret_ref is None):
            raise FieldError("exactly one of 'env' and 'secretRef' is required", "Keep one of the two.")
        return self


class ValueSource(ResourceModel):
    """A value, or where it comes from."""

    value: Any = None
    value_from: ValueFrom | None = None

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if ("value" in self.model_fields_set) == (self.value_from is not None):
            raise FieldError("exactly one of 'value' and 'valueFrom' is required", "Keep one of the two.")
        return self

    def is_credential(self, field: str) -> bool:
        """Return whether the value is a secret: from a ``secretRef``, or by the name of variable or field."""
        where = self.value_from
        if where is None:
            return is_named_as_secret(field)
        return (
            where.secret_ref is not None or is_named_as_secret(field) or is_named_as_secret(where.env or "")
        )


def _read_text(raw: Any) -> str | ValueSource:
    if isinstance(raw, dict):
        return ValueSource.model_validate(raw)
    if isinstance(raw, str):
        return raw
    raise FieldError("must be text or {valueFrom: …}", "Quote numbers and words such as true.")


def _read_variables(raw: Any) -> Any:
    """Check the names of variables; read a list of names as variables of this process."""
    names = list(raw) if isinstance(raw, list | dict) else []
    for name in names:
        if not isinstance(name, str) or not name or {"=", "\0"} & set(name):
            raise FieldError(f"{shown(name)} is not the name of a variable", "Write a name such as API_KEY.")
    return {name: {"valueFrom": {"env": name}} for name in names} if isinstance(raw, list) else raw


def _check_source(text: str | ValueSource) -> str | ValueSource:
    name = text.value_from.env if isinstance(text, ValueSource) and text.value_from else None
    if name is not None and name.startswith(SETTINGS) and not name.startswith(SECRETS[0]):
        raise FieldError(
            f"{name[:80]} is a setting of the worker, which programs do not get",
            f"Use another variable, or one for secrets: {SECRETS[0]}….",
        )
    return text


#: text that may be a secret
Text = Annotated[str | ValueSource, PlainValidator(_read_text, json_schema_input_type=str | ValueSource)]
#: texts by name, such as a Connection's ``secrets``
Texts = dict[NonEmpty, Text]
#: variables for programs by name; YAML may have a list of names, which the worker's environment must have
Variables = Annotated[
    dict[str, Annotated[Text, AfterValidator(_check_source)]],
    BeforeValidator(_read_variables, json_schema_input_type=dict[str, str | ValueSource] | list[str]),
]


def resolve_text(text: str | ValueSource, field: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the text; ``field`` is the name of its field.

    Raises:
        ConfigError: no environment variable has it.
    """
    return text if isinstance(text, str) else str(resolve_value(text, field, environment))


def resolve_variables(named: Mapping[str, str | ValueSource]) -> dict[str, str]:
    """Return the variables for a tool's programs; secrets among them are masked in results and logs.

    Raises:
        ConfigError: no environment variable has one of the values.
    """
    texts = {name: resolve_text(source, name) for name, source in named.items()}
    for name, source in named.items():
        if isinstance(source, ValueSource) and source.is_credential(name):
            KNOWN_SECRETS.add(texts[name])
    return texts


def resolve_value(source: ValueSource, field: str = "", environment: Mapping[str, str] | None = None) -> Any:
    """Return the value; ``field`` is the name of the source's field, such as ``apiKey``.

    Raises:
        ConfigError: no environment variable has it.
    """
    origin = source.value_from
    if origin is None:
        return source.value
    names = [str(origin.env)]
    if origin.secret_ref is not None:
        names = secret_variables(origin.secret_ref.ref.partition("/")[2], origin.secret_ref.key, field)
    # a ValueSource is defined to read the environment (000 §6.5)
    variables = os.environ if environment is None else environment  # noqa: TID251
    for name in names:
        if variables.get(name, "").strip():
            return variables[name]
    raise ConfigError(
        f"None of the environment variables {', '.join(names)} has a value.",
        code=ConfigCode.REF_NOT_FOUND,
        suggestion=f"Set {names[0]} where this runs; goondan dev also reads .env beside the bundle.",
    )


def secret_variables(name: str, key: str, field: str) -> list[str]:
    """Return the names of variables that may have a secret, the most specific first."""
    secret, key, field = map(_upper_snake, (name, key, field))
    wanted = dict.fromkeys((f"{secret}_{key}", f"{secret}_{field}", secret))
    return [prefix + part for prefix in SECRETS for part in wanted if not part.endswith("_")]


def _upper_snake(text: str) -> str:
    """Write a name like an environment variable: ``apiKey`` becomes ``API_KEY``."""
    return _NOT_ALPHANUMERIC.sub("_", _CAMEL_HUMP.sub("_", text).upper()).strip("_")
