"""What the extension ``mcp`` is configured with: the servers of an agent, and how each is reached."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, ValidationError

from goondan_tasks.bundle.fields import (
    Items,
    NonEmpty,
    ResourceModel,
    RunSeconds,
    Seconds,
    ValueSource,
    check_tool_part,
    resolve_value,
)
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.errors import ConfigError
from goondan_tasks.messages import JsonObject

_HTTP_URL = re.compile(r"https?://[^\s/]\S*")
#: RFC 9110, §5.6.2
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _read_text(raw: Any) -> str | ValueSource:
    """Read text, or where it stands: ``{valueFrom: …}``, as elsewhere in a bundle."""
    if isinstance(raw, dict):
        return ValueSource.model_validate(raw)
    if isinstance(raw, str):
        return raw
    raise FieldError("this is neither text nor {valueFrom: …}", "Quote numbers and words such as true.")


def _read_url(raw: Any) -> str | ValueSource:
    """Read an address, or where it stands: many have a key in them."""
    url = _read_text(raw)
    if isinstance(url, str) and not is_http_url(url):
        raise FieldError("this is no http address", "Write the server's endpoint: https://host/mcp.")
    return url


def is_http_url(text: str) -> bool:
    """Say whether a server may be reached at ``text``."""
    return _HTTP_URL.fullmatch(text) is not None


#: text that may be a secret
Text = Annotated[str | ValueSource, PlainValidator(_read_text)]


def _check_header(name: str) -> str:
    if _HEADER_NAME.fullmatch(name) is None:
        raise FieldError(
            f"{name!r:.80} is no name of a header", "Write it as in X-Team: letters, digits and '-'."
        )
    return name


HeaderName = Annotated[str, AfterValidator(_check_header)]


class _Server(ResourceModel):
    #: limits each call of the server's tools
    timeout_seconds: RunSeconds | None = None
    #: the server's own names, or globs of them, of tools that may run twice, beyond those it says so of
    idempotent: Items[NonEmpty] = ()


class StdioServer(_Server):
    """A program that the worker starts, and talks to by its standard input and output.

    ``env`` is added to a minimal environment; nothing else of the worker's own reaches it.
    """

    command: NonEmpty
    args: Items[Text] = ()
    env: dict[NonEmpty, Text] = Field(default_factory=dict)
    cwd: NonEmpty | None = None


class HttpServer(_Server):
    """A server that is reached by streamable HTTP."""

    url: Annotated[str | ValueSource, PlainValidator(_read_url)]
    headers: dict[HeaderName, Text] = Field(default_factory=dict)


def _read_server(raw: Any) -> StdioServer | HttpServer:
    if not isinstance(raw, dict) or ("command" in raw) == ("url" in raw):
        raise FieldError("a server has either 'command' or 'url'", "Keep one of the two.")
    return StdioServer.model_validate(raw) if "command" in raw else HttpServer.model_validate(raw)


Server = Annotated[StdioServer | HttpServer, PlainValidator(_read_server)]
ServerName = Annotated[str, AfterValidator(check_tool_part)]


class McpConfig(ResourceModel):
    """The servers by name, and how long the agent's start may wait for them."""

    servers: dict[ServerName, Server] = Field(min_length=1)
    start_seconds: Annotated[Seconds, Field(le=50)] = 15


_Model = TypeVar("_Model")


def read_config(config: JsonObject) -> McpConfig:
    """Read the extension's ``config``.

    Raises:
        ConfigError: it is not valid. The message never shows a value.
    """
    try:
        return TypeAdapter(McpConfig).validate_python(config)
    except ValidationError as error:
        faults = [
            f"{'.'.join(map(str, ('config', *fault['loc'])))}: {fault['msg'].removeprefix('Value error, ')}"
            for fault in error.errors(include_url=False, include_input=False)
        ]
        raise ConfigError("; ".join(faults), suggestion="`servers` maps names to servers.") from error


def resolve(text: str | ValueSource, field: str, environment: Mapping[str, str] | None = None) -> str:
    """Return the text itself.

    Raises:
        ConfigError: no variable of the environment holds it.
    """
    return text if isinstance(text, str) else str(resolve_value(text, field, environment))
