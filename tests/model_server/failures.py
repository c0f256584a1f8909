"""The ways in which a provider fails, in each provider's own words."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from tests.model_server.conversation import Answer


@dataclass(frozen=True)
class Failure:
    """Stands for an answer. Without a status the connection is cut or stays silent."""

    status: int = 0
    message: str = ""
    #: of OpenAI's APIs, and the type of Anthropic's
    code: str | None = None
    type: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    #: is sent in place of an error document
    body: bytes | None = None
    #: nothing is ever sent
    is_silent: bool = False
    #: the connection is cut after as many events of this answer's stream; before all if it is no stream
    answer: Answer | None = None
    events: int = 0
    #: the stream ends as if it were whole
    is_clean: bool = False


def status(code: int, message: str = "", *, retry_after: str | None = None) -> Failure:
    """Answer an HTTP error."""
    headers = {} if retry_after is None else {"Retry-After": retry_after}
    return Failure(code, message or f"The server has a problem ({code}).", headers=headers)


def wrong_key(key: str = "") -> Failure:
    """Refuse the key, and say it."""
    message = f"Incorrect API key provided: {key}." if key else "invalid x-api-key"
    return Failure(401, message, "invalid_api_key", "authentication_error")


def unknown_model(model: str) -> Failure:
    message = f"The model `{model}` does not exist or you do not have access to it."
    return Failure(404, message, "model_not_found", "not_found_error")


def busy(retry_after: str | None = None) -> Failure:
    failure = status(429, "Rate limit reached for requests", retry_after=retry_after)
    return replace(failure, code="rate_limit_exceeded", type="rate_limit_error")


def quota() -> Failure:
    """Say that the account has no money: 429 by OpenAI, 400 by Anthropic."""
    message = "Your credit balance is too low to access the API."
    return Failure(429, message, "insufficient_quota", "billing_error")


#: words for a conversation that is too long, by who says so
TOO_LONG: Mapping[str, Failure] = {
    "openai": Failure(
        400,
        "This model's maximum context length is 128000 tokens. However, your messages resulted in 140000 "
        "tokens. Please reduce the length of the messages.",
        "context_length_exceeded",
        "invalid_request_error",
    ),
    "openai-responses": Failure(
        400,
        "Your input exceeds the context window of this model. Please adjust your input and try again.",
        "context_length_exceeded",
        "invalid_request_error",
    ),
    "anthropic": Failure(
        400, "prompt is too long: 210000 tokens > 200000 maximum", None, "invalid_request_error"
    ),
    "anthropic-with-max-tokens": Failure(
        400,
        "input length and `max_tokens` exceed context limit: 195000 + 8192 > 200000, decrease input length "
        "or `max_tokens` and try again",
        None,
        "invalid_request_error",
    ),
    "anthropic-bytes": Failure(
        413, "Request exceeds the maximum allowed number of bytes.", None, "request_too_large"
    ),
    "vllm": Failure(
        400,
        "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens in the "
        "messages, Please reduce the length of the messages.",
        "400",
        "BadRequestError",
    ),
    "llama.cpp": Failure(
        400,
        "the request exceeds the available context size, try increasing it",
        "400",
        "exceed_context_size_error",
    ),
}


def too_long(whose: str = "openai") -> Failure:
    return TOO_LONG[whose]


def silent() -> Failure:
    """Never answer."""
    return Failure(is_silent=True)


def cut(answer: Answer | None = None, *, after: int = 0, is_clean: bool = False) -> Failure:
    """Cut the connection, in a stream after so many events of an answer."""
    return Failure(answer=answer, events=after, is_clean=is_clean)


def malformed(body: bytes = b'{"id": "x", "cho') -> Failure:
    """Answer 200 with what no client can read."""
    return Failure(200, body=body)


def in_stream(failure: Failure, answer: Answer, *, after: int = 2) -> Failure:
    """Report a failure as an event of a stream that has begun."""
    return replace(failure, answer=answer, events=after)
