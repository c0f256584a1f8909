"""``goondan doctor``: checks of this machine, Redis, the workers and the bundle."""

import os
import platform
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rich.text import Text

from broker_config.connections import SERVERS, connect, is_supported, redis_time, require_writable
from broker_config.embedded import RedisBinaryNotFound, find_redis_server
from broker_config.keys import Keys
from broker_config.refusals import RefusedError, reason_unreachable, refusal_text, remedy_of
from broker_config.settings import PREFIX, Settings, hidden_password
from goondan_tasks.bundle import BoundTool, Bundle, Finding, inspect_bundle
from goondan_tasks.cli.fleet_checks import (
    Check,
    connection_checks,
    dead_letter_checks,
    fleet_checks,
    loss_checks,
    mail_check,
    mcp_server_checks,
    past_loss_checks,
    pause_checks,
    revision_checks,
    schedule_checks,
)
from goondan_tasks.cli.http_checks import http_checks, stored_token_checks
from goondan_tasks.cli.options import flag
from goondan_tasks.cli.output import (
    BROKER_UNREACHABLE,
    CONFIGURATION,
    OK,
)
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.client.status import read_agents, read_unfetched_mail
from goondan_tasks.connectors.connections import runnable
from goondan_tasks.connectors.store import ConnectionStore
from goondan_tasks.contract.errors import PACKAGE_NOT_INSTALLED, BrokerUnreachableError, ConfigError
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.contract.wording import closest, counted, printable
from goondan_tasks.fleet.agent_registry import AgentRecord, AgentRegistry, describe_agents
from goondan_tasks.fleet.call_counts import CountStore
from goondan_tasks.fleet.connections import ConnectionStatus
from goondan_tasks.fleet.http_tokens import TokenStore
from goondan_tasks.instances.earlier import EarlierWorkspace, earlier_workspace
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.schedules import ScheduleStore
from goondan_tasks.machine import sandbox
from goondan_tasks.machine.javascript import INSTALL, find_runtime, is_javascript, missing_runtime
from goondan_tasks.revisions.active import ActiveRevision, RevisionState, UnreadableRevisionsError

#: the release with which the delivery of calls was tested and measured
CELERY = "5.7"
#: the share of maxmemory that counts as full; with noeviction a full server refuses every write
FULL = 0.85
SLOW_MILLISECONDS = 20.0
CLOCK_SECONDS = 1.0
#: a mailbox whose events have waited for this long gets a warning, even if a producer works at a Turn
UNFETCHED_SECONDS = 300.0
#: how long calls that died with their workers get a warning after they were settled
LOSS_SECONDS = 3600.0

#: how often latency is measured, how many keys are sampled, how many foreign keys are named
_TRIPS, _SAMPLED_KEYS, _NAMED = 5, 2000, 3
#: separates a queue's name from its priority
_PRIORITY_MARK = "\x06\x16"
_PACKAGES = ("goondan-workers", "celery", "kombu", "redis", "flower")
_REMEDY = (
    "Start Redis, or set GOONDAN_REDIS_URL: for a `goondan dev`, paste the `export` line that it prints. "
    "Behind a firewall, open the port for this machine."
)
_STYLES = {"ok": "bold green", "warning": "bold yellow", "problem": "bold red"}

Info = Mapping[str, Any]


@takes_session
def doctor(
    session: Session, strict: Annotated[bool, flag("Treat warnings as problems.", "--strict")] = False
) -> None:
    """Check this machine, Redis, the workers and the bundle; say what to fix.

    The exit code is 5 if Redis cannot be reached, 3 for any other problem (with --strict also for a warning),
    otherwise 0.
    """
    settings = session.settings
    bundle, findings = inspect_bundle(settings.bundle) if settings.bundle else (None, [])
    checks = [
        package_check(),
        embedded_redis_check(),
        settings_check(Settings.unread_variables(), Settings.variables()),
        state_root_check(settings.state_root_path),
        bundle_check(settings.bundle, findings),
        *requirements_check(settings.bundle, findings),
        *workspace_check(settings, bundle),
        *oauth_key_check(settings, bundle),
        *http_checks(settings, wall_clock()),
        sandbox_check(bundle),
        javascript_check(bundle, settings.javascript),
    ]
    code = OK
    try:
        checks += _redis_checks(settings, bundle)
    except BrokerUnreachableError as error:
        checks.append(Check("broker", "problem", error.message, error.suggestion))
        code = BROKER_UNREACHABLE
    counts = Counter(check.level for check in checks)
    healthy = not counts["problem"] and not (strict and counts["warning"])
    sums = [
        f"{counts['ok']} ok",
        counted(counts["warning"], "warning"),
        counted(counts["problem"], "failure"),
    ]
    text = Text("\n").join([*map(_text_of, checks), Text(", ".join(sums), style="bold")])
    session.output.give({"healthy": healthy, "checks": [check.to_wire() for check in checks]}, text)
    if not healthy:
        raise typer.Exit(code or CONFIGURATION)


