"""What Redis keeps of each Connection: the lease of its one process, its cursor, and how it fares."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal, Self, cast
from urllib.parse import quote, unquote

from redis import Redis

from broker_config import serializer
from broker_config.connections import redis_time, rows_of
from broker_config.keys import Keys
from broker_config.queues import events_queue
from broker_config.scripts import Script, ScriptCall
from broker_config.settings import Settings
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.contract.events import mailbox_name
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_tasks.contract.table_rows import naming
from goondan_tasks.fleet.connections import ConnectionStatus, status_of

#: how long a Connection is kept after its last process
TTL_SECONDS = 30 * 86_400
MAX_CURSOR_BYTES = 65_536
_LONGEST_REASON = 2_000

Outcome = Literal["events", "refused"]


@dataclass(frozen=True, slots=True)
class Lease:
    """One process's hold on a Connection; each run of a connector has a token of its own."""

    key: str
    token: str
    #: ``<host>:<pid>``
    owner: str
    connector: str


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
        place = ":".join(lease.key.rsplit(":", 2)[1:])
        terms = (int(self.lease_seconds * 1000), TTL_SECONDS, lease.connector, place)
        keys, arguments = [lease.key, self._keys.connections], (lease.token, lease.owner, *terms)
        hold: ScriptCall[int] = ScriptCall(self._hold, keys, arguments)
        with naming(*keys):
            return hold.run(self._redis) / 1000

    def let_go(self, lease: Lease, error: str = "") -> None:
        """End a lease; ``error`` is how the process ended, if it failed."""
        self._run(self._let_go, lease, lease.token, _reason(error))

    def count(self, lease: Lease, outcome: Outcome, error: str = "") -> None:
        """Count an event, and note when it came, or why it was refused."""
        noted = ("lastEventAt", "now") if outcome == "events" else ("lastError", _reason(error))
        self._run(self._note, lease, lease.token, TTL_SECONDS, outcome, *noted)

    def note_error(self, lease: Lease, error: str) -> None:
        """Note how a run has failed whose lease others share."""
        self._run(self._note, lease, lease.token, TTL_SECONDS, "", "lastError", _reason(error))

    def waiting(self, agent: str, instance_key: str) -> int:
        """Return how many events wait: those in the agent's queue, or in the instance's mailbox if they are
        more. Events behind others of their instance leave the queue when a worker has seen them."""
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.llen(events_queue(agent))
            pipe.llen(self._keys.mailbox(mailbox_name(agent, instance_key)))
            return max(int(count or 0) for count in rows_of(pipe))

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

    def now(self) -> float:
        """Return the time of Redis, in ms since the epoch."""
        return redis_time(self._redis)

    def slot(self, name: str, trigger: int, timing: str) -> int | None:
        """Return the last slot (ms) that a trigger was called for; ``None`` if it had another timing."""
        with naming(self.key(name)):
            kept = cast("bytes | None", self._redis.hget(self.key(name), f"slot:{trigger}"))
        slot, _, of = (kept or b"").decode(errors="replace").partition(" ")
        return int(slot) if of == timing and slot.isdecimal() else None

    def move_slot(self, lease: Lease, trigger: int, timing: str, slot: int) -> None:
        """Store the last slot (ms) of a trigger; ``timing`` is a digest of what decides its slots.

        Raises:
            ConnectorError: another process has the lease.
        """
        noted = (f"slot:{trigger}", f"{slot} {timing}")
        if not self._run(self._note, lease, lease.token, TTL_SECONDS, "", *noted):
            raise ConnectorError("Another process has the lease of this Connection now.")

    def statuses(self, connectors: Mapping[str, str]) -> list[ConnectionStatus]:
        """Return how Connections fare; ``connectors`` has the Connector of each by its name."""
        now = redis_time(self._redis)
        found = []
        for name, connector in connectors.items():
            with naming(self.key(name)):
                rows = cast("dict[bytes, bytes]", self._redis.hgetall(self.key(name)))
            found.append(status_of(unquote(self._workspace), name, connector, rows, now))
        return found

    def _run(self, script: Script, lease: Lease, *arguments: Any) -> int:
        with naming(lease.key):
            return cast(int, ScriptCall(script, [lease.key], arguments).run(self._redis))


def _reason(error: str) -> bytes:
    """Return a text about an error, which a connector may have written, as it is stored: without secrets."""
    return KNOWN_SECRETS.hidden_in_log(error)[:_LONGEST_REASON].encode("utf-8", "backslashreplace")
