"""Requests to models and their answers, as Redis and the ledger keep them."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from broker_config import serializer
from goondan_tasks.contract.messages import JsonObject, WireModel


class ModelAnswer(WireModel):
    """The answer of a model: the output of the call that asked it."""

    #: the content of an assistant Message (004): parts of the types text, reasoning, tool-call and custom
    content: tuple[JsonObject, ...]
    #: ``stop``, ``length``, ``content_filter``, ``tool_call`` or ``error``, if the provider gives one
    finish_reason: str | None = None
    #: tokens: ``input``, ``output``, ``cached`` of the input, ``reasoning`` of the output
    usage: dict[str, int]
    #: the provider's name of the model that answered
    model: str | None = None
    #: the answer's origin, by the provider's name; sent back together with ids and signatures
    provider_options: JsonObject | None = None

    @property
    def message(self) -> JsonObject:
        """The answer as the ``data`` of an assistant Message."""
        data: JsonObject = {"role": "assistant", "content": list(self.content)}
        return {**data, "providerOptions": self.provider_options} if self.provider_options else data

    @property
    def text(self) -> str:
        return "".join(part["text"] for part in self.content if part.get("type") == "text")

    @property
    def has_calls(self) -> bool:
        return any(part.get("type") == "tool-call" for part in self.content)


@dataclass(frozen=True)
class ModelRequest:
    """A request to a model: messages as the ``data`` of Messages (004), tools in OpenAI's format."""

    instructions: str
    messages: tuple[JsonObject, ...]
    tools: tuple[JsonObject, ...] = ()
    params: JsonObject | None = None
    output_schema: JsonObject | None = None

    @cached_property
    def json(self) -> bytes:
        return serializer.encode({name: getattr(self, name) for name in self.__dataclass_fields__})

    @property
    def digest(self) -> str:
        """A short hash, which distinguishes the requests of a Step."""
        return hashlib.sha256(self.json).hexdigest()[:24]

    @classmethod
    def from_json(cls, data: bytes) -> "ModelRequest":
        """Read a request; raises NotJsonError."""
        fields: dict[str, Any] = serializer.decode(data)
        return cls(**{**fields, "messages": tuple(fields["messages"]), "tools": tuple(fields["tools"])})
