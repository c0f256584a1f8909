"""Asks for chat completions, and reads tool calls and usage as servers other than OpenAI's spell them.

The library's classes check whole answers strictly, and join the pieces of a stream by their index alone. The
subclasses made here repair both before the library reads them.
"""

import json
import secrets
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
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
    made.client.chat.completions.create = _Completions(made.client).create
    return made  # type: ignore[no-any-return]


@dataclass(slots=True)
class _Completions:
    """Asks for completions over the client of the SDK.

    The SDK builds a request once; each other has its URL, headers and limits. To build each anew, to look
    through its body for values that are not JSON yet, and to wrap its answer took half of its time.
    """

    client: Any
    url: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    extensions: Mapping[str, Any] = field(default_factory=dict)

    async def create(
        self,
        *,
        stream: bool,
        timeout: Any,
        extra_headers: Mapping[str, str],
        extra_body: Mapping[str, Any] | None,
        **body: Any,
    ) -> Any:
        """Ask for a completion; the fields of the body are sent as they are.

        Raises:
            openai.APIError: the server cannot be reached, or refuses.
            ValueError: the answer is not JSON.
        """
        from httpx2 import Request, Timeout
        from openai import APIConnectionError, APITimeoutError, AsyncStream, NotGiven, Omit
        from openai._httpx2 import request_exceptions, timeout_exceptions
        from openai.types.chat import ChatCompletion, ChatCompletionChunk

        if self.url is None:
            await self._build(body["model"])
        fields = {**body, "stream": stream, **(extra_body or {})}
        limits = {} if isinstance(timeout, NotGiven) else {"timeout": Timeout(timeout).as_dict()}
        request = Request(
            "POST",
            self.url,
            headers={**self.headers, **{name.lower(): value for name, value in extra_headers.items()}},
            content=serializer.encode(
                {name: value for name, value in fields.items() if not isinstance(value, Omit | NotGiven)}
            ),
            extensions={**self.extensions, **limits},
        )
        try:
            response = await self.client._send_request(request, stream=stream)
        except timeout_exceptions() as error:
            raise APITimeoutError(request=request) from error
        except request_exceptions() as error:
            raise APIConnectionError(request=request) from error
        if not response.is_success:
            await response.aread()
            raise self.client._make_status_error_from_response(response)
        if stream:
            return AsyncStream(cast_to=ChatCompletionChunk, response=response, client=self.client)
        data = response.json()
        return self.client._process_response_data(data=data, cast_to=ChatCompletion, response=response)

    async def _build(self, model: str) -> None:
        """Let the SDK build a request: URL and headers depend on the provider."""
        from openai._models import FinalRequestOptions

        body = {"model": model}  # Azure's URL holds it
        given = FinalRequestOptions.construct(method="post", url="/chat/completions", json_data=body)
        request = self.client._build_request(await self.client._prepare_options(given))
        del request.headers["Content-Length"]
        self.url, self.headers, self.extensions = request.url, dict(request.headers), request.extensions


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
