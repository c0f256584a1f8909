"""What the fields of resources are made of: the base model and the checks of single values."""

import re
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PlainSerializer, PlainValidator
from pydantic.alias_generators import to_camel

from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.bundle.refs import Ref, Use, parse_ref, parse_use
from goondan_tasks.messages import LONGEST_RUN_SECONDS
from goondan_tasks.names import SEPARATOR, is_name_part
from goondan_tasks.schema_references import member

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
