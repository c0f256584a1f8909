"""The body of a callback: ``{"output": …}``, or ``{"error": {"message": …, "code"?: …}}``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from broker_config import serializer
from goondan_tasks.errors import ToolInputValidationError

_FIELDS = ("output", "error")


@dataclass(frozen=True, slots=True)
class Completion:
    """How a call ends: with an output, or with an error if there is one."""

    output: Any = None
    error: str | Mapping[str, Any] | None = None

    @classmethod
    def from_body(cls, body: bytes) -> "Completion":
        """Read what was posted; unknown fields are ignored, as everywhere on the wire.

        Raises:
            ToolInputValidationError: it is no JSON, or does not have exactly one of the two fields.
        """
        try:
            fields = serializer.decode(body)
        except serializer.NotJsonError as error:
            raise ToolInputValidationError(f"The body is no JSON: {error}.") from error
        if not isinstance(fields, dict) or len(fields.keys() & set(_FIELDS)) != 1:
            raise ToolInputValidationError('The body must be an object with either "output" or "error".')
        if "output" in fields:
            return cls(output=fields["output"])
        if not isinstance(fields["error"], str | dict):
            raise ToolInputValidationError('"error" must be an object with a "message", or a text.')
        return cls(error=fields["error"])
