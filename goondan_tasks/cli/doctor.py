"""``goondan doctor``: what is wrong here, and how to mend it."""

import statistics
import time
from typing import cast

import typer
from redis import Redis
from redis.exceptions import RedisError, ResponseError
from rich.text import Text

from broker_config.connections import (
    connect,
    reason_unreachable,
    refusal_text,
    remedy_of,
    require_writable,
)
from broker_config.keys import Keys
from broker_config.settings import Settings, hidden_password
from goondan_tasks.bundle import Bundle, inspect_bundle
from goondan_tasks.cli.broker import require_other_broker
from goondan_tasks.cli.checks.check import Check
from goondan_tasks.cli.checks.fleet import fleet_checks
from goondan_tasks.cli.checks.machine import (
    bundle_check,
    embedded_redis_check,
    oauth_key_check,
    package_check,
    settings_check,
    state_root_check,
)
from goondan_tasks.cli.checks.mail import UNFETCHED_SECONDS, mail_checks
from goondan_tasks.cli.checks.mcp_servers import mcp_server_checks
from goondan_tasks.cli.checks.redis_server import (
    clock_check,
    latency_check,
    neighbour_check,
    priority_checks,
    server_checks,
)
from goondan_tasks.cli.checks.revisions import revision_checks
from goondan_tasks.cli.exit_codes import BROKER_UNREACHABLE, CONFIGURATION
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.printable import printable
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.client.agent_status import read_agents
from goondan_tasks.client.unfetched_mail import read_unfetched_mail
from goondan_tasks.errors import BrokerUnreachableError
from goondan_tasks.revisions.active import ActiveRevision, RevisionState
from goondan_tasks.roster import Roster, describe_agents

TRIPS = 5
SAMPLED_KEYS = 2000
REMEDY = "Start Redis, or set GOONDAN_REDIS_URL; behind a firewall, open the port for this machine."

_STYLES = {"ok": "bold green", "warning": "bold yellow", "problem": "bold red"}


@takes_session
def doctor(session: Session) -> None:
    """Check this machine, Redis, the workers and the bundle; say how to mend what is wrong.

    Ends with 5 if Redis cannot be reached, with 3 if there is another problem, else with 0.
    """
    settings = session.settings
    bundle, findings = inspect_bundle(settings.bundle) if settings.bundle else (None, [])
    checks = [
        package_check(),
        embedded_redis_check(),
        settings_check(Settings.unread_variables(), Settings.variables()),
        state_root_check(settings.state_root_path),
        bundle_check(settings.bundle, findings),
        *oauth_key_check(settings, bundle),
    ]
    try:
        checks += _redis_checks(settings, bundle)
        checks += _broker_checks(settings)
    except BrokerUnreachableError as error:
        checks.append(Check("broker", "problem", error.message, error.suggestion))
        _show(checks, session.output)
        raise typer.Exit(BROKER_UNREACHABLE) from error
    _show(checks, session.output)
    if any(check.level == "problem" for check in checks):
        raise typer.Exit(CONFIGURATION)


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
                *_fleet_checks(redis, settings, bundle),
            ]
    except RedisError as error:
        raise BrokerUnreachableError(
            reason_unreachable(settings.redis_url, error), suggestion=remedy_of(error) or REMEDY
        ) from error


def _writes_check(redis: Redis) -> Check:
    try:
        require_writable(redis)
    except ResponseError as error:
        return Check("writes", "problem", f"Redis refuses them: {refusal_text(error)}", remedy_of(error))
    return Check("writes", "ok", "Redis accepts them")


def _broker_checks(settings: Settings) -> list[Check]:
    url = settings.effective_broker_url
    if url == settings.redis_url:
        return []
    require_other_broker(url)
    return [Check("broker", "ok", hidden_password(url))]


def _measured(redis: Redis) -> tuple[float, float]:
    """Return how long a trip takes, in ms, and how far this machine's clock is ahead, in seconds."""
    redis.ping()
    trips, differences = [], []
    for _ in range(TRIPS):
        before = time.time()
        seconds, microseconds = redis.time()
        after = time.time()
        trips.append((after - before) * 1000)
        differences.append((before + after) / 2 - seconds - microseconds / 1_000_000)
    return statistics.median(trips), statistics.median(differences)


def _some_keys(redis: Redis) -> tuple[set[str], bool]:
    """Return names of keys, and whether there are more."""
    found: set[str] = set()
    cursor = -1
    while cursor != 0 and len(found) < SAMPLED_KEYS:
        cursor, names = redis.scan(max(cursor, 0), count=500)
        found.update(name.decode("utf-8", "backslashreplace") for name in cast("list[bytes]", names))
    return found, cursor != 0


def _fleet_checks(redis: Redis, settings: Settings, bundle: Bundle | None) -> list[Check]:
    keys = Keys(settings.namespace)
    roster = Roster(redis, keys)
    announced = roster.agents()
    own = describe_agents(bundle, settings.swarm, settings.workspace) if bundle else []
    agents = {record.name: record for record in own} or announced
    workers = roster.workers()
    statuses = read_agents(redis, keys, agents, workers)
    fleet = fleet_checks(agents, announced, workers, statuses=statuses)
    known = {**announced, **agents}
    states = _revision_states(redis, keys, {record.workspace for record in known.values()})
    elsewhere = [record.name for record in known.values() if not record.has_entry]
    unfetched = read_unfetched_mail(redis, keys, elsewhere, older_than_seconds=UNFETCHED_SECONDS)
    return [
        *fleet,
        *mail_checks(unfetched),
        *revision_checks(states, known, workers),
        *mcp_server_checks(workers),
    ]


def _revision_states(redis: Redis, keys: Keys, workspaces: set[str]) -> dict[str, RevisionState]:
    states = {name: ActiveRevision(redis, keys, name).state() for name in sorted(workspaces)}
    return {name: state for name, state in states.items() if state is not None}


def _show(checks: list[Check], output: Output) -> None:
    if output.as_json:
        healthy = all(check.level != "problem" for check in checks)
        return output.document({"healthy": healthy, "checks": [check.to_wire() for check in checks]})
    for check in checks:
        output.print(_lines(check))
    return None


def _lines(check: Check) -> Text:
    text = Text().append(f"{check.level:<8} ", style=_STYLES[check.level])
    text.append(printable(f"{check.name}: "), style="bold").append(printable(check.message))
    if check.remedy is not None:
        text.append(printable(f"\n         {check.remedy}"))
    return text