def _text_of(check: Check) -> Text:
    text = Text().append(f"{check.level:<8} ", style=_STYLES[check.level])
    text.append(printable(f"{check.name}: "), style="bold").append(printable(check.message))
    return text if check.remedy is None else text.append(printable(f"\n         {check.remedy}"))


def package_check() -> Check:
    versions = {name: _version_of(name) for name in _PACKAGES}
    listed = ", ".join(f"{name} {number}" for name, number in versions.items())
    message = f"Python {platform.python_version()}, {listed}"
    if versions["celery"].startswith(f"{CELERY}."):
        return Check("packages", "ok", message)
    return Check("packages", "problem", message, f"Install Celery {CELERY}: pip install 'celery~={CELERY}.0'")


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "missing"


def embedded_redis_check() -> Check:
    """Check that `goondan dev`, `goondan demo` and LocalStack find a Redis server to start."""
    try:
        return Check("embedded Redis", "ok", str(find_redis_server()))
    except RedisBinaryNotFound as error:
        return Check("embedded Redis", "warning", "demo and dev cannot start one", str(error))


def settings_check(unread: Sequence[str], known: Sequence[str]) -> Check:
    """Check that every GOONDAN_ variable is a setting; a misspelt one has no effect."""
    if not unread:
        return Check("settings", "ok", "every GOONDAN_ variable is known")
    remedies = []
    for name in unread:
        # without the prefix, which makes all names alike
        meant = closest(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known])
        remedies.append(f"Remove {name}." if meant is None else f"Rename {name} to {PREFIX}{meant}.")
    return Check("settings", "warning", f"not read: {', '.join(unread)}", " ".join(remedies))


