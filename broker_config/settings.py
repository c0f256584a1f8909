"""The settings of a process, from ``GOONDAN_*`` variables.

No other module reads the environment, except for the ValueSources ``env`` and ``secretRef`` of a bundle.
"""

import os
import re
from io import StringIO
from ipaddress import IPv4Network, IPv6Network, ip_network
from pathlib import Path
from typing import Annotated, Literal
from urllib.parse import SplitResult, urlsplit

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, field_validator

from broker_config.sentinel_url import SentinelUrl
from broker_config.value_faults import fault_text

REDIS_SCHEMES = ("redis", "rediss", "unix")
_PUBLIC_URL = re.compile(r"https?://[^\s/?#@\\]+(/[A-Za-z0-9._~%/-]*)?", re.IGNORECASE)

_ORIGIN = re.compile(r"https?://[^\s/?#@\\,*A-Z]+(?<!:)")

PREFIX = "GOONDAN_"
#: earlier versions were told of a second broker here
_BROKER = f"{PREFIX}BROKER_URL"
#: the prefix of bundles' secrets, which are not settings
_SECRETS = "GOONDAN_SECRET_"
#: ten years; Redis and clocks can represent all such times
_MOST_SECONDS = 10 * 366 * 86_400
#: options of redis-py that kombu does not support
_LOGIN_OPTION = re.compile(r"(?:^|&)(?:username|password)=")
_PASSWORD_OPTION = re.compile(r"(?i)((?:^|&)[^=&]*password=)[^&]*")

#: headers that mean something else, which clients set themselves
_HEADERS_OF_OTHERS = frozenset(
    {"authorization", "host", "origin", "cookie", "content-type", "content-length"}
)

_Seconds = Annotated[float, Field(gt=0, le=_MOST_SECONDS)]


#: settings that were removed from the environment, by field
_withheld: dict[str, str] = {}
#: variables that a file has added to the environment
_added: dict[str, str] = {}


class SettingsError(ValueError):
    """``GOONDAN_*`` variables have invalid values; the message names each one."""

    code = "E_CONFIG_SCHEMA_INVALID"


