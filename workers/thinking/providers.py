"""Sends requests to model providers with pydantic-ai, and converts its messages and errors to ours.

Only ``pydantic_ai.direct`` is used, which sends single requests: none of its agents, loops or retries.
"""

import asyncio
import hashlib
import re
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import replace
from functools import cache
from inspect import signature
from typing import TYPE_CHECKING, Any

import structlog
from pydantic import TypeAdapter
from pydantic.alias_generators import to_snake

from broker_config import serializer
from goondan_tasks.bundle.fields import resolve_value
from goondan_tasks.bundle.models import missing_package
from goondan_tasks.bundle.resources import ModelResource
from goondan_tasks.contract.errors import (
    ConfigError,
    ModelAnswerError,
    ModelAuthError,
    ModelContextLengthError,
    ModelError,
    ModelNotFoundError,
    ModelQuotaError,
    ModelRateLimitError,
    ModelRefusedError,
    ModelUnavailableError,
    extra,
)
from goondan_tasks.contract.messages import JsonObject, call_part
from goondan_tasks.contract.model_messages import told_images, told_text
from goondan_tasks.contract.redaction import KNOWN_SECRETS, well_formed
from goondan_tasks.contract.tool_images import ToolImage
from workers.thinking.call_arguments import read_arguments, sendable_arguments
from workers.thinking.chat_completions import lenient, new_id, token_count
from workers.thinking.model_request import ModelAnswer, ModelRequest
from workers.thinking.sendable import sendable, without_reasoning

if TYPE_CHECKING:
    from httpx2 import AsyncClient, Response
    from pydantic_ai.messages import ModelMessage, ModelResponse
    from pydantic_ai.models import Model, ModelRequestParameters

logger = structlog.get_logger(__name__)

#: gets each piece of an answer as it arrives: ``text`` or ``reasoning``, and the characters
OnDelta = Callable[[str, str], None]

#: our errors for those of ``pydantic_ai.exceptions``, by name; the first match counts
_ERRORS: tuple[tuple[str, type[ModelError]], ...] = (
    ("ModelAuthenticationError", ModelAuthError),
    ("ModelContextWindowExceededError", ModelContextLengthError),
    ("ModelNotFoundError", ModelNotFoundError),
    ("ModelQuotaExceededError", ModelQuotaError),
    ("ModelRateLimitError", ModelRateLimitError),
    ("ModelRequestRejectedError", ModelError),
    ("ModelUnavailableError", ModelUnavailableError),
    ("ModelServerError", ModelUnavailableError),
    ("ModelConnectionError", ModelUnavailableError),
    ("ModelRequestTimeout", ModelUnavailableError),
    ("ContentFilterError", ModelRefusedError),
    # not a model's answer, such as the error page of a gateway
    ("UnexpectedModelBehavior", ModelUnavailableError),
    ("ModelHTTPError", ModelError),
    # a stream that was cut, or another transport error
    ("ModelAPIError", ModelUnavailableError),
    ("UserError", ModelError),
)
#: statuses that the providers' own SDKs retry, too: request timeout, conflict, too early
_TRANSIENT = {408, 409, 425}
#: "too long" in the words of providers for which the library does not recognize it: Anthropic about
#: max_tokens and bytes, Mistral, xAI, Cohere, llama.cpp
_TOO_LONG = re.compile(
    r"(?i)context.{0,12}(length|limit|window|size)|prompt (is too long|length is)|too many tokens"
    r"|request_too_large|maximum allowed number of bytes"
)
#: what a provider says of reasoning or items of an answer that it does not take back: their signature is that
#: of another server or account, or belongs to messages that were removed since
_NOT_TAKEN_BACK = re.compile(r"(?i)signature|thinking|reasoning|encrypted|\bitem with id\b")
_PAYLOAD_TOO_LARGE = 413
#: in the message of Python's JSON parser
_TOO_MANY_DIGITS = "integer string conversion"

