"""What Redis keeps of each Connection: the lease of its one process, its cursor, and how it fares."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, Self, cast
from urllib.parse import quote

from redis import Redis

from broker_config import serializer
from broker_config.connections import redis_time
from broker_config.keys import Keys
from broker_config.scripts import Script, ScriptCall
from broker_config.settings import Settings
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.contract.messages import WireModel, iso_time
from goondan_tasks.contract.table_rows import naming

#: how long a Connection is kept after its last process
TTL_SECONDS = 30 * 86_400
MAX_CURSOR_BYTES = 65_536
_LONGEST_REASON = 2_000

Outcome = Literal["events", "refused"]


class ConnectionStatus(WireModel):
    """A Connection, as ``goondan connectors list --json`` prints it."""

    name: str
    connector: str
    #: ``running``: a process holds its lease
    state: Literal["running", "stopped"]
    #: the process: ``<host>:<pid>``
    process: str | None = None
    since: str | None = None
    #: accepted, and refused because they were not valid or no rule fitted
    events: int = 0
    refused: int = 0
    last_event_at: str | None = None
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class Lease:
    """One process's hold on a Connection; each run of a connector has a token of its own."""

    key: str
    token: str
    #: ``<host>:<pid>``
    owner: str


class ConnectionStore:
    """The Connections of one workspace. Each change is one script.

    Methods raise ``redis.exceptions.RedisError`` if Redis cannot be reached, and RecordDamagedError if
    another program has written a Connection's key.
    """

    def __init__(self, redis: Redis, keys: Keys, workspace: str, *, lease_seconds: float) -> None:
        """``lease_seconds`` is how long a process holds a Connection without renewing its lease."""
        self._redis, self._keys, self._workspace = redis, keys, quote(workspace, safe="")
        self.lease_seconds = lease_seconds
        folder = files("goondan_tasks.connectors") / "scripts"
        self._hold, self._note, self._let_go = (
            Script.read(folder, name) for name in ("hold", "note", "let_go")
        )

    @classmethod
    def of(cls, redis: Redis, settings: Settings, workspace: str) -> Self:
        """Return the Connections of a workspace; their lease is that of calls."""
        return cls(redis, Keys(settings.namespace), workspace, lease_seconds=settings.lease_seconds)

    def key(self, name: str) -> str:
        """Return the key of a Connection."""
        return self._keys.connection(self._workspace, quote(name, safe=""))

    def hold(self, lease: Lease) -> float:
        """Take or renew a lease; return 0, or how long another process holds it (seconds)."""
        arguments = (lease.token, lease.owner, int(self.lease_seconds * 1000), TTL_SECONDS)
        return self._run(self._hold, lease, *arguments) / 1000

    def let_go(self, lease: Lease, error: str = "") -> None:
        """End a lease; ``error`` is how the process ended, if it failed."""
        self._run(self._let_go, lease, lease.token, _reason(error))

    def count(self, lease: Lease, outcome: Outcome, error: str = "") -> None:
        """Count an event, and note when it came, or why it was refused."""
        noted = ("lastEventAt", "now") if outcome == "events" else ("lastError", _reason(error))
        self._run(self._note, lease, lease.token, TTL_SECONDS, outcome, *noted)

    def cursor(self, name: str) -> Any:
        """Return a Connection's cursor, ``None`` if there is none."""
        with naming(self.key(name)):
            text = cast("bytes | None", self._redis.hget(self.key(name), "cursor"))
        return None if text is None else serializer.decode(text)

    def move_cursor(self, lease: Lease, value: Any) -> None:
        """Store a Connection's cursor, any JSON.

        Raises:
            ConnectorError: it is too large, or another process has the lease.
            broker_config.serializer.NotJsonError: it is not JSON.
        """
        text = serializer.encode(value)
        if len(text) > MAX_CURSOR_BYTES:
            raise ConnectorError(
                f"The cursor has {len(text):,} bytes, more than {MAX_CURSOR_BYTES:,}.",
                suggestion="Keep only the place in the source, and data in a store of your own.",
            )
        if not self._run(self._note, lease, lease.token, TTL_SECONDS, "", "cursor", text):
            raise ConnectorError(
                "Another process has the lease of this Connection now; the cursor is not moved.",
                suggestion="Let this process end: the other one goes on.",
            )

    def statuses(self, connectors: Mapping[str, str]) -> list[ConnectionStatus]:
        """Return how Connections fare; ``connectors`` has the Connector of each by its name."""
        now = redis_time(self._redis)
        found = []
        for name, connector in connectors.items():
            with naming(self.key(name)):
                rows = cast("dict[bytes, bytes]", self._redis.hgetall(self.key(name)))
            fields = {key.decode(): value.decode(errors="replace") for key, value in rows.items()}
            found.append(_status(name, connector, fields, now))
        return found

    def _run(self, script: Script, lease: Lease, *arguments: Any) -> int:
        with naming(lease.key):
            return cast(int, ScriptCall(script, [lease.key], arguments).run(self._redis))


def _reason(error: str) -> bytes:
    """Return a text about an error, which a connector may have written, as it is stored."""
    return error[:_LONGEST_REASON].encode("utf-8", "backslashreplace")


def _status(name: str, connector: str, fields: Mapping[str, str], now: float) -> ConnectionStatus:
    is_running = "token" in fields and _number(fields, "until") > now
    last = _number(fields, "lastEventAt")
    return ConnectionStatus(
        name=name,
        connector=connector,
        state="running" if is_running else "stopped",
        process=fields.get("owner") if is_running else None,
        since=iso_time(_number(fields, "since")) if is_running else None,
        events=int(_number(fields, "events")),
        refused=int(_number(fields, "refused")),
        last_event_at=iso_time(last) if last else None,
        last_error=fields.get("lastError"),
    )


def _number(fields: Mapping[str, str], name: str) -> float:
    """Return a number that a script has written; 0 for what another program has."""
    text = fields.get(name, "")
    return float(text) if text.isdecimal() and len(text) < 16 else 0.0
