"""URLs of a master that Sentinels watch: ``sentinel://user:password@host:26379,host2:26379/service/0``.

User and password are those of the master. The Sentinels' own stand in the options ``sentinel_username`` and
``sentinel_password``. With ``rediss+sentinel://``, the connections to Sentinels and master use TLS.
"""

import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import unquote, urlsplit

SENTINEL_SCHEMES = ("sentinel", "rediss+sentinel")
SENTINEL_PORT = 26_379

_EXAMPLE = "sentinel://user:password@host1:26379,host2:26379/service/0"
_LOGIN_OPTIONS = frozenset({"username", "password"})


@dataclass(frozen=True, slots=True)
class SentinelUrl:
    """The parts of such a URL."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    database: int
    is_encrypted: bool
    #: user and password of the master as they stand in the URL, with the ``@``; empty if there are none
    login: str = field(default="", repr=False)
    #: what the Sentinels themselves demand
    sentinel_username: str | None = None
    sentinel_password: str | None = field(default=None, repr=False)
    #: the other options, as they stand in the URL
    options: str = field(default="", repr=False)

    @classmethod
    def is_one(cls, url: str) -> bool:
        """Return whether the URL's scheme is one of Sentinels."""
        return url.partition("://")[0] in SENTINEL_SCHEMES

    @classmethod
    def parse(cls, url: str) -> Self:
        """Read a URL.

        Raises:
            ValueError: a part is missing or invalid; the message continues ``GOONDAN_REDIS_URL:``.
        """
        scheme, _, rest = url.partition("://")
        address, _, query = rest.partition("?")
        netloc, _, path = address.partition("/")
        login, at, places = netloc.rpartition("@")
        if "@" in login:
            raise ValueError(f"must name user and password once, before the first host: {_EXAMPLE}")
        service, _, database = path.rstrip("/").partition("/")
        if not service:
            raise ValueError(f"must name the service that the Sentinels watch, after the hosts: {_EXAMPLE}")
        options = dict(option.partition("=")[::2] for option in query.split("&") if option)
        if _LOGIN_OPTIONS & options.keys():
            raise ValueError(f"must name user and password before the first host: {_EXAMPLE}")
        database = options.pop("db", database)
        if database and not re.fullmatch("[0-9]+", database):
            raise ValueError(f"must end with the number of a database: {_EXAMPLE}")
        name, password = options.pop("sentinel_username", None), options.pop("sentinel_password", None)
        return cls(
            sentinels=tuple(map(_host_and_port, places.split(","))),
            service=unquote(service),
            database=int(database or 0),
            is_encrypted=scheme != "sentinel",
            login=login + at,
            sentinel_username=name and unquote(name),
            sentinel_password=password and unquote(password),
            options="&".join(f"{option}={value}" for option, value in options.items()),
        )

    @property
    def of_master(self) -> str:
        """The same login, database and options as the URL of a Redis whose host is a placeholder."""
        scheme = "rediss" if self.is_encrypted else "redis"
        return f"{scheme}://{self.login}master/{self.database}?{self.options}"


def _host_and_port(place: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{place}")
        port = parts.port or SENTINEL_PORT
        if parts.hostname:
            return parts.hostname, port
    except ValueError:
        pass
    raise ValueError(f"must name the Sentinels by host and port, separated by commas: {_EXAMPLE}")
