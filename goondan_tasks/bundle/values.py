"""ValueSources: values of a bundle that may stand in the environment instead of the YAML.

``{value: …}``, ``{valueFrom: {env: NAME}}`` or ``{valueFrom: {secretRef: {ref: "Secret/<name>", key: …}}}``.
A secret is looked up in the environment too, under the names of :func:`secret_variables`. Nothing is
read before :func:`resolve_value` is called; beside the settings it is the one reader of the environment.
"""

import os
import re
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from goondan_tasks.bundle.fields import ResourceModel
from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.errors import ConfigError

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
