"""Pages about what runs agents: the overview, queues and limits, workers, schedules and Connections."""

from goondan_tasks.client.status import AgentStatus
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schedules import Schedule
from goondan_tasks.contract.wording import counted
from goondan_web.doors.console.asking import USUAL_ROWS, Asking, View
from goondan_web.doors.console.calls import failures, row_of
from goondan_web.doors.console.filters import link
from goondan_web.doors.console.rendering import PATH, Shown
from goondan_web.doors.console.usage import graph_of

#: the age of the failures that the overview counts
_HOUR = 3_600
#: how many troubles of agents the overview names
_ALERTS = 10
#: how many agents, workers and schedules a page shows
_AGENTS, _WORKERS, _SCHEDULES = 25, 20, 20
#: how many running calls of all workers are looked at
_RUNNING = 200


def overview(asking: Asking) -> Shown:
    """Show how the swarm fares, in a few numbers, its agents and their hand-offs, and the latest failures."""
    client = asking.client
    statuses = client.agent_statuses()
    queues, (kinds, failed) = [status.queue for status in statuses], failures(asking, _HOUR)
    waits = [queue.oldest_seconds for queue in queues if queue.oldest_seconds is not None]
    numbers = {
        "running": sum(queue.running for queue in queues),
        "waiting": sum(queue.backlog + queue.waiting_for_limit for queue in queues),
        "oldestSeconds": max(waits, default=None),
        "failed": failed.total,
        "approvals": client.approval_count(),
        "dead": sum(queue.dead_letters for queue in queues),
    }
    numbers["tokensPerMinute"] = round(client.call_counts().tokens_per_minute)
    workers, alerts, (shown, rest) = client.workers(), _alerts(statuses), asking.part(statuses, _AGENTS)
    data = {
        "numbers": numbers,
        "agents": [_agent(status) for status in shown],
        "rest": rest,
        "failures": kinds,
        "failuresCounted": failed.counted,
        "graph": graph_of(statuses, client.handoffs()),
        "workers": len(workers),
        "alerts": alerts[:_ALERTS],
        "hiddenAlerts": max(0, len(alerts) - _ALERTS),
    }
    return Shown("overview.html", "Overview", data)


def _agent(status: AgentStatus) -> JsonObject:
    return {
        **status.queue.model_dump(by_alias=True),
        "name": status.record.name,
        "swarm": status.record.swarm,
        "state": str(status.state),
    }


def _alerts(statuses: list[AgentStatus]) -> list[dict[str, str]]:
    """Return what a person should look at, a sentence for each trouble of an agent and where to see it."""
    found = []
    for status in statuses:
        name, queue = status.record.name, status.queue
        if status.backoff.is_looping:
            reason = status.backoff.reason or "see their log"
            found.append((name, f"Its workers crash as they start: {reason}.", f"{PATH}/workers"))
        elif status.waits_for_workers and not status.workers:
            text = f"No worker serves it; its queue has {counted(queue.backlog, 'call')}."
            found.append((name, text, link("calls", status="queued", agent=name)))
        if queue.losses:
            found.append((name, f"{queue.losses}.", link("calls", status="lost", agent=name)))
        if queue.pause is not None:
            found.append((name, f"It is {queue.pause.text}.", f"{PATH}/queues#{name}"))
    return [{"agent": name, "text": text, "address": address} for name, text, address in found]


def queues(asking: Asking) -> Shown:
    """Show the queues of all agents, what is paused, and the limits that calls wait for."""
    shown, rest = asking.part(asking.client.agent_statuses(), _AGENTS)
    data = {
        "agents": [{**_agent(status), "paused": status.queue.paused} for status in shown],
        "rest": rest,
        "limits": asking.client.limits()[:USUAL_ROWS],
    }
    return Shown("queues.html", "Queues and limits", data)


def workers(asking: Asking) -> Shown:
    """Show the workers that are alive, and what each is running."""
    running: dict[str, list[JsonObject]] = {}
    for record in asking.client.calls(None, _RUNNING, status="running"):
        running.setdefault(record.worker or "", []).append(row_of(record))
    found, rest = asking.part(asking.client.workers(), _WORKERS)
    return Shown("workers.html", "Workers", {"workers": found, "running": running, "rest": rest})


def schedules(asking: Asking) -> Shown:
    """Show all schedules: when each is due, and how its last run ended."""
    states, rest = asking.part(asking.client.schedules.list(), _SCHEDULES)
    return Shown("schedules.html", "Schedules", {"states": states, "when": _when, "rest": rest})


def _when(schedule: Schedule) -> str:
    return f"{schedule.cron} ({schedule.time_zone})" if schedule.cron else f"every {schedule.every}"


def connections(asking: Asking) -> Shown:
    """Show the Connections that ran in the last 30 days."""
    rows, rest = asking.part(asking.client.connections())
    return Shown("connections.html", "Connections", {"connections": rows, "rest": rest})


PAGES = (
    View(PATH, overview),
    View(f"{PATH}/queues", queues),
    View(f"{PATH}/workers", workers),
    View(f"{PATH}/schedules", schedules),
    View(f"{PATH}/connections", connections),
)