class Settings(BaseModel):
    """All settings with their defaults. Sizes are in bytes, times in seconds."""

    model_config = ConfigDict(frozen=True, validate_default=True)

    redis_url: str = "redis://127.0.0.1:6379/0"
    bundle: Path | None = None
    bundle_remote: str | None = None
    swarm: str | None = None
    workspace: str | None = None
    state_root: Path = Path("~/.goondan")
    cache_dir: Path | None = None
    namespace: str = "goondan"
    dev: Literal["on", "off"] = "off"
    javascript: str | None = None
    connect_timeout_seconds: float = Field(default=10, ge=0, le=_MOST_SECONDS)
    wait_replicas: int = Field(default=0, ge=0, le=1_000)
    wait_aof: Literal["on", "off"] = "off"
    wait_seconds: float = Field(default=1, gt=0, le=3)

    result_ttl_seconds: int = Field(default=86_400, gt=0, le=_MOST_SECONDS)
    usage_days: int = Field(default=90, ge=3, le=400)
    lease_seconds: _Seconds = 30
    max_attempts: int = Field(default=3, gt=0)
    call_timeout_seconds: _Seconds = 300
    queue_timeout_seconds: _Seconds = 3_600
    grace_seconds: float = Field(default=30, ge=0, le=_MOST_SECONDS)
    max_waiting: int = Field(default=256, gt=0)
    max_args_bytes: int = Field(default=1_048_576, gt=0)
    max_output_bytes: int = Field(default=262_144, ge=1_024)
    max_handoff_depth: int = Field(default=16, gt=0)

    http_allow: str = ""
    http_host: str = "127.0.0.1"
    http_port: int = Field(default=8765, ge=0, le=65_535)
    http_token: SecretStr | None = None
    http_tokens: SecretStr | None = None
    http_user_header: str | None = None
    http_trusted_proxies: str = ""
    http_origins: str = ""
    public_url: str | None = None
    oauth_key: SecretStr | None = None
    oauth_store: Literal["redis", "file"] = "redis"
    metrics_port: int | None = Field(default=None, ge=0, le=65_535)

    help_url: str = "https://docs.goondan.ai/errors/"
    events: Literal["on", "off"] = "on"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["console", "json"] = "console"

    @field_validator("log_level", mode="before")
    @classmethod
    def _lower(cls, level: object) -> object:
        return level.lower() if isinstance(level, str) else level

    @field_validator("namespace")
    @classmethod
    def _is_plain(cls, namespace: str) -> str:
        if re.fullmatch(r"[A-Za-z0-9._-]+", namespace) is None:
            raise ValueError("may contain only letters, digits, '.', '_' and '-'")
        return namespace

    @field_validator("bundle", "state_root", "cache_dir")
    @classmethod
    def _expanded(cls, path: Path | None) -> Path | None:
        """Expand ``~``, which is not expanded in a file of variables."""
        try:
            return path and path.expanduser()
        except RuntimeError:
            raise ValueError("begins with the home directory of an unknown user") from None

    @field_validator("redis_url")
    @classmethod
    def _is_one_redis_url(cls, url: str) -> str:
        if SentinelUrl.is_one(url):
            return url
        if "," in url or ";" in url:
            raise ValueError("must be one URL; several Sentinels are sentinel://host1,host2/service")
        if url.partition("://")[0].endswith("+cluster"):
            raise ValueError("must not be a Redis Cluster, which cannot run the scripts that queues need")
        if _url_parts(url).scheme not in REDIS_SCHEMES:
            raise ValueError(
                "must start with redis://, rediss://, unix://, sentinel:// or rediss+sentinel://"
            )
        return url

    @field_validator("redis_url")
    @classmethod
    def _has_login_port_and_database(cls, url: str) -> str:
        if SentinelUrl.is_one(url):
            SentinelUrl.parse(url)
            return url
        parts = _url_parts(url)
        if parts.scheme in REDIS_SCHEMES and _LOGIN_OPTION.search(parts.query):
            raise ValueError("must name user and password before the host: redis://user:password@host:6379/0")
        database = parts.path.strip("/")
        if parts.scheme in {"redis", "rediss"} and database and not database.isdecimal():
            raise ValueError("must end with the number of a database: redis://host:6379/0")
        return url

    @field_validator("http_user_header")
    @classmethod
    def _is_header(cls, name: str | None) -> str | None:
        if name is not None and (
            re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}", name) is None
            or name.lower() in _HEADERS_OF_OTHERS
        ):
            raise ValueError("must be the name of a header that a proxy sets, such as X-Forwarded-User")
        return name

    @field_validator("http_trusted_proxies")
    @classmethod
    def _are_networks(cls, text: str) -> str:
        networks_of(text)
        return text

    @field_validator("http_origins")
    @classmethod
    def _are_origins(cls, text: str) -> str:
        origins_of(text)
        return text

    @field_validator("public_url")
    @classmethod
    def _is_address(cls, url: str | None) -> str | None:
        if url is None:
            return None
        if _PUBLIC_URL.fullmatch(url) is None or not _has_usable_port(url):
            raise ValueError("must be an address such as https://host or https://host/path, without a query")
        return url

    @classmethod
    def load(cls, **overrides: object) -> "Settings":
        """Read the environment; ``overrides`` (from the command line) take precedence.

        Raises:
            SettingsError: a variable has an invalid value.
        """
        named = {name: os.environ.get(f"{PREFIX}{name.upper()}") for name in cls.model_fields}
        read = {name: text for name, text in named.items() if text}
        _require_one_broker(read.get("redis_url", cls.model_fields["redis_url"].default))
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return cls.model_validate({**read, **_withheld, **given})
        except ValidationError as error:
            raise SettingsError(_explain(error)) from error

    def changed(self, **overrides: object) -> "Settings":
        """Return these settings with others in the place of some, which are checked; ``None`` changes none.

        Raises:
            SettingsError: a value is invalid.
        """
        given = {name: value for name, value in overrides.items() if value is not None}
        try:
            return self.model_validate({**dict(self), **given}) if given else self
        except ValidationError as error:
            raise SettingsError(_explain(error)) from error

    @classmethod
    def withhold(cls, name: str) -> None:
        """Remove a setting from the environment: ``load`` still reads it, child processes do not get it."""
        text = os.environ.pop(f"{PREFIX}{name.upper()}", None)
        if text is not None:
            _withheld[name] = text

    @classmethod
    def add_variables(cls, content: str) -> dict[str, str]:
        """Add the variables of a ``.env`` file, given its content, to the environment; return those added.

        Variables that were set before are kept. Variables that an earlier call has added, and this one does
        not, are removed.

        Raises:
            SettingsError: the file is invalid; the message names the line, but not its content.
        """
        from dotenv.main import DotEnv  # only `goondan dev` reads such a file
        from dotenv.parser import parse_stream

        for line in parse_stream(StringIO(content)):
            if line.error or "=" in (line.key or "") or "\0" in line.original.string:
                raise SettingsError(f"line {line.original.line} is not NAME=value")
        for name in _added:
            os.environ.pop(name, None)
        given = DotEnv(None, stream=StringIO(content), override=False).dict()
        _added.clear()
        _added.update(
            {name: text for name, text in given.items() if text is not None and name not in os.environ}
        )
        os.environ.update(_added)
        return dict(_added)

    @classmethod
    def environment(cls, **overrides: object) -> dict[str, str]:
        """Return the environment for a child process, with settings overridden by name."""
        given = {name: value for name, value in overrides.items() if value is not None}
        named = {f"{PREFIX}{name.upper()}": str(value) for name, value in given.items()}
        return {name: text for name, text in os.environ.items() if name != _BROKER} | named

    @classmethod
    def variables(cls) -> list[str]:
        """Return the names of the variables that are read."""
        return [f"{PREFIX}{name.upper()}" for name in cls.model_fields]

    @classmethod
    def unread_variables(cls) -> list[str]:
        """Return the environment's variables that look like settings but are not, such as misspelt ones."""
        read = set(cls.variables())
        named = (name for name in os.environ if name.startswith(PREFIX) and not name.startswith(_SECRETS))
        return sorted(name for name in named if name not in read)

    @property
    def cache_path(self) -> Path:
        """The directory for reproducible files of this machine, as an absolute path."""
        return (self.cache_dir or Path("~/.cache/goondan")).expanduser().absolute()

    @property
    def oauth_key_path(self) -> Path:
        """The file with the keys of the OAuth store, if ``GOONDAN_OAUTH_KEY`` is not set."""
        return self.state_root_path / "oauth" / "keys"

    @property
    def state_root_path(self) -> Path:
        """The state root as an absolute path."""
        return self.state_root.expanduser().absolute()


