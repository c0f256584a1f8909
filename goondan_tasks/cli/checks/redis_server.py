"""Is the Redis server fit for a broker? Judged by its INFO, which managed servers allow too."""

from collections.abc import Iterable, Mapping
from typing import Any

from goondan_tasks.cli.checks.check import Check

OLDEST = (6, 2)
#: of maxmemory; with noeviction a full server refuses every write
FULL = 0.85
SLOW_MILLISECONDS = 20.0
CLOCK_SECONDS = 1.0
#: keys of another program that are named
NAMED = 3
#: what stands between the name of a queue and a priority
_PRIORITY_MARK = "\x06\x16"

Info = Mapping[str, Any]


def server_checks(info: Info) -> list[Check]:
    """Check version, role, eviction policy, persistence and memory."""
    return [_version(info), _role(info), _eviction(info), _persistence(info), _memory(info)]


def latency_check(milliseconds: float) -> Check:
    """Check how long one trip takes; a call makes about four."""
    message = f"one trip takes {milliseconds:.1f} ms"
    if milliseconds < SLOW_MILLISECONDS:
        return Check("latency", "ok", message)
    return Check("latency", "warning", message, "Run workers and producers near their Redis.")


def clock_check(difference_seconds: float) -> Check:
    """Check how far this machine's clock is from the server's, which decides."""
    if abs(difference_seconds) <= CLOCK_SECONDS:
        return Check("clock", "ok", "this machine and Redis agree on the time")
    way = "ahead of" if difference_seconds > 0 else "behind"
    message = f"this machine is {abs(difference_seconds):.0f} s {way} Redis"
    remedy = "Synchronize the clocks (NTP): deadlines go by Redis, times in logs by this machine."
    return Check("clock", "warning", message, remedy)


def neighbour_check(keys: Iterable[str], namespace: str, *, is_sample: bool) -> Check:
    """Check whether another program keeps keys in the same database."""
    looked_at = sorted(keys)
    foreign = [key for key in looked_at if not _is_ours(key, namespace)]
    scope = f"the {len(looked_at)} keys looked at" if is_sample else f"{len(looked_at)} keys"
    if not foreign:
        return Check("database", "ok", f"only ours among {scope}")
    named = ", ".join(repr(key) for key in foreign[:NAMED])
    message = f"{len(foreign)} of {scope} belong to another program, such as {named}"
    return Check(
        "database", "warning", message, "Give each system a database of its own: redis://host:6379/1."
    )


def priority_checks(keys: Iterable[str]) -> list[Check]:
    """Check whether calls lie in queues of another priority (kombu/transport/redis.py: its ``sep``).

    A Celery program that gives a priority makes them; workers read the plain queues alone.
    """
    unread = sorted(key for key in keys if key.startswith("agent.") and _PRIORITY_MARK in key)
    if not unread:
        return []
    named = ", ".join(repr(key) for key in unread[:NAMED])
    remedy = (
        "Give messages no priority, or set broker_transport_options = {'priority_steps': [0]} in the program "
        "that sends them; LMOVE brings what is there into the plain queue."
    )
    return [Check("priorities", "problem", f"no worker reads the queues of a priority: {named}", remedy)]


def _is_ours(key: str, namespace: str) -> bool:
    """Tell our keys and those that Celery makes for us from others; Celery's default queue is not ours."""
    starts = (f"{namespace}:", "agent.", "celery-task-meta-", "unacked", "_kombu.")
    return key.startswith(starts) or "celery.pidbox" in key or "celeryev" in key


def _version(info: Info) -> Check:
    version = str(info.get("redis_version", "0"))
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    shown = info.get("valkey_version", version)
    if _numbers(version) >= OLDEST:
        return Check("version", "ok", f"{name} {shown}")
    oldest = ".".join(map(str, OLDEST))
    return Check("version", "problem", f"{name} {shown} is too old", f"Upgrade to Redis {oldest} or newer.")


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2] if part.isdigit())


def _role(info: Info) -> Check:
    if info.get("cluster_enabled"):
        remedy = "Use a single server, or one with a replica; a queue cannot be spread over a cluster."
        return Check("role", "problem", "the server is part of a Redis Cluster", remedy)
    if info.get("role", "master") != "master":
        return Check("role", "problem", "the server is a read-only replica", "Use the URL of its master.")
    return Check("role", "ok", "a master, not part of a cluster")


def _eviction(info: Info) -> Check:
    policy = info.get("maxmemory_policy", "unknown")
    if policy == "noeviction":
        return Check("eviction", "ok", "noeviction")
    remedy = (
        "Set `maxmemory-policy noeviction` in redis.conf, "
        "and now: redis-cli CONFIG SET maxmemory-policy noeviction."
    )
    return Check(
        "eviction", "problem", f"maxmemory-policy is {policy}: Redis may drop accepted calls", remedy
    )


def _persistence(info: Info) -> Check:
    if not info.get("aof_enabled"):
        remedy = "Set `appendonly yes` in redis.conf, and now: redis-cli CONFIG SET appendonly yes."
        return Check("persistence", "warning", "no append-only file: a restart loses accepted calls", remedy)
    if info.get("aof_last_write_status", "ok") != "ok":
        remedy = "Look at the server's log and the space on its disk."
        return Check("persistence", "problem", "the append-only file cannot be written", remedy)
    return Check("persistence", "ok", "append-only file")


def _memory(info: Info) -> Check:
    used, limit = int(info.get("used_memory", 0)), int(info.get("maxmemory", 0))
    of_limit = f"of {_megabytes(limit)} MB" if limit else "used, no limit"
    message = f"{_megabytes(used)} MB {of_limit}"
    if limit and used > FULL * limit:
        remedy = "Raise maxmemory, or lower GOONDAN_RESULT_TTL_SECONDS; a full server accepts no call."
        return Check("memory", "warning", message, remedy)
    return Check("memory", "ok", message)


def _megabytes(size: int) -> str:
    return f"{size / 1_000_000:.0f}"
