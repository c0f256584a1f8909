"""What a model is asked and what it answers, whatever the API."""

import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Self

Json = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """A tool call; ``arguments`` as a text are sent as they are."""

    name: str
    arguments: Any = field(default_factory=dict)
    id: str = "call_1"

    @property
    def text(self) -> str:
        return self.arguments if isinstance(self.arguments, str) else json.dumps(self.arguments)

    @classmethod
    def of(cls, name: str, text: str, call_id: str) -> Self:
        """Read a call of OpenAI's APIs, whose arguments are a text that may not be JSON."""
        try:
            return cls(name, json.loads(text), call_id)
        except ValueError:
            return cls(name, text, call_id)


@dataclass(frozen=True)
class Usage:
    input: int = 10
    output: int = 5
    #: of the input
    cached: int = 0
    #: of the output
    reasoning: int = 0


@dataclass(frozen=True)
class Answer:
    """The next answer of the model."""

    text: str = ""
    calls: tuple[Call, ...] = ()
    reasoning: str = ""
    #: goes back with the reasoning (Anthropic's signature, the encrypted content of responses)
    signature: str = "c2lnbmF0dXJl"
    #: what the model says in place of an answer
    refusal: str = ""
    #: ``stop``, ``length`` or ``content_filter``; calls are told by themselves
    finish: str = "stop"
    usage: Usage = Usage()
    #: how many characters an event of a stream has
    piece: int = 8
    #: what the answer waits for; a stream does after ``gate_after`` events
    gate: threading.Event | None = None
    gate_after: int = 0
    #: seconds between the events of a stream
    pace: float = 0.0

    def pieces(self, text: str) -> Iterator[str]:
        for start in range(0, len(text), self.piece):
            yield text[start : start + self.piece]


@dataclass(frozen=True)
class Picture:
    """An image or a document of a user's message: a URL, or ``data:…;base64,…``."""

    url: str


@dataclass(frozen=True)
class Said:
    """A message of the conversation."""

    #: ``system``, ``user``, ``assistant`` or ``tool``
    role: str
    text: str = ""
    calls: tuple[Call, ...] = ()
    #: of a tool's result
    call_id: str = ""
    is_error: bool = False
    #: what came back of the model's reasoning: text and signature
    reasoning: tuple[tuple[str, str], ...] = ()
    pictures: tuple[Picture, ...] = ()
