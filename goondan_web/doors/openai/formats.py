"""``response_format`` and ``text.format``: the schema that the answer of a Turn must fit.

The agent gets the schema as that of the request (``outputSchema``), in place of its own. What it answers is
checked here once more: agents with code may answer anything.
"""

from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from broker_config import serializer
from goondan_tasks.contract.errors import ModelAnswerError
from goondan_tasks.contract.messages import JsonObject, ToolCallError
from goondan_tasks.contract.schema import SchemaError, compile_schema
from goondan_tasks.contract.wording import written

_MOST_FAULTS = 3


Kind = Literal["text", "json_object", "json_schema"]


class FormatError(ValueError):
    """The format of a request cannot be kept."""


class _Format(BaseModel):
    """Unknown fields are refused: they would say what the answer must be."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class NamedSchema(_Format):
    """A schema with what OpenAI has beside it. Answers always fit it, with or without ``strict``."""

    name: str | None = Field(None, pattern=r"^[a-zA-Z0-9_-]{1,64}$")
    json_schema: JsonObject | None = Field(None, alias="schema")
    strict: bool | None = None
    description: str | None = None


class CompletionFormat(_Format):
    """``response_format`` of a chat completion."""

    type: Kind
    json_schema: NamedSchema | None = None


class ResponseFormat(NamedSchema):
    """``text.format`` of a response."""

    type: Kind


class ResponseText(BaseModel):
    """``text`` of a response; its other fields are settings of models."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    format: ResponseFormat | None = None


@dataclass(frozen=True, slots=True)
class AnswerFormat:
    """What an answer must be. ``wire`` is the format of a response, without its schema."""

    wire: JsonObject
    #: ``None``: any text
    schema: JsonObject | None = None

    @classmethod
    def of(cls, kind: Kind, named: NamedSchema | None, place: str) -> "AnswerFormat":
        """Return what a request asks for. ``place`` in its body has the fields of ``named``.

        Raises:
            FormatError: it cannot be kept.
        """
        named = named or NamedSchema()
        has_more = named.model_fields_set - {"type"}
        if kind != "json_schema":
            if has_more:
                raise FormatError(f"{place}: the type {kind!r} has no schema; take 'json_schema'.")
            return ANY_TEXT if kind == "text" else cls({"type": kind}, {"type": "object"})
        if named.name is None or named.json_schema is None:
            raise FormatError(f"{place}.{'name' if named.name is None else 'schema'} is missing.")
        schema = named.json_schema
        if named.description is not None:  # the schema is all that the agent sees
            schema = {"description": named.description, **schema}
        try:
            compile_schema(schema)
        except SchemaError as error:
            fault = f"{written(error.path, f'{place}.schema')} is not a valid JSON Schema: {error.message}."
            raise FormatError(fault) from error
        wire = {"name": named.name, "strict": named.strict, "description": named.description}
        return cls({"type": kind, **wire}, schema)

    def shown(self) -> JsonObject:
        """Return it as responses show it."""
        return {**self.wire, "schema": self.schema} if self.wire["type"] == "json_schema" else self.wire

    def error_of(self, answer: Any) -> ToolCallError | None:
        """Return what is wrong with the answer of a Turn."""
        if self.schema is None:
            return None
        faults = compile_schema(self.schema).faults_of_any(answer)
        if not faults:
            return None
        message = f"The agent's answer does not fit the schema: {'; '.join(faults[:_MOST_FAULTS])}."
        return ToolCallError(code=ModelAnswerError.code, name=ModelAnswerError.__name__, message=message)

    def text(self, answer: Any) -> str:
        """Return the answer of a Turn as text: JSON if there is a schema, or if it is not text."""
        if self.schema is None and isinstance(answer, str):
            return answer
        return serializer.encode(answer, repairs=True).decode()


ANY_TEXT = AnswerFormat({"type": "text"})