def state_root_check(root: Path) -> Check:
    """Check that a worker can write or create the state root."""
    nearest = next(place for place in (root, *root.parents) if place.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Check(
            "state root", "ok", f"{root}{'' if nearest == root else ' (created by the first worker)'}"
        )
    remedy = "Make it writable for the workers' user, or set GOONDAN_STATE_ROOT to another directory."
    return Check("state root", "problem", f"{nearest} cannot be written", remedy)


def bundle_check(path: Path | None, findings: Sequence[Finding]) -> Check:
    if path is None:
        return Check("bundle", "ok", "none is set; producers use what workers announce")
    if not findings:
        return Check("bundle", "ok", str(path))
    errors = sum(finding.level == "error" for finding in findings)
    message = f"{path}: {counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}"
    return Check("bundle", "problem" if errors else "warning", message, f"goondan validate {path}")


def requirements_check(path: Path | None, findings: Sequence[Finding]) -> list[Check]:
    """Check that the packages that the bundle requires are installed; empty if all are."""
    missing = (one for one in findings if one.code == PACKAGE_NOT_INSTALLED)
    unmet = [one.message for one in missing if one.path.startswith("spec.requirements")]
    remedy = f"goondan validate --install {path}"
    return [Check("requirements", "problem", "; ".join(unmet), remedy)] if unmet else []


def workspace_check(settings: Settings, bundle: Bundle | None) -> list[Check]:
    """Name the bundle's workspace, and what determines it."""
    if bundle is None:
        return []
    why = f"from its folder, {bundle.home}: machines with another path need a Package or GOONDAN_WORKSPACE"
    if settings.workspace:
        why = "from GOONDAN_WORKSPACE or --workspace"
    elif bundle.package:
        why = "from its Package"
    return [Check("workspace", "ok", f"{bundle.workspace_name(settings.workspace, settings.swarm)}, {why}")]


def earlier_workspace_check(found: EarlierWorkspace | None) -> list[Check]:
    """Name the workspace of earlier versions; a warning until the new workspace has instances."""
    if found is None:
        return []
    return [Check("earlier workspace", "ok" if found.is_past else "warning", found.message, found.remedy)]


def oauth_key_check(settings: Settings, bundle: Bundle | None) -> list[Check]:
    """Check where the keys of the OAuth store come from, if the bundle has OAuthApps."""
    if bundle is None or not bundle.oauth_apps:
        return []
    if settings.oauth_key is not None:
        return [Check("OAuth key", "ok", "GOONDAN_OAUTH_KEY")]
    agents = bundle.agents_with_commands()
    readers = f", which commands of {', '.join(agents)} can read" if agents else ""
    remedy = "Set GOONDAN_OAUTH_KEY; docs/how-to/oauth.md says how to keep using the file's key."
    return [Check("OAuth key", "warning", f"the file {settings.oauth_key_path}{readers}", remedy)]


def sandbox_check(bundle: Bundle | None) -> Check:
    """Check whether bubblewrap works here; a problem if a tool of the bundle needs it."""
    found = sandbox.fault()
    if found is None:
        return Check("sandbox", "ok", "bubblewrap works")
    wanted = [name for name, tool in _bound_tools(bundle) if tool.export.sandbox]
    if not wanted:
        return Check("sandbox", "ok", f"none, but no tool needs one: {found[0]}")
    return Check("sandbox", "problem", f"{wanted[0]} needs one, but {found[0]}", found[1])


def javascript_check(bundle: Bundle | None, wanted: str | None) -> Check:
    """Check which runtime runs TypeScript and JavaScript here; none is a problem if an entry needs it."""
    runtime = find_runtime(wanted)
    if runtime is not None:
        return Check("JavaScript", "ok", f"{runtime.name} {runtime.version} ({runtime.program})")
    needing = [name for name, tool in _bound_tools(bundle) if is_javascript(tool.entry_path)]
    if not needing and wanted is None:
        return Check("JavaScript", "ok", "neither Node nor Bun, but no tool needs one")
    reason = missing_runtime(wanted)
    return Check("JavaScript", "problem", f"{needing[0]}: {reason}" if needing else reason, INSTALL)


def _bound_tools(bundle: Bundle | None) -> Iterator[tuple[str, BoundTool]]:
    if bundle is not None:
        for agent in bundle.agents:
            yield from bundle.bound_tools(agent).items()


def latency_check(milliseconds: float) -> Check:
    """Check how long a round trip takes; a call makes about four."""
    message = f"a round trip takes {milliseconds:.1f} ms"
    if milliseconds < SLOW_MILLISECONDS:
        return Check("latency", "ok", message)
    return Check("latency", "warning", message, "Run workers and producers near their Redis.")


def clock_check(difference_seconds: float) -> Check:
    """Check how far this machine's clock is from Redis's, which deadlines use."""
    if abs(difference_seconds) <= CLOCK_SECONDS:
        return Check("clock", "ok", "this machine and Redis agree on the time")
    way = "ahead of" if difference_seconds > 0 else "behind"
    message = f"this machine is {abs(difference_seconds):.0f} s {way} Redis"
    remedy = "Synchronize the clocks (NTP): deadlines use the time of Redis, logs that of this machine."
    return Check("clock", "warning", message, remedy)


def neighbour_check(keys: Iterable[str], namespace: str, *, is_sample: bool) -> Check:
    """Check that no other program keeps keys in the same database."""
    # ours and those of our Celery; Celery's default queue is not ours
    starts = (f"{namespace}:", "agent.", "celery-task-meta-", "unacked", "_kombu.")
    found = sorted(keys)
    foreign = [
        key for key in found if not (key.startswith(starts) or "celery.pidbox" in key or "celeryev" in key)
    ]
    scope = f"{len(found)} sampled keys" if is_sample else f"{len(found)} keys"
    if not foreign:
        return Check("database", "ok", f"only ours among {scope}")
    message = f"{len(foreign)} of {scope} belong to another program, such as {_quoted(foreign)}"
    remedy = "Give each system its own database: redis://host:6379/1."
    return Check("database", "warning", message, remedy)


def priority_checks(keys: Iterable[str]) -> list[Check]:
    """Check that no calls lie in the queues of priorities (``sep`` in kombu/transport/redis.py).

    A Celery program that sets a priority creates these queues; workers read only the plain ones.
    """
    unread = sorted(key for key in keys if key.startswith("agent.") and _PRIORITY_MARK in key)
    if not unread:
        return []
    message = f"no worker reads the queues of priorities: {_quoted(unread)}"
    remedy = (
        "Send messages without a priority, or set broker_transport_options = {'priority_steps': [0]} in the "
        "program that sends them; LMOVE moves what is there to the plain queue."
    )
    return [Check("priorities", "problem", message, remedy)]


def _quoted(keys: Sequence[str]) -> str:
    return ", ".join(repr(key) for key in keys[:_NAMED])


def server_checks(info: Info) -> list[Check]:
    """Check that the server is fit as a broker, from its INFO, which managed servers allow too."""
    number = str(info.get("redis_version", "0"))
    name = "Valkey" if info.get("server_name") == "valkey" else "Redis"
    limit = int(info.get("maxmemory", 0))
    of_limit = f"of {limit / 1e6:.0f} MB" if limit else "used, no limit"
    sound = {
        "version": f"{name} {info.get('valkey_version', number)}",
        "role": "a master, not part of a cluster",
        "eviction": "noeviction",
        "persistence": "append-only file",
        "memory": f"{int(info.get('used_memory', 0)) / 1e6:.0f} MB {of_limit}",
    }
    faults = {fault.name: fault for fault in _server_faults(info, sound)}
    return [faults.get(name) or Check(name, "ok", message) for name, message in sound.items()]


def _server_faults(info: Info, sound: Mapping[str, str]) -> Iterator[Check]:
    if not is_supported(str(info.get("redis_version"))):
        yield Check("version", "problem", f"{sound['version']} is too old", f"Use {SERVERS}.")
    if info.get("cluster_enabled"):
        remedy = "Use a single server, with or without a replica; a queue cannot be spread over a cluster."
        yield Check("role", "problem", "the server is part of a Redis Cluster", remedy)
    elif info.get("role", "master") != "master":
        yield Check("role", "problem", "the server is a read-only replica", "Use the URL of its master.")
    if (policy := info.get("maxmemory_policy", "unknown")) != "noeviction":
        setting = "maxmemory-policy noeviction"
        remedy = f"Set `{setting}` in redis.conf, and now: redis-cli CONFIG SET {setting}."
        message = f"maxmemory-policy is {policy}: Redis may drop accepted calls"
        yield Check("eviction", "problem", message, remedy)
    if not info.get("aof_enabled"):
        remedy = "Set `appendonly yes` in redis.conf, and now: redis-cli CONFIG SET appendonly yes."
        yield Check("persistence", "warning", "no append-only file: a restart loses accepted calls", remedy)
    elif info.get("aof_last_write_status", "ok") != "ok":
        remedy = "Check the server's log and its disk space."
        yield Check("persistence", "problem", "the append-only file cannot be written", remedy)
    if 0 < FULL * int(info.get("maxmemory", 0)) < int(info.get("used_memory", 0)):
        remedy = "Raise maxmemory, or lower GOONDAN_RESULT_TTL_SECONDS; a full server accepts no call."
        yield Check("memory", "warning", sound["memory"], remedy)


def replica_checks(info: Info, settings: Settings) -> list[Check]:
    """Check that as many replicas are connected as calls wait for."""
    demanded, connected = settings.wait_replicas, int(info.get("connected_slaves", 0))
    if not demanded:
        return []
    message = f"{connected} connected, GOONDAN_WAIT_REPLICAS demands {demanded}"
    if connected >= demanded:
        return [Check("replicas", "ok", message)]
    remedy = "Bring them back, or lower the setting: calls fail with E_NOT_CONFIRMED, and workers begin none."
    return [Check("replicas", "problem", message, remedy)]


def _redis_checks(settings: Settings, bundle: Bundle | None) -> list[Check]:
    try:
        with connect(settings.redis_url, name="goondan-doctor") as redis:
            latency, clock_difference = _measured(redis)
            keys, is_sample = _some_keys(redis)
            return [
                Check("Redis", "ok", hidden_password(settings.redis_url)),
                _writes_check(redis),
                latency_check(latency),
                clock_check(clock_difference),
                *server_checks(info := redis.info()),
                *replica_checks(info, settings),
                neighbour_check(keys, settings.namespace, is_sample=is_sample),
                *priority_checks(keys),
                *_agent_registry_checks(redis, settings, bundle),
            ]
    except RedisError as error:
        raise BrokerUnreachableError(
            reason_unreachable(settings.redis_url, error),
            suggestion=remedy_of(error, settings.redis_url) or _REMEDY,
        ) from error


def _agent_registry_checks(redis: Redis, settings: Settings, bundle: Bundle | None) -> list[Check]:
    keys = Keys(settings.namespace)
    agent_registry = AgentRegistry(redis, keys)
    announced, workers = agent_registry.agents(), agent_registry.workers()
    own, swarm_checks = _described(bundle, settings)
    agents = {record.name: record for record in own} or announced
    known = {**announced, **agents}
    workspaces = sorted({record.workspace for record in known.values()})
    states = {name: _revision_state(redis, keys, name) for name in workspaces}
    elsewhere = [record.name for record in known.values() if not record.has_entry]
    ledger = Ledger(redis, settings)
    statuses = read_agents(ledger, agents, workers)
    unfetched = read_unfetched_mail(redis, keys, elsewhere, older_than_seconds=UNFETCHED_SECONDS)
    earlier = earlier_workspace(bundle, settings, redis) if bundle else None
    return [
        *swarm_checks,
        *earlier_workspace_check(earlier),
        *fleet_checks(agents, announced, workers, statuses=statuses),
        *pause_checks(statuses),
        *schedule_checks(ScheduleStore(ledger).all(), redis_time(redis)),
        *connection_checks(_connections(redis, settings, bundle)),
        *loss_checks(statuses),
        *past_loss_checks(CountStore(redis, keys).recent_losses(LOSS_SECONDS), LOSS_SECONDS),
        *dead_letter_checks(statuses),
        *map(mail_check, unfetched),
        *revision_checks(states, known, workers),
        *mcp_server_checks(workers),
        *stored_token_checks(TokenStore(redis, keys), wall_clock()),
    ]


def _revision_state(
    redis: Redis, keys: Keys, workspace: str
) -> RevisionState | UnreadableRevisionsError | None:
    try:
        return ActiveRevision(redis, keys, workspace).state()
    except UnreadableRevisionsError as error:
        return error


def _described(bundle: Bundle | None, settings: Settings) -> tuple[list[AgentRecord], list[Check]]:
    """Describe the bundle's agents; if it has no such Swarm, the announced ones are checked."""
    try:
        return (describe_agents(bundle, settings.swarm, settings.workspace) if bundle else []), []
    except ConfigError as error:
        return [], [Check("swarm", "problem", error.message, error.suggestion)]


def _connections(redis: Redis, settings: Settings, bundle: Bundle | None) -> list[ConnectionStatus]:
    found = [] if bundle is None else runnable(bundle)
    if bundle is None or not found:
        return []
    store = ConnectionStore.of(redis, settings, bundle.workspace_name(settings.workspace, settings.swarm))
    return store.statuses({one.name: one.spec.connector_ref.name for one in found})


def _writes_check(redis: Redis) -> Check:
    try:
        require_writable(redis)
    except (ResponseError, RefusedError) as error:
        return Check("writes", "problem", f"Redis refuses them: {refusal_text(error)}", remedy_of(error))
    return Check("writes", "ok", "Redis accepts them")


def _measured(redis: Redis) -> tuple[float, float]:
    """Return how long a round trip takes, in ms, and how far this machine's clock is ahead, in seconds."""
    redis.ping()
    trips, differences = [], []
    for _ in range(_TRIPS):
        before = time.time()
        moment = redis_time(redis) / 1000
        after = time.time()
        trips.append((after - before) * 1000)
        differences.append((before + after) / 2 - moment)
    return statistics.median(trips), statistics.median(differences)


def _some_keys(redis: Redis) -> tuple[set[str], bool]:
    """Return a sample of keys, and whether there are more."""
    found: set[str] = set()
    cursor = -1
    while cursor != 0 and len(found) < _SAMPLED_KEYS:
        cursor, names = redis.scan(max(cursor, 0), count=500)
        found.update(name.decode("utf-8", "backslashreplace") for name in cast("list[bytes]", names))
    return found, cursor != 0
