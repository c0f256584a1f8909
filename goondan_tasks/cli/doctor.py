"""``goondan doctor``: checks of this machine, Redis, the workers and the bundle."""

import os
import platform
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, cast

import typer
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rich.text import Text

from broker_config.connections import (
    SERVERS,
    connect,
    is_supported,
    reason_unreachable,
    redis_time,
    refusal_text,
    remedy_of,
    require_writable,
)
from broker_config.embedded import RedisBinaryNotFound, find_redis_server
from broker_config.keys import Keys
from broker_config.settings import PREFIX, Settings, hidden_password
from goondan_tasks import sandbox
from goondan_tasks.agent_registry import (
    AgentRecord,
    AgentRegistry,
    McpServerRecord,
    WorkerRecord,
    describe_agents,
)
from goondan_tasks.bundle import Bundle, Finding, inspect_bundle
from goondan_tasks.cli.options import flag
from goondan_tasks.cli.output import BROKER_UNREACHABLE, CONFIGURATION, OK, printable
from goondan_tasks.cli.session import Session, require_other_broker, takes_session
from goondan_tasks.client.status import (
    AgentState,
    AgentStatus,
    UnfetchedMail,
    read_agents,
    read_unfetched_mail,
)
from goondan_tasks.errors import PACKAGE_NOT_INSTALLED, BrokerUnreachableError
from goondan_tasks.instances.earlier import EarlierWorkspace, earlier_workspace
from goondan_tasks.javascript import INSTALL, find_runtime, is_javascript, missing_runtime
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.messages import JsonObject
from goondan_tasks.revisions.active import ActiveRevision, RevisionState
from goondan_tasks.wording import closest, duration_text

#: what the delivery of calls was measured and hardened with
CELERY = "5.7"
#: of maxmemory; with noeviction a full server refuses every write
FULL = 0.85
SLOW_MILLISECONDS = 20.0
CLOCK_SECONDS = 1.0
#: a producer that works at a Turn for so long is asked for, too
UNFETCHED_SECONDS = 300.0

#: how often the latency is measured, how many keys are looked at, how many of another program are named
_TRIPS, _SAMPLED_KEYS, _NAMED = 5, 2000, 3
#: separates the name of a queue from a priority
_PRIORITY_MARK = "\x06\x16"
_PACKAGES = ("goondan-workers", "celery", "kombu", "redis", "flower")
_REMEDY = "Start Redis, or set GOONDAN_REDIS_URL; behind a firewall, open the port for this machine."
_STYLES = {"ok": "bold green", "warning": "bold yellow", "problem": "bold red"}

Info = Mapping[str, Any]


Level = Literal["ok", "warning", "problem"]


class Check(NamedTuple):
    """What was looked at, how it is, and what to do unless it is ``ok``."""

    name: str
    level: Level
    message: str
    remedy: str | None = None

    def to_wire(self) -> JsonObject:
        """Return the check as ``goondan doctor --json`` prints it."""
        return {name: value for name, value in self._asdict().items() if value is not None}


