"""What clients of OpenAI send, and errors in the form that they read."""

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from broker_config import serializer
from goondan_tasks.contract.errors import AgentNotFoundError, GoondanError
from goondan_tasks.contract.messages import faults_of
from goondan_web.answers import RequestError, error_answer, require_json, status_of
from goondan_web.doors.openai.formats import (
    ANY_TEXT,
    AnswerFormat,
    CompletionFormat,
    FormatError,
    ResponseText,
)

_TYPES = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}
_TEXTS = ("text", "input_text")
_TOOLS = (
    "an agent has the tools of its bundle, and cannot call those of a client.",
    "Leave out `{name}`, and give the tool to the agent in the bundle.",
)
#: parameters without which the answer would be another one than the client means, and what to do instead
_REFUSED = {
    "tools": _TOOLS,
    "functions": _TOOLS,
    "audio": ("an agent answers with text.", "Leave out `audio`."),
    "prompt": ("an agent has the prompt of its bundle.", "Leave out `prompt`."),
    "conversation": (
        "there are no conversations beside the agents' own.",
        "Send `previous_response_id`, or the header X-Goondan-Instance.",
    ),
}


class ParameterError(RequestError):
    """A parameter of the request cannot be used. ``param`` names it."""

    suggestion = "Correct the parameter as the message says."

    def __init__(self, param: str | None, message: str, *, suggestion: str | None = None) -> None:
        super().__init__(message, suggestion=suggestion)
        self.param = param


class _Asked(BaseModel):
    """Unknown fields are ignored: agents have their own model settings."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    model: str = Field(min_length=1, max_length=200)
    stream: bool | None = False
    user: str | None = None
    tools: Any = None


class ResponseAsked(_Asked):
    """``POST /v1/responses``."""

    input: str | list[Any]
    background: bool | None = False
    previous_response_id: str | None = None
    prompt: Any = None
    conversation: Any = None
    text: ResponseText | None = None

    def asks(self) -> str:
        """Return what the agent is asked."""
        if isinstance(self.input, str):
            return _required(self.input, "input")
        return _last_text(self.input, "input")

    def answer_format(self) -> AnswerFormat:
        """Return what the answer must be.

        Raises:
            FormatError: that cannot be kept.
        """
        asked = self.text.format if self.text else None
        return ANY_TEXT if asked is None else AnswerFormat.of(asked.type, asked, "text.format")


class StreamOptions(BaseModel):
    """Of a streamed completion: whether its last chunk has the tokens."""

    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    include_usage: bool | None = False


class CompletionAsked(_Asked):
    """``POST /v1/chat/completions``."""

    messages: list[Any] = Field(min_length=1)
    stream_options: StreamOptions | None = None
    n: int | None = 1
    functions: Any = None
    audio: Any = None
    response_format: CompletionFormat | None = None

    def asks(self) -> str:
        """Return what the agent is asked."""
        return _last_text(self.messages, "messages")

    def answer_format(self) -> AnswerFormat:
        """Return what the answer must be.

        Raises:
            FormatError: that cannot be kept.
        """
        asked = self.response_format
        if asked is None:
            return ANY_TEXT
        return AnswerFormat.of(asked.type, asked.json_schema, "response_format.json_schema")


async def asked_of(request: Request, model: type[Any]) -> Any:
    """Return the body of a request.

    Raises:
        ParameterError: it is not what the model says, or has what no agent can do.
        RequestError: it is not sent as JSON.
    """
    require_json(request.headers)
    try:
        asked = model.model_validate(serializer.decode(await request.body()))
    except serializer.NotJsonError as error:
        raise ParameterError(None, f"The body is not JSON: {error}.") from error
    except ValidationError as error:
        place = error.errors()[0]["loc"]
        message = f"The body is not valid: {faults_of(error, 'body')}."
        raise ParameterError(str(place[0]) if place else None, message) from error
    for name, (why, instead) in _REFUSED.items():
        if getattr(asked, name, None):
            raise ParameterError(name, f"{name}: {why}", suggestion=instead.format(name=name))
    if getattr(asked, "n", 1) not in {1, None}:
        raise ParameterError("n", "n: an agent gives one answer.", suggestion="Leave out `n`.")
    return asked


def format_of(asked: ResponseAsked | CompletionAsked) -> AnswerFormat:
    """Return what the answer to a request must be.

    Raises:
        ParameterError: it cannot be kept.
    """
    try:
        return asked.answer_format()
    except FormatError as error:
        raise ParameterError(
            str(error).partition(".")[0],
            str(error),
            suggestion="Correct it as OpenAI's API and JSON Schema 2020-12 require, or make it smaller.",
        ) from error


def error_form(error: GoondanError, help_url: str) -> Response:
    """Answer with an error as OpenAI's clients read it."""
    answer, status = error_answer(error, help_url), status_of(error)
    headers = {
        name: answer.headers[name] for name in ("www-authenticate", "retry-after") if name in answer.headers
    }
    return JSONResponse({"error": error_body(error)}, status, headers)


def error_body(error: GoondanError) -> dict[str, Any]:
    """Return ``message``, ``type``, ``code`` and ``param`` of an error."""
    status = status_of(error)
    kind = _TYPES.get(status, "server_error" if status >= 500 else "invalid_request_error")
    parts = (error.message, error.suggestion)
    return {
        "message": " ".join(part for part in parts if part),
        "type": kind,
        "code": error.code,
        "param": "model" if isinstance(error, AgentNotFoundError) else getattr(error, "param", None),
    }


def _last_text(messages: list[Any], param: str) -> str:
    """Return the text of the last message, which must be the user's."""
    last = messages[-1] if messages else None
    if not isinstance(last, dict) or last.get("role") != "user":
        raise ParameterError(
            param, f"{param}: the last message must be the user's, which the agent is asked."
        )
    content = last.get("content")
    parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
    texts = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get("text") if kind in _TEXTS else None
        if not isinstance(text, str):
            what = "without text"
            if isinstance(kind, str) and kind not in _TEXTS:
                what = f"of type {kind[:50]!r}"
            raise ParameterError(
                param,
                f"{param}: the last message has a part {what}; agents are asked with text.",
                suggestion="Store files where the agent can read them, and send their paths.",
            )
        texts.append(text)
    return _required("\n".join(texts), param)


def _required(text: str, param: str) -> str:
    if not text.strip():
        raise ParameterError(param, f"{param}: there is nothing to ask.")
    return text