#: the parameter of a provider's class for ``baseUrl``; Azure and LiteLLM have names of their own
_URL_PARAMETERS = ("base_url", "azure_endpoint", "api_base")
#: sent as the key to a private server that needs none
_NO_KEY = "none"

_LONGEST_MESSAGE = 2_000

#: the size limits of an answer. In memory it takes several times as much; in a stream, a few characters may
#: take hundreds of bytes
MOST_BYTES = 16 * 1024**2
MOST_STREAM_BYTES = 4 * MOST_BYTES

#: told to the model of a call that ``maxTokens`` has ended
CUT_CALL = (
    "The answer was cut at maxTokens before the JSON of this call's arguments was complete; the call was not "
    "run. Make a shorter call, or several."
)

#: serializes imports: of two threads that import a package at once, one may see only a part of it
_LOADING = threading.Lock()


class ModelProvider:
    """The provider of one Model; its client belongs to the event loop that asks first."""

    def __init__(self, resource: ModelResource) -> None:
        self.resource = resource
        self._name = resource.name
        self._spec = resource.spec
        self._model: Model | None = None
        self._http: AsyncClient | None = None

    async def ask(self, request: ModelRequest, on_delta: OnDelta | None = None) -> ModelAnswer:
        """Send one request; with ``on_delta``, stream the answer.

        If the provider does not take back the reasoning of earlier answers, it is asked without that.

        Raises:
            ModelError: the model cannot be asked, or does not answer.
            ConfigError: the library or one of its parts is not installed.
        """
        model = self._model
        if model is None:  # its imports take a second
            model = await asyncio.to_thread(self.load)
        messages = _messages(request, takes_images=self._takes_images(model))
        try:
            return await self._send(model, request, messages, on_delta)
        except ModelError as error:
            plain = without_reasoning(request.messages)
            if not _is_about_reasoning(error) or plain == [*request.messages]:
                raise
            logger.warning("model.reasoning_left_out", model=self._name, reason=error.message)
        given = replace(request, messages=tuple(plain))
        messages = _messages(given, takes_images=self._takes_images(model))
        return await self._send(model, given, messages, on_delta)

    async def _send(
        self, model: "Model", request: ModelRequest, messages: "list[ModelMessage]", on_delta: OnDelta | None
    ) -> ModelAnswer:
        from pydantic_ai import direct

        options = {
            "model_settings": self._settings(request, model),
            "model_request_parameters": _parameters(request, model),
        }
        with self._errors():
            if on_delta is None:
                return _answer(await direct.model_request(model, messages, **options))
            stream = direct.model_request_stream(model, messages, **options)
            response = await _streamed(stream, on_delta)
            if _is_cut(response):
                raise ModelUnavailableError(f"Model {self._name!r}: the stream ended before its answer did.")
            return _answer(response)

    @property
    def takes_images(self) -> bool:
        """Whether the model looks at images; known once it was loaded."""
        return self._model is None or self._takes_images(self._model)

    def _takes_images(self, model: "Model") -> bool:
        known = bool(model.profile.get("supports_image_input", True))
        return known if self._spec.images is None else self._spec.images

    async def close(self) -> None:
        """Close the connections, in the event loop that asked."""
        model, self._model = self._model, None
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()
        elif model is not None and model.provider is not None:
            async with model.provider:
                pass  # leaving it closes them

    def load(self) -> "Model":
        """Make the client, once; this blocks for a second or two while it imports packages.

        Raises:
            ModelError: there is no such provider or model, or no key.
            ConfigError: the library or one of its parts is not installed.
        """
        with _LOADING:
            with extra("models"):
                from pydantic_ai.exceptions import UserError
                from pydantic_ai.models import infer_model

            if self._model is not None:
                return self._model
            try:
                made = infer_model(f"{self._spec.provider}:{self._spec.model}", self._provider)
            except ImportError as error:
                message = f"Model {self._name!r} needs a package that is not installed: {error}"
                raise ConfigError(message, suggestion=missing_package(error)) from error
            except (UserError, ValueError, TypeError) as error:
                is_keyless = self._spec.api_key is None and "API_KEY" in str(error)
                kind = ModelAuthError if is_keyless else ModelError
                what = "has no apiKey" if is_keyless else "cannot be used"
                raise kind(_without_keys(f"Model {self._name!r} {what}: {error}")) from error
            self._model = lenient(made)
            return self._model

    def _provider(self, name: str) -> Any:
        """Make the library's provider.

        With a ``baseUrl``, only the Model's own key is sent: a provider's key from the environment must not
        reach another server.
        """
        from pydantic_ai.providers import infer_provider_class

        kind, key, url = infer_provider_class(name), self._key(), self._spec.base_url
        given: dict[str, Any] = {"api_key": key}
        known = signature(kind).parameters
        if url is not None:
            parameter = next((one for one in _URL_PARAMETERS if one in known), None)
            if parameter is None:
                raise ValueError(f"the provider {name!r} takes no baseUrl")
            given = {"api_key": key or _NO_KEY, parameter: url}
        if "http_client" in known:
            given["http_client"] = self._http = _http_client()
        provider = kind(**{field: value for field, value in given.items() if value is not None})
        if isinstance(getattr(provider.client, "max_retries", None), int):
            provider.client.max_retries = 0  # as a setting, it would cost each request a new client
        # a key from the environment, if the client shows it
        found = getattr(provider.client, "api_key", None)
        if isinstance(found, str):
            KNOWN_SECRETS.add(found)
        return provider

    def _key(self) -> str | None:
        source = self._spec.api_key
        if source is None:
            return None
        try:
            key = str(resolve_value(source, "apiKey"))
        except ConfigError as error:
            raise ModelAuthError(
                f"Model {self._name!r} has no key: {error.message}", suggestion=error.suggestion
            ) from error
        KNOWN_SECRETS.add(key)
        return key

    def _settings(self, request: ModelRequest, model: "Model") -> Any:
        given = {**self._spec.options, **(request.params or {})}
        settings = {to_snake(name): value for name, value in given.items()}
        settings["request_timeout"] = self._spec.timeout_seconds
        settings.pop("max_retries", None)  # the call is retried, and not the request
        client = None if model.provider is None else model.provider.client
        retries_nothing = getattr(client, "max_retries", None) == 0
        if retries_nothing or "max_retries" in model.unsupported_settings:
            return settings
        return {**settings, "max_retries": 0}

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from pydantic_ai import exceptions

        try:
            yield
        except (exceptions.AgentRunError, exceptions.UserError) as error:
            raise self._error(error) from error
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
            # the library does not check JSON that is too deep, or not an answer at all
            what = f"Model {self._name!r} gives an answer that cannot be read"
            # a number with too many digits is the model's, and another answer would be paid for as well
            kind = ModelAnswerError if _TOO_MANY_DIGITS in str(error) else ModelUnavailableError
            raise kind(_without_keys(f"{what}: {error!r}")) from error

    def _error(self, error: Exception) -> ModelError:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, ModelAnswerError):
                return cause
            cause = cause.__cause__
        names = {kind.__name__.removeprefix("_HTTP") for kind in type(error).__mro__}
        kind = next((ours for theirs, ours in _ERRORS if theirs in names), ModelError)
        status = getattr(error, "status_code", None)
        if status in _TRANSIENT:
            kind = ModelUnavailableError
        elif kind is ModelError and (status == _PAYLOAD_TOO_LARGE or _TOO_LONG.search(str(error))):
            kind = ModelContextLengthError
        ours = kind(_without_keys(f"Model {self._name!r}: {_reason(error)}"))
        ours.retry_after = float(getattr(error, "retry_after", None) or 0)
        return ours