@takes_session
def doctor(
    session: Session, strict: Annotated[bool, flag("Let warnings fail too.", "--strict")] = False
) -> None:
    """Check this machine, Redis, the workers and the bundle; say what to correct.

    Ends with 5 if Redis cannot be reached, with 3 if there is another problem (with --strict: or a warning),
    else with 0.
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
        sandbox_check(bundle),
        javascript_check(bundle, settings.javascript),
    ]
    code = OK
    try:
        checks += _redis_checks(settings, bundle)
        if (url := settings.effective_broker_url) != settings.redis_url:
            require_other_broker(url)
            checks.append(Check("broker", "ok", hidden_password(url)))
    except BrokerUnreachableError as error:
        checks.append(Check("broker", "problem", error.message, error.suggestion))
        code = BROKER_UNREACHABLE
    counts = Counter(check.level for check in checks)
    healthy = not counts["problem"] and not (strict and counts["warning"])
    text = Text("\n").join([*map(_text_of, checks), _sum_of(counts)])
    session.output.give({"healthy": healthy, "checks": [check.to_wire() for check in checks]}, text)
    if not healthy:
        raise typer.Exit(code or CONFIGURATION)


def _sum_of(counts: Counter[Level]) -> Text:
    nouns: dict[Level, str] = {"warning": "warning", "problem": "failure"}
    others = (f"{counts[level]} {noun}{'' if counts[level] == 1 else 's'}" for level, noun in nouns.items())
    return Text(", ".join([f"{counts['ok']} ok", *others]), style="bold")


def _text_of(check: Check) -> Text:
    text = Text().append(f"{check.level:<8} ", style=_STYLES[check.level])
    text.append(printable(f"{check.name}: "), style="bold").append(printable(check.message))
    return text if check.remedy is None else text.append(printable(f"\n         {check.remedy}"))


def package_check() -> Check:
    """Check the versions that run here."""
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
    """Check whether `goondan dev`, `goondan demo` and LocalStack find a Redis server to start."""
    try:
        return Check("embedded Redis", "ok", str(find_redis_server()))
    except RedisBinaryNotFound as error:
        return Check("embedded Redis", "warning", "no demo, no dev", str(error))


def settings_check(unread: Sequence[str], known: Sequence[str]) -> Check:
    """Check whether every GOONDAN_ variable is a setting: a misspelt one has no effect."""
    if not unread:
        return Check("settings", "ok", "every GOONDAN_ variable is one")
    remedies = []
    for name in unread:
        # without the common prefix, which would make all of them alike
        meant = closest(name.removeprefix(PREFIX), [one.removeprefix(PREFIX) for one in known])
        remedies.append(f"Remove {name}." if meant is None else f"Write {PREFIX}{meant} for {name}.")
    return Check("settings", "warning", f"not read: {', '.join(unread)}", " ".join(remedies))


def state_root_check(root: Path) -> Check:
    """Check whether a worker could write the state root, or make it."""
    nearest = next(place for place in (root, *root.parents) if place.exists())
    if nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK):
        return Check("state root", "ok", f"{root}{'' if nearest == root else ' (made by the first worker)'}")
    remedy = "Make it writable for the workers' user, or set GOONDAN_STATE_ROOT to another directory."
    return Check("state root", "problem", f"{nearest} cannot be written", remedy)


def bundle_check(path: Path | None, findings: Sequence[Finding]) -> Check:
    """Check the bundle by its findings."""
    if path is None:
        return Check("bundle", "ok", "none is set; producers go by what workers announce")
    if not findings:
        return Check("bundle", "ok", str(path))
    errors = sum(finding.level == "error" for finding in findings)
    message = f"{path}: {errors} errors, {len(findings) - errors} warnings"
    return Check("bundle", "problem" if errors else "warning", message, f"goondan validate {path}")


def requirements_check(path: Path | None, findings: Sequence[Finding]) -> list[Check]:
    """Check whether the packages that the bundle requires are installed here; nothing is said if all are."""
    missing = (one for one in findings if one.code == PACKAGE_NOT_INSTALLED)
    unmet = [one.message for one in missing if one.path.startswith("spec.requirements")]
    remedy = f"goondan validate --install {path}"
    return [Check("requirements", "problem", "; ".join(unmet), remedy)] if unmet else []


def workspace_check(settings: Settings, bundle: Bundle | None) -> list[Check]:
    """Tell which workspace the bundle lives in, and what decides that."""
    if bundle is None:
        return []
    why = f"by its folder, {bundle.home}: machines that have it elsewhere need a Package or GOONDAN_WORKSPACE"
    if settings.workspace:
        why = "by GOONDAN_WORKSPACE or --workspace"
    elif bundle.package:
        why = "by its Package"
    return [Check("workspace", "ok", f"{bundle.workspace_name(settings.workspace)}, {why}")]


def earlier_workspace_check(found: EarlierWorkspace | None) -> list[Check]:
    """Name the workspace of earlier versions; a warning until the bundle has instances in its own."""
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
    remedy = "Set GOONDAN_OAUTH_KEY: docs/how-to/oauth.md says how to keep the key of the file."
    return [Check("OAuth key", "warning", f"the file {settings.oauth_key_path}{readers}", remedy)]


def sandbox_check(bundle: Bundle | None) -> Check:
    """Check whether bubblewrap works here; a problem if a tool of the bundle needs it."""
    found = sandbox.fault()
    if found is None:
        return Check("sandbox", "ok", "bubblewrap works")
    tools = [bundle.bound_tools(agent) for agent in bundle.agents] if bundle else []
    wanted = [name for bound in tools for name, tool in bound.items() if tool.export.sandbox]
    if not wanted:
        return Check("sandbox", "ok", f"none, and no tool asks for one: {found[0]}")
    return Check("sandbox", "problem", f"{wanted[0]} asks for one, but {found[0]}", found[1])


def javascript_check(bundle: Bundle | None, wanted: str | None) -> Check:
    """Check what runs TypeScript and JavaScript here; a problem if an entry of the bundle needs it."""
    runtime = find_runtime(wanted)
    if runtime is not None:
        return Check("JavaScript", "ok", f"{runtime.name} {runtime.version} ({runtime.program})")
    tools = [bundle.bound_tools(agent) for agent in bundle.agents] if bundle else []
    needing = [name for bound in tools for name, tool in bound.items() if is_javascript(tool.entry_path)]
    if not needing and wanted is None:
        return Check("JavaScript", "ok", "neither Node nor Bun, and no tool asks for one")
    reason = missing_runtime(wanted)
    return Check("JavaScript", "problem", f"{needing[0]}: {reason}" if needing else reason, INSTALL)


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
    # ours, and those that Celery makes for us; Celery's default queue is not ours
    starts = (f"{namespace}:", "agent.", "celery-task-meta-", "unacked", "_kombu.")
    found = sorted(keys)
    foreign = [
        key for key in found if not (key.startswith(starts) or "celery.pidbox" in key or "celeryev" in key)
    ]
    scope = f"the {len(found)} keys looked at" if is_sample else f"{len(found)} keys"
    if not foreign:
        return Check("database", "ok", f"only ours among {scope}")
    message = f"{len(foreign)} of {scope} belong to another program, such as {_quoted(foreign)}"
    remedy = "Give each system a database of its own: redis://host:6379/1."
    return Check("database", "warning", message, remedy)


def priority_checks(keys: Iterable[str]) -> list[Check]:
    """Check whether calls lie in queues of another priority (kombu/transport/redis.py: its ``sep``).

    A Celery program that gives a priority makes them; workers read the plain queues alone.
    """
    unread = sorted(key for key in keys if key.startswith("agent.") and _PRIORITY_MARK in key)
    if not unread:
        return []
    message = f"no worker reads the queues of a priority: {_quoted(unread)}"
    remedy = (
        "Give messages no priority, or set broker_transport_options = {'priority_steps': [0]} in the program "
        "that sends them; LMOVE brings what is there into the plain queue."
    )
    return [Check("priorities", "problem", message, remedy)]


def _quoted(keys: Sequence[str]) -> str:
    return ", ".join(repr(key) for key in keys[:_NAMED])


def server_checks(info: Info) -> list[Check]:
    """Check whether the server is fit for a broker, by its INFO, which managed servers allow too."""
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
        remedy = "Use a single server, or one with a replica; a queue cannot be spread over a cluster."
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
        remedy = "Look at the server's log and the space on its disk."
        yield Check("persistence", "problem", "the append-only file cannot be written", remedy)
    if 0 < FULL * int(info.get("maxmemory", 0)) < int(info.get("used_memory", 0)):
        remedy = "Raise maxmemory, or lower GOONDAN_RESULT_TTL_SECONDS; a full server accepts no call."
        yield Check("memory", "warning", sound["memory"], remedy)


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
                *server_checks(redis.info()),
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
    own = describe_agents(bundle, settings.swarm, settings.workspace) if bundle else []
    agents = {record.name: record for record in own} or announced
    known = {**announced, **agents}
    workspaces = sorted({record.workspace for record in known.values()})
    states = {name: ActiveRevision(redis, keys, name).state() for name in workspaces}
    followed = {name: state for name, state in states.items() if state is not None}
    elsewhere = [record.name for record in known.values() if not record.has_entry]
    statuses = read_agents(Ledger(redis, settings), agents, workers)
    unfetched = read_unfetched_mail(redis, keys, elsewhere, older_than_seconds=UNFETCHED_SECONDS)
    earlier = earlier_workspace(bundle, settings, redis) if bundle else None
    return [
        *earlier_workspace_check(earlier),
        *fleet_checks(agents, announced, workers, statuses=statuses),
        *loss_checks(statuses),
        *map(mail_check, unfetched),
        *revision_checks(followed, known, workers),
        *mcp_server_checks(workers),
    ]


def _writes_check(redis: Redis) -> Check:
    try:
        require_writable(redis)
    except ResponseError as error:
        return Check("writes", "problem", f"Redis refuses them: {refusal_text(error)}", remedy_of(error))
    return Check("writes", "ok", "Redis accepts them")


def _measured(redis: Redis) -> tuple[float, float]:
    """Return how long a trip takes, in ms, and how far this machine's clock is ahead, in seconds."""
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
    """Return names of keys, and whether there are more."""
    found: set[str] = set()
    cursor = -1
    while cursor != 0 and len(found) < _SAMPLED_KEYS:
        cursor, names = redis.scan(max(cursor, 0), count=500)
        found.update(name.decode("utf-8", "backslashreplace") for name in cast("list[bytes]", names))
    return found, cursor != 0


