"""How the Connections of all bundles fare, as the programs that run them note it in Redis."""

from collections.abc import Mapping
from typing import Any, Literal, cast
from urllib.parse import unquote

from redis import Redis

from broker_config.connections import redis_time, rows_of
from broker_config.keys import Keys
from goondan_tasks.contract.messages import WireModel, iso_time
from goondan_tasks.contract.table_rows import only_advice


class ConnectionStatus(WireModel):
    """How a Connection fares. Times are ISO 8601."""

    workspace: str
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

    @property
    def full_name(self) -> str:
        return f"{self.workspace}/{self.name}"


def all_connections(redis: Redis, keys: Keys) -> list[ConnectionStatus]:
    """Return the Connections that ran in the last 30 days, by workspace and name; damaged ones are left out.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    places: list[bytes] = []
    with only_advice(keys.connections):
        places = cast("list[bytes]", redis.zrange(keys.connections, 0, -1))
    names = sorted(place.decode(errors="replace").partition(":") for place in places)
    with redis.pipeline(transaction=False) as pipe:
        for workspace, _, own in names:
            pipe.hgetall(keys.connection(workspace, own))
        rows: list[Any] = rows_of(pipe)
    now = redis_time(redis)
    return [
        status_of(unquote(workspace), unquote(own), "", row, now)
        for (workspace, _, own), row in zip(names, rows, strict=True)
        if row
    ]


def status_of(
    workspace: str, name: str, connector: str, row: Mapping[bytes, bytes], now: float
) -> ConnectionStatus:
    """Read the record of a Connection; ``now`` is Redis' time in ms."""
    fields = {key.decode(errors="replace"): value.decode(errors="replace") for key, value in row.items()}
    is_running = "token" in fields and _number(fields, "until") > now
    last = _number(fields, "lastEventAt")
    return ConnectionStatus(
        workspace=workspace,
        name=name,
        connector=connector or fields.get("connector", ""),
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