def _is_about_reasoning(error: ModelError) -> bool:
    is_refusal = error.code in (ModelError.code, ModelNotFoundError.code)
    return is_refusal and _NOT_TAKEN_BACK.search(error.message) is not None


def _without_keys(message: str) -> str:
    """Return an error message without keys, which some servers repeat in theirs."""
    hidden: str = KNOWN_SECRETS.hidden_in_answer(message)
    return hidden[:_LONGEST_MESSAGE]


def _reason(error: Exception) -> str:
    """Return the message of the provider, or of the transport."""
    body = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    message = inner.get("message") if isinstance(inner, dict) else None
    status = getattr(error, "status_code", None)
    if isinstance(message, str) and message:
        return f"{status}: {message}" if status else message
    # SDKs do not repeat the cause of a connection error
    first: BaseException = error
    while first.__cause__ is not None and hasattr(error, "phase"):
        first = first.__cause__
    return str(error) if first is error else f"{error} {first}".strip()


def _http_client() -> "AsyncClient":
    """Make a client that fails when an answer gets too long, as one may never end."""
    from httpx2 import AsyncByteStream
    from pydantic_ai.models import create_async_httpx2_client

    class Limited(AsyncByteStream):
        def __init__(self, stream: AsyncByteStream, most: int) -> None:
            self._stream, self._most = stream, most

        async def __aiter__(self) -> AsyncIterator[bytes]:
            size = 0
            async for chunk in self._stream:
                size += len(chunk)
                if size > self._most:
                    raise ModelAnswerError(f"The model's answer has more than {self._most:,} bytes.")
                yield chunk

        async def aclose(self) -> None:
            await self._stream.aclose()

    async def limit(response: "Response") -> None:
        is_stream = "event-stream" in response.headers.get("content-type", "")
        assert isinstance(response.stream, AsyncByteStream)  # noqa: S101 - the client's
        response.stream = Limited(response.stream, MOST_STREAM_BYTES if is_stream else MOST_BYTES)

    client = create_async_httpx2_client()
    client.event_hooks["response"].append(limit)
    return client