def fleet_checks(
    agents: Mapping[str, AgentRecord],
    announced: Mapping[str, AgentRecord],
    workers: Sequence[WorkerRecord],
    *,
    statuses: Iterable[AgentStatus] = (),
) -> list[Check]:
    """Check whether every agent has workers, and whether these belong together.

    ``agents`` are those of our bundle, if there is one; ``announced`` are those of the workers;
    ``statuses`` have the state of their queues and starts.
    """
    if not agents:
        return [Check("agents", "warning", "none is known", "Set GOONDAN_BUNDLE, or start a worker.")]
    by_name = {status.record.name: status for status in statuses}
    return [
        *(_workers_check(name, workers, by_name.get(name)) for name in agents),
        *_system_checks(workers),
        *_place_checks(agents, workers),
        *_state_root_checks(workers),
        *_catalog_checks(agents, announced, workers),
    ]


def _workers_check(agent: str, workers: Iterable[WorkerRecord], status: AgentStatus | None) -> Check:
    name = f"workers of {agent}"
    if names := [worker.name for worker in workers if agent in worker.agents]:
        return Check(name, "ok", ", ".join(names))
    if status is not None and status.state is AgentState.CRASH_LOOP:
        message = f"crash as soon as they start: {status.backoff.reason or 'for an unknown reason'}"
        remedy = f"Correct that; the next start is in {status.next_start_seconds:g} s."
        return Check(name, "warning", message, remedy)
    waits = status is not None and (status.queue.backlog or status.queue.waiting_for_limit)
    message = "none: calls or events wait" if waits else "none"
    return Check(name, "warning", message, f"Start one: goondan worker --agent {agent}")