def span_exporters() -> tuple[str, ...]:
    """Return the entry points of the span exporters that OpenTelemetry's own variables select.

    OpenTelemetry's default, to send everything to this machine, applies only if an endpoint is set.
    """
    read = os.environ.get
    endpoint = read("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or read("OTEL_EXPORTER_OTLP_ENDPOINT")
    named = read("OTEL_TRACES_EXPORTER") or ("otlp" if endpoint else "none")
    protocol = read("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL") or read("OTEL_EXPORTER_OTLP_PROTOCOL")
    return _exporters(named, protocol)


def metric_exporters() -> tuple[str, ...]:
    """Return the entry points of the metric exporters that OpenTelemetry's own variables select.

    The endpoint that all signals share selects none: collectors of spans may have no place for metrics.
    """
    read = os.environ.get
    endpoint = read("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
    protocol = read("OTEL_EXPORTER_OTLP_METRICS_PROTOCOL") or read("OTEL_EXPORTER_OTLP_PROTOCOL")
    return _exporters(read("OTEL_METRICS_EXPORTER") or ("otlp" if endpoint else "none"), protocol)


def _exporters(named: str, protocol: str | None) -> tuple[str, ...]:
    if os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return ()
    otlp = "otlp_proto_grpc" if protocol == "grpc" else "otlp_proto_http"
    names = (name.strip() for name in named.split(","))
    return tuple(otlp if name == "otlp" else name for name in names if name not in {"", "none"})


def origins_of(text: str) -> frozenset[str]:
    """Read the origins of GOONDAN_HTTP_ORIGINS, separated by commas.

    Raises:
        ValueError: one of them is none.
    """
    origins = [name.strip() for name in text.split(",") if name.strip()]
    for origin in origins:
        if _ORIGIN.fullmatch(origin) is None or not _has_usable_port(origin):
            raise ValueError(
                f"{origin!r} is not an origin as browsers send it, such as https://app.example or "
                "http://localhost:3000: in lower case, without path and default port"
            )
    return frozenset(origins)


def networks_of(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Read the networks of GOONDAN_HTTP_TRUSTED_PROXIES, separated by commas.

    Raises:
        ValueError: one of them is neither an address nor a network.
    """
    networks = []
    for part in filter(None, map(str.strip, text.split(","))):
        try:
            networks.append(ip_network(part))
        except ValueError:
            raise ValueError(
                f"must be addresses or networks such as 10.0.0.7,10.1.0.0/16, not {part!r}"
            ) from None
    return tuple(networks)


def _require_one_broker(redis_url: str) -> None:
    """Refuse the variable by which earlier versions were told of a second broker."""
    broker_url = os.environ.get(_BROKER)
    if broker_url and broker_url != redis_url:
        raise SettingsError(
            f"{_BROKER} names another broker, but calls lie in the Redis or Valkey of {PREFIX}REDIS_URL. "
            f"Remove {_BROKER}."
        )


def _url_parts(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port, url.encode(), (parts.hostname or "").encode("idna")
    except ValueError:
        raise ValueError(
            "must be a URL such as redis://host:6379/0, with a host name and a port below 65536"
        ) from None
    return parts


def _has_usable_port(url: str) -> bool:
    try:
        _ = urlsplit(url).port
    except ValueError:
        return False
    return True


def _explain(error: ValidationError) -> str:
    faults = (
        f"{PREFIX}{'.'.join(map(str, fault['loc'])).upper()}: {fault_text(fault, shows_value=True)}"
        for fault in error.errors(include_url=False)
    )
    return "; ".join(faults)


def hidden_password(url: str) -> str:
    """Return ``url`` for a log or an error, with all passwords, also in its options, as ``***``."""
    address, mark, options = url.partition("?")
    parts = urlsplit(address)
    if parts.password is not None:
        place = parts.netloc.rpartition("@")[2]
        address = parts._replace(netloc=f"{parts.username or ''}:***@{place}").geturl()
    return address + mark + _PASSWORD_OPTION.sub(r"\1***", options)