async def _streamed(opened: AbstractAsyncContextManager[Any], on_delta: OnDelta) -> "ModelResponse":
    from pydantic_ai.messages import (
        PartDeltaEvent,
        PartStartEvent,
        TextPart,
        TextPartDelta,
        ThinkingPart,
        ToolCallPartDelta,
    )

    async with opened as stream:
        async for event in stream:
            piece: Any = None
            if isinstance(event, PartStartEvent) and isinstance(event.part, TextPart | ThinkingPart):
                piece = event.part.content
                is_text = isinstance(event.part, TextPart)
            elif isinstance(event, PartDeltaEvent) and not isinstance(event.delta, ToolCallPartDelta):
                piece = getattr(event.delta, "content_delta", None)
                is_text = isinstance(event.delta, TextPartDelta)
            if isinstance(piece, str) and piece:
                on_delta("text" if is_text else "reasoning", serializer.well_formed(piece))
        response: ModelResponse = stream.get()
        return response


def _is_cut(response: "ModelResponse") -> bool:
    """Return whether a stream ended without its last events: the finish reason and the usage."""
    is_finished = (response.provider_details or {}).keys() & {"finish_reason", "refusal"}
    return not is_finished and (response.finish_reason is None or not response.usage.output_tokens)


def _parameters(request: ModelRequest, model: "Model") -> "ModelRequestParameters":
    from pydantic_ai.messages import InstructionPart
    from pydantic_ai.models import ModelRequestParameters
    from pydantic_ai.output import OutputObjectDefinition
    from pydantic_ai.tools import ToolDefinition

    functions = [tool["function"] for tool in request.tools]
    tools = [
        ToolDefinition(
            name=one["name"],
            description=one.get("description"),
            parameters_json_schema=one.get("parameters") or {"type": "object", "properties": {}},
            # strict schemas of OpenAI cannot express objects with additional properties
            strict=False,
        )
        for one in functions
    ]
    parts = [InstructionPart(content=request.instructions)] if request.instructions.strip() else None
    parameters = ModelRequestParameters(function_tools=tools, instruction_parts=parts)
    schema = request.output_schema
    if schema is None or not model.profile.get("supports_json_schema_output"):
        return parameters
    # the providers' own fields take schemas of objects alone; the instructions have any schema
    if schema.get("type", "object") != "object" or not schema.keys() & {"type", "properties", "$ref"}:
        return parameters
    parameters.output_mode = "native"
    parameters.output_object = OutputObjectDefinition(json_schema=schema, name="answer")
    return parameters