def loss_checks(statuses: Iterable[AgentStatus]) -> Iterator[Check]:
    """Warn of calls that were lost with their workers and that nothing has moved on yet."""
    for status in statuses:
        if status.queue.losses:
            agent = status.record.name
            remedy = (
                "The next worker, or producer that waits, runs them again, or ends them with "
                f"E_TOOL_OUTCOME_UNKNOWN. Start one: goondan worker --agent {agent}"
            )
            yield Check(f"calls of {agent}", "warning", status.queue.losses, remedy)


def _grouped(rows: Iterable[tuple[str, str, str]]) -> dict[str, dict[str, list[str]]]:
    """Group the names of workers by agent, and then by what they have to have in common."""
    found: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for agent, common, worker in rows:
        found[agent][common].append(worker)
    return dict(sorted(found.items()))


def _system_checks(workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    """Warn of agents whose name two systems have: their calls are in one queue."""
    systems = _grouped(
        (agent, f"swarm {worker.swarm} in workspace {worker.workspace}", worker.name)
        for worker in workers
        if worker.swarm
        for agent in worker.agents
    )
    remedy = "Give each system a database of its own: GOONDAN_REDIS_URL=redis://HOST:6379/1."
    for agent, found in systems.items():
        if len(found) > 1:
            named = "; ".join(f"{system} ({', '.join(names)})" for system, names in found.items())
            message = f"workers of {len(found)} share its queue: {named}"
            yield Check(f"systems of {agent}", "warning", message, remedy)


def _place_checks(agents: Mapping[str, AgentRecord], workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    """Warn of agents whose workers are in another workspace than ours."""
    places = _grouped(
        (agent, worker.workspace, worker.name)
        for worker in workers
        for agent in worker.agents
        if worker.workspace and agent in agents
    )
    remedy = "Give both the same Package or GOONDAN_WORKSPACE: without either, the bundle's folder decides."
    for agent, found in places.items():
        ours, [theirs, *others] = agents[agent].workspace, found
        if theirs != ours and not others:  # of several, the systems are warned of
            message = f"{ours} by this bundle, {theirs} by its workers: {', '.join(found[theirs])}"
            yield Check(f"workspace of {agent}", "warning", message, remedy)


def _state_root_checks(workers: Iterable[WorkerRecord]) -> list[Check]:
    roots = _grouped(
        (agent, worker.root_id, worker.name)
        for worker in workers
        for agent in set(worker.agents) - set(worker.local_workdir)
    )
    remedy = (
        "Put GOONDAN_STATE_ROOT of all of them on one shared volume, "
        "or give the Agent `workdir: local` if it may work on separate files."
    )
    checks = []
    for agent, by_root in roots.items():
        if len(by_root) > 1:
            groups = " and ".join(", ".join(names) for names in by_root.values())
            message = f"workers of {agent} see different files: {groups}"
            checks.append(Check("state roots", "problem", message, remedy))
    return checks or ([Check("state roots", "ok", "each agent's workers share one")] if roots else [])


def _catalog_checks(
    agents: Mapping[str, AgentRecord], announced: Mapping[str, AgentRecord], workers: Iterable[WorkerRecord]
) -> Iterator[Check]:
    message = "its workers serve another version of the bundle"
    remedy = "Restart the workers with this bundle, or set GOONDAN_BUNDLE to theirs."
    for name in {agent: None for worker in workers for agent in worker.agents if agent in agents}:
        theirs = announced.get(name)
        # workers with the same bundle announce this; the tools of extensions are not in it
        if theirs is not None and theirs.catalog != agents[name].with_dynamic_tools(theirs).catalog:
            yield Check(f"catalog of {name}", "warning", message, remedy)


def mail_check(mail: UnfetchedMail) -> Check:
    """Warn of an agent without an entry whose events wait, while no producer receives them."""
    many = "1 mailbox" if mail.mailboxes == 1 else f"{mail.mailboxes} mailboxes"
    message = f"events wait in {many}, for {duration_text(mail.seconds)}, and no producer fetches them"
    remedy = (
        f"Run a producer that calls client.receive({mail.agent!r}), or give the Agent an entry, so that its "
        "workers handle them; else they expire."
    )
    return Check(f"events of {mail.agent}", "warning", message, remedy)


def mcp_server_checks(workers: Iterable[WorkerRecord]) -> list[Check]:
    """Check each MCP server of each agent, by what its workers say of it."""
    told: defaultdict[tuple[str, str], dict[str, McpServerRecord]] = defaultdict(dict)
    for worker in workers:
        for server in worker.mcp_servers:
            told[server.agent, server.name][worker.name] = server
    return [
        _mcp_server_check(f"MCP server {name} of {agent}", records)
        for (agent, name), records in sorted(told.items())
    ]


def _mcp_server_check(title: str, records: Mapping[str, McpServerRecord]) -> Check:
    down = {worker: record for worker, record in records.items() if not record.is_up}
    if not down:
        tools = max(record.tools for record in records.values())
        times = sum(record.failures for record in records.values())
        return Check(title, "ok", f"{tools} tools; {f'lost {times} times' if times else 'never lost'}")
    worker, record = next(iter(down.items()))
    share = f"{len(down)} of {len(records)} workers; in " if len(records) > 1 else ""
    remedy = "Correct the server, or its command, address or environment in the extension's config."
    return Check(title, "warning", f"down in {share}{worker}: {record.reason}", remedy)


def revision_checks(
    states: Mapping[str, RevisionState], agents: Mapping[str, AgentRecord], workers: Sequence[WorkerRecord]
) -> list[Check]:
    """Check whether the workers of each workspace in which revisions are followed run the same one."""
    checks: list[Check] = []
    for workspace, state in states.items():
        inside = {name for name, record in agents.items() if record.workspace == workspace}
        own = [worker for worker in workers if inside.intersection(worker.agents)]
        checks += _revision_checks(f"revision of {workspace}", state, own)
    return checks


def _revision_checks(name: str, state: RevisionState, workers: Iterable[WorkerRecord]) -> Iterator[Check]:
    others = [
        f"{worker.name} runs {worker.bundle_ref or 'what it started with'}"
        for worker in workers
        if worker.bundle_ref != state.active
    ]
    if others:
        remedy = (
            "A worker takes a moment to follow. One that does not cannot get it: its log says why; "
            "GOONDAN_BUNDLE_REMOTE must name a remote that has it."
        )
        yield Check(name, "warning", f"{state.active} is active, but {', '.join(others)}", remedy)
    else:
        yield Check(name, "ok", f"{state.active} is active")
    if (proposed := state.proposed) is not None:
        message = f"{proposed.new_ref} was proposed at {proposed.timestamp}, and no worker has loaded it"
        remedy = "Start a worker, or look at the logs of those that run."
        yield Check("proposed revision", "warning", message, remedy)
    if (failed := state.failed) is not None and failed.ref != state.active:
        place = f"by {failed.worker} at {failed.timestamp}: {failed.code}: {failed.reason}"
        remedy = f"Correct the bundle and commit it; {state.active} goes on."
        yield Check("failed revision", "warning", f"{failed.ref} could not be loaded {place}", remedy)
