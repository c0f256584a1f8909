"""Asks for chat completions, and reads tool calls and usage as servers other than OpenAI's spell them.

The library's classes check whole answers strictly, and join the pieces of a stream by their index alone. The
subclasses made here repair both before the library reads them.
"""

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from broker_config import serializer

if TYPE_CHECKING:
    from pydantic_ai.models import Model

#: no answer has more tokens of a kind; a larger number is a fault of the server
MOST_TOKENS = 10**9

_TOTALS = ("prompt_tokens", "completion_tokens", "total_tokens")
_DETAILS = ("prompt_tokens_details", "completion_tokens_details")


def token_count(value: Any) -> int:
    """Return a number of tokens that a server reports; 0 if it is not a number that an answer can have."""
    if isinstance(value, str) and value.isdecimal() and len(value) <= len(str(MOST_TOKENS)):
        value = int(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return int(value) if is_number and 0 <= value <= MOST_TOKENS else 0


def lenient(model: "Model") -> "Model":
    """Return a model of chat completions that reads calls with missing fields, or fields of another type.

    Its client sends a conversation as it is given. Other models are returned as they are.
    """
    if not any(kind.__name__ == "OpenAIChatModel" for kind in type(model).__mro__):
        return model
    kind = type(f"Lenient{type(model).__name__}", (_Whole, type(model)), {})
    made: Any = object.__new__(kind)
    vars(made).update(vars(model))
    made.client.chat.completions.create = partial(_create, made.client.post)
    return made  # type: ignore[no-any-return]


async def _create(
    post: Callable[..., Awaitable[Any]],
    *,
    stream: bool,
    timeout: Any,
    extra_headers: Any,
    extra_body: Mapping[str, Any] | None,
    **body: Any,
) -> Any:
    """Ask for a completion; the fields of the body are sent as they are.

    The SDK's own method would look through each of them for values that are not JSON yet. The library gives
    it none, and that took half of the time of a request.
    """
    from openai import AsyncStream
    from openai.types.chat import ChatCompletion, ChatCompletionChunk

    return await post(
        "/chat/completions",
        body={**body, "stream": stream},
        options={"headers": extra_headers, "timeout": timeout, "extra_json": extra_body or {}},
        cast_to=ChatCompletion,
        stream=stream,
        stream_cls=AsyncStream[ChatCompletionChunk],
    )


class _Whole:
    """Mixed into a model: repairs whole answers, and gives streams a class that repairs theirs."""

    def _validate_completion(self, response: Any) -> Any:
        response.usage = _readable_usage(response.usage)
        for choice in response.choices or ():
            calls = choice.message.tool_calls
            if isinstance(calls, list):
                choice.message.tool_calls = [_repaired(call) for call in calls]
        return super()._validate_completion(response)  # type: ignore[misc]

    @property
    def _streamed_response_cls(self) -> Any:
        kind = super()._streamed_response_cls  # type: ignore[misc]
        return type(f"Lenient{kind.__name__}", (_Streamed, kind), {})


def _repaired(call: Any) -> Any:
    """Return a call whose id, type, name and arguments are texts; one without a function as it is."""
    from openai.types.chat import ChatCompletionMessageFunctionToolCall

    function = call.function if isinstance(call, ChatCompletionMessageFunctionToolCall) else None
    texts = (call.id, getattr(function, "name", None), getattr(function, "arguments", None))
    if call.id and call.type == "function" and all(isinstance(text, str) for text in texts):
        return call
    fields = call.model_dump(warnings=False)
    function = fields.get("function")
    if not isinstance(function, Mapping):
        return call
    made = {
        **fields,
        "id": str(fields.get("id") or new_id()),
        "type": "function",
        "function": {
            **function,
            "name": str(function.get("name") or ""),
            "arguments": _text(function.get("arguments")),
        },
    }
    return ChatCompletionMessageFunctionToolCall.construct(**made)


def _readable_usage(usage: Any) -> Any:
    """Return a usage whose numbers the library can read, ``None`` if it is not an object.

    An answer whose tokens cannot be counted is still an answer; asking for another would cost as much.
    """
    from openai.types import CompletionUsage

    if not isinstance(usage, CompletionUsage):
        return None
    fields = usage.model_dump(warnings=False)
    for name in _DETAILS:
        details = fields.get(name)
        fields[name] = None
        if isinstance(details, Mapping):
            fields[name] = {key: token_count(one) for key, one in details.items()}
    return CompletionUsage.construct(
        **{**fields, **{name: token_count(fields.get(name)) for name in _TOTALS}}
    )


def new_id() -> str:
    """Make an id for a call that came without one."""
    return f"call_{secrets.token_hex(8)}"


def _text(args: Any) -> str:
    """Return arguments as JSON text."""
    # a number that no float holds becomes text that is not JSON, which is told to the model
    return args if isinstance(args, str) else "" if args is None else json.dumps(args, ensure_ascii=False)


class _Streamed:
    """Mixed into a streamed answer: repairs the pieces of calls."""

    async def _validate_response(self) -> AsyncIterator[Any]:
        calls = StreamedCalls()
        async for chunk in super()._validate_response():  # type: ignore[misc]
            chunk.usage = _readable_usage(chunk.usage)
            for choice in chunk.choices or ():
                for piece in getattr(choice.delta, "tool_calls", None) or ():
                    calls.place(piece)
            yield chunk


@dataclass(slots=True)
class _Call:
    """A call of which pieces have arrived."""

    #: of the call, and the one that the server gives its pieces
    index: int
    given_index: Any
    id: str = ""
    name: str = ""
    args: list[str] = field(default_factory=list)

    @property
    def is_whole(self) -> bool:
        """Whether the arguments are a JSON object, so that no further piece belongs to them."""
        if not self.args or not self.args[-1].rstrip().endswith("}"):
            return False
        try:
            serializer.decode("".join(self.args))
        except serializer.NotJsonError:
            return False
        return True

    def ends_before(self, given_id: str, name: str, args: str) -> bool:
        """Return whether a piece with a name begins another call, though it has the index of this one."""
        if given_id and self.id and given_id != self.id:
            return True
        # a name may come in pieces, but not after arguments
        return (bool(args.strip()) and self.is_whole) or (bool(self.args) and name != self.name)


@dataclass(slots=True)
class StreamedCalls:
    """The calls of a stream; gives the pieces of each call an index of its own.

    Some servers send all calls with one index or none, or repeat id and name in each piece.
    """

    _calls: list[_Call] = field(default_factory=list)

    def place(self, piece: Any) -> None:
        """Change a piece: its index to that of its call, and its name to what is new of it."""
        function = piece.function
        name, args = (getattr(function, one, None) for one in ("name", "arguments"))
        name, text = name if isinstance(name, str) else "", _text(args)
        given_id = piece.id if isinstance(piece.id, str) else ""
        call = self._call_of(piece.index, given_id, name, text)
        new_name = "" if name == call.name else name
        piece.index, piece.id = call.index, call.id or None
        if function is not None:
            function.name, function.arguments = new_name or None, text
        call.name += new_name
        call.args += [text] if text else []

    def _call_of(self, index: Any, given_id: str, name: str, args: str) -> _Call:
        """Return the call that a piece belongs to; a new one if it begins one."""
        of_index = [call for call in reversed(self._calls) if call.given_index == index]
        same_id = (call for call in of_index if given_id and call.id == given_id)
        call = next(same_id, None) or next(iter(of_index), None)
        if call is None or (name and call.ends_before(given_id, name, args)):
            call = _Call(len(self._calls), index, given_id)
            self._calls.append(call)
        call.id = call.id or given_id
        return call