# --- messages of 004 to the library's, and back

#: the fields of an answer's part that are converted; the rest, such as a signature, is sent back unchanged
_CONVERTED = {"content", "part_kind", "tool_name", "args", "tool_call_id", "timestamp"}
#: the origin of an answer, which shows whether a provider knows its ids and signatures
_ORIGIN = ("provider_name", "provider_url", "canonical_system", "provider_response_id")


@cache
def _adapter() -> "TypeAdapter[ModelResponse]":
    from pydantic_ai.messages import ModelResponse

    return TypeAdapter(ModelResponse)


def _answer(response: "ModelResponse") -> ModelAnswer:
    dumped = well_formed(_adapter().dump_python(response, mode="json", warnings=False))
    parts, usage, reason = dumped["parts"], response.usage, response.finish_reason
    for part, given in zip(parts, response.parts, strict=True):
        if part["part_kind"] == "tool-call":  # dumping changes numbers that no float holds
            part["args"] = well_formed(getattr(given, "args", None))
    content = [_part(part, is_cut=reason == "length" and part is parts[-1]) for part in parts]
    calls = [part for part in content if part["type"] == "tool-call"]
    _make_ids_unique(calls)
    refusal = (response.provider_details or {}).get("refusal")
    if refusal and not content:
        content = [{"type": "text", "text": str(refusal)}]
    if reason == "stop" and calls:
        reason = "tool_call"
    origin = {name: dumped[name] for name in _ORIGIN if dumped.get(name)}
    return ModelAnswer(
        content=tuple(content),
        finish_reason=reason,
        usage={
            "input": token_count(usage.input_tokens),
            "output": token_count(usage.output_tokens),
            "cached": token_count(usage.cache_read_tokens),
            "reasoning": token_count(usage.output_reasoning_tokens),
        },
        model=KNOWN_SECRETS.hidden_in_answer(response.model_name),
        provider_options={response.provider_name or "model": origin} if origin else None,
    )


def _make_ids_unique(calls: Iterable[JsonObject]) -> None:
    """Change the ids of calls that have the id of an earlier one: results are matched by id."""
    times: Counter[str] = Counter()
    for call in calls:
        name = call["toolCallId"]
        while times[call["toolCallId"]]:
            times[name] += 1
            call["toolCallId"] = f"{name}_{times[name]}"
        times[call["toolCallId"]] += 1


def _part(part: JsonObject, *, is_cut: bool) -> JsonObject:
    """Return a part of the library's response as a Message's, ``is_cut`` if the answer ended in it."""
    kind, name = part["part_kind"], part.get("provider_name") or "model"
    if kind in ("text", "thinking"):
        ours = {"type": "text" if kind == "text" else "reasoning", "text": part["content"]}
    elif kind == "tool-call":
        args, fault = read_arguments(part["args"])
        # only text shows whether it is whole: a document may have what had arrived until then
        if is_cut and (fault or not args or not isinstance(part["args"], str)):
            fault = CUT_CALL
        ours = call_part(part["tool_call_id"] or new_id(), part["tool_name"] or "", args)
        ours |= {"fault": fault} if fault else {}
    else:
        return {"type": "custom", "providerOptions": {name: part}}
    rest = {key: value for key, value in part.items() if key not in _CONVERTED and value is not None}
    return {**ours, "providerOptions": {name: rest}} if rest else ours


