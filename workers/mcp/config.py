"""The config of the extension ``mcp``: an agent's servers, their addresses or commands, and their secrets."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Annotated, Any, TypeVar
from urllib.parse import quote, urlsplit

from pydantic import AfterValidator, Field, PlainValidator, TypeAdapter, ValidationError

from goondan_tasks.bundle.fields import (
    Items,
    NonEmpty,
    ResourceModel,
    RunSeconds,
    Seconds,
    Text,
    ValueSource,
    Variables,
    check_tool_part,
    resolve_text,
)
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.messages import JsonObject, faults_of
from goondan_tasks.contract.redaction import KNOWN_SECRETS, mapped, masked

_HTTP_URL = re.compile(r"https?://[^\s/]\S*")
#: RFC 9110, §5.6.2
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


def _check_url(url: str | ValueSource) -> str | ValueSource:
    if isinstance(url, str) and not is_http_url(url):
        raise FieldError("this is not an http address", "Write the server's endpoint: https://host/mcp.")
    return url


def is_http_url(text: str) -> bool:
    """Return whether ``text`` is an http or https URL."""
    return _HTTP_URL.fullmatch(text) is not None


def _check_header(name: str) -> str:
    if _HEADER_NAME.fullmatch(name) is None:
        raise FieldError(
            f"{name!r:.80} is not a name of a header", "Write it as in X-Team: letters, digits and '-'."
        )
    return name


HeaderName = Annotated[str, AfterValidator(_check_header)]


class _Server(ResourceModel):
    #: limits each call of the server's tools
    timeout_seconds: RunSeconds | None = None
    #: names of idempotent tools, or globs, as the server names them; annotations declare others
    idempotent: Items[NonEmpty] = ()
    #: whether its tasks are taken; those of a program that a worker starts would end with the program
    tasks: bool = False


class StdioServer(_Server):
    """A program that the worker starts and connects to over stdin and stdout.

    ``env`` is added to a minimal environment; the worker's own is not inherited.
    """

    command: NonEmpty
    args: Items[Text] = ()
    env: Variables = Field(default_factory=dict)
    cwd: NonEmpty | None = None


class HttpServer(_Server):
    """A server at an address, over streamable HTTP."""

    #: many addresses contain a key
    url: Annotated[Text, AfterValidator(_check_url)]
    headers: dict[HeaderName, Text] = Field(default_factory=dict)
    tasks: bool = True


def _read_server(raw: Any) -> StdioServer | HttpServer:
    if not isinstance(raw, dict) or ("command" in raw) == ("url" in raw):
        raise FieldError("a server has either 'command' or 'url'", "Keep one of the two.")
    return StdioServer.model_validate(raw) if "command" in raw else HttpServer.model_validate(raw)


Server = Annotated[StdioServer | HttpServer, PlainValidator(_read_server)]
ServerName = Annotated[str, AfterValidator(check_tool_part)]


class McpConfig(ResourceModel):
    """The servers by name, and how many seconds the agent's start waits for them."""

    servers: dict[ServerName, Server] = Field(min_length=1)
    start_seconds: Annotated[Seconds, Field(le=50)] = 15


_Model = TypeVar("_Model")


def read_config(config: JsonObject) -> McpConfig:
    """Read the extension's ``config``.

    Raises:
        ConfigError: it is not valid; the message contains no values.
    """
    try:
        return TypeAdapter(McpConfig).validate_python(config)
    except ValidationError as error:
        said = faults_of(error, "config")
        raise ConfigError(said, suggestion="`servers` maps names to servers.") from error


#: shorter values are not masked, since they are often parts of ordinary words
_SHORTEST = 6


class Secrets:
    """Resolves the texts of one server, and masks those that come from outside the YAML.

    Errors and logs show none of them. In outputs of tools only credentials are masked, because other values
    from the environment may be ordinary settings that appear all over an output (a directory, a host).
    Credentials are the values of a ``secretRef``, and of fields and variables with names of secrets.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        self._environment = environment
        self._values: set[str] = set()
        self._credentials: set[str] = set()

    def text(self, text: str | ValueSource, field: str) -> str:
        """Resolve a text; ``field`` is the name of its field.

        Raises:
            ConfigError: its environment variable is not set.
        """
        value = resolve_text(text, field, self._environment)
        if not isinstance(text, str):
            written = {one for one in _written(value) if len(one) >= _SHORTEST}
            self._values |= written
            if text.is_credential(field):
                self._credentials |= written
                for one in written:  # libraries may log what a server sends
                    KNOWN_SECRETS.add(one, is_handed_out=True)
        return value

    def url(self, url: str | ValueSource) -> str:
        """Resolve an address; the parts of one from outside the YAML are also masked on their own.

        Raises:
            ConfigError: its environment variable is not set, or the value is not an address.
        """
        value = self.text(url, "url").strip()
        if not is_http_url(value):
            raise ConfigError(
                "url: the value is not an http address",
                suggestion="Check the variable that holds it.",
            )
        if not isinstance(url, str):
            parts = urlsplit(value)
            texts = (parts.path, parts.query, f"{parts.path}?{parts.query}", parts.netloc)
            self._values |= {text for text in texts if len(text) >= _SHORTEST}
        return value

    def texts(self, texts: Mapping[str, str | ValueSource]) -> dict[str, str]:
        """Resolve the texts of a mapping; their fields are its keys."""
        return {name: self.text(text, name) for name, text in texts.items()}

    def all(self, texts: Iterable[str | ValueSource], field: str) -> tuple[str, ...]:
        """Resolve the texts of a list."""
        return tuple(self.text(text, field) for text in texts)

    def hide(self, text: str) -> str:
        """Mask all values from outside the YAML, and each line of one, in an error or a log line."""
        return masked(text, self._values)

    def hide_credentials(self, value: Any) -> Any:
        """Mask the credentials in a tool's output, a JSON value."""
        return mapped(value, lambda text: masked(text, self._credentials)) if self._credentials else value


def _written(value: str) -> Iterator[str]:
    """Yield the forms in which a value's lines may appear: plain, escaped, or without ``Bearer``."""
    for line in value.splitlines():
        scheme, _, credentials = line.strip().partition(" ")
        has_scheme = scheme.isalpha() and " " not in credentials
        for told in (line, line.strip(), *([credentials] if has_scheme else [])):
            yield from (told, repr(told)[1:-1], ascii(told)[1:-1], repr(told.encode())[2:-1])
            yield from (json.dumps(told)[1:-1], json.dumps(told)[1:-1].replace("/", r"\/"))
            yield from (quote(told), quote(told, safe=""))