def _options(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the provider's own fields of a message or a part."""
    return next(iter((message.get("providerOptions") or {}).values()), {})


def _library_part(part: Mapping[str, Any]) -> JsonObject:
    rest, kind = _options(part), part.get("type")
    if kind == "custom":
        return dict(rest)
    if kind == "tool-call":
        args = part.get("input")
        fields = {
            "part_kind": "tool-call",
            "tool_name": part["toolName"],
            "tool_call_id": part["toolCallId"],
            "args": sendable_arguments(args),
        }
    else:
        kind = "thinking" if kind == "reasoning" else "text"
        is_openai = rest.get("provider_name") in ("openai", "azure")
        if kind == "thinking" and is_openai and rest.get("signature") and not rest.get("id"):
            # without an id, the responses API would get encrypted reasoning as text
            digest = hashlib.sha256(str(rest["signature"]).encode()).hexdigest()
            rest = {**rest, "id": f"rs_{digest[:32]}"}
        fields = {"part_kind": kind, "content": part.get("text", "")}
    return {**rest, **fields}


def _messages(request: ModelRequest, *, takes_images: bool) -> "list[ModelMessage]":
    """Return the conversation as the library's messages.

    Raises:
        ModelError: a message is not valid, which an extension may have added.
    """
    try:
        return _library_messages(request.messages, takes_images=takes_images)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise ModelError(
            f"The conversation has a message that cannot be sent: {error!r}"[:500],
            suggestion="Fix the message in the conversation's file, or the extension that added it.",
        ) from error


def _library_messages(ours: Iterable[JsonObject], *, takes_images: bool) -> "list[ModelMessage]":
    from pydantic_ai.messages import ModelRequest as Request
    from pydantic_ai.messages import SystemPromptPart, UserPromptPart

    messages: list[Any] = []
    for message in sendable(ours):
        role, content = message.get("role"), message.get("content")
        if role == "assistant":
            messages.append(_response(message))
            continue
        if role == "tool":
            parts = [_library_result(part, takes_images=takes_images) for part in content or ()]
        elif role == "system":
            parts = [SystemPromptPart(_text_of(content))]
        else:
            parts = [UserPromptPart(content if isinstance(content, str) else _user_parts(content))]
        if messages and isinstance(messages[-1], Request):
            parts = [*messages.pop().parts, *parts]
        messages.append(Request(parts))
    return messages or [Request([])]


def _library_result(part: JsonObject, *, takes_images: bool) -> Any:
    from pydantic_ai.messages import ToolReturnPart

    text, failed = told_text(part["output"])
    parts = told_images(part["output"]) if takes_images else None
    content = (
        (text if text.strip() else "(no output)") if parts is None else list(map(_library_content, parts))
    )
    result = ToolReturnPart(part["toolName"], content, part["toolCallId"])
    return replace(result, outcome="failed") if failed else result


def _library_content(part: str | ToolImage) -> Any:
    from pydantic_ai.messages import BinaryContent

    if isinstance(part, str):
        return part
    return BinaryContent.from_data_uri(f"data:{part.media_type};base64,{part.data}")


def _response(message: JsonObject) -> "ModelResponse":
    content = message.get("content") or ()
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    origin = {name: value for name, value in _options(message).items() if name in _ORIGIN}
    fields = {"kind": "response", "parts": [_library_part(part) for part in parts], **origin}
    return _adapter().validate_python(fields)


def _text_of(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content or ())


def _user_parts(content: Any) -> Sequence[Any]:
    """Return the parts of a user's message: text, and images and files by URL or in base64."""
    from pydantic_ai.messages import BinaryContent, DocumentUrl, ImageUrl

    made: list[Any] = []
    for part in content or ():
        if part.get("type") == "text":
            made.append(part.get("text", ""))
            continue
        source = part.get("image") or part.get("data") or part.get("url") or ""
        if source.startswith(("http://", "https://")):
            made.append(ImageUrl(source) if part.get("type") == "image" else DocumentUrl(source))
        else:
            uri = source if source.startswith("data:") else f"data:{part.get('mediaType')};base64,{source}"
            made.append(BinaryContent.from_data_uri(uri))
    return made
