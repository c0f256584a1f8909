"""Celery's remote control of a worker: ``celery control``, ``celery inspect`` and Flower's buttons.

Its commands do what Celery documents, except those replaced here: they would see no calls, end them in
disorder, or claim success where they have no effect on them.
"""

from collections.abc import Callable
from typing import Any

from celery.worker import state as books
from celery.worker.control import Panel

from goondan_tasks.contract.errors import CallClosedError, CallNotFoundError, ConfigError
from goondan_tasks.ledger.call_filter import scheduled_calls
from workers.pool.consumed_queues import queues_of, served_agents
from workers.pool.monitoring import job_info, scheduled_info
from workers.pool.shutdown import ask_to_drain
from workers.runtime import process_runtime

#: ``ok`` or ``error``, with a text
Reply = dict[str, str]
Command = Callable[..., Reply]

#: how many scheduled calls are described
MOST_SCHEDULED = 1_000

#: the commands that have no effect on calls, each with what to do instead
INSTEAD = {
    "rate_limit": "Give the Tool or its export a `rateLimit`.",
    "time_limit": "Give the export `timeoutSeconds`, or the call.",
    "revoke_by_stamped_headers": "Cancel each call by its id: `goondan cancel ID`.",
}


def take_over() -> None:
    """Replace Celery's commands."""
    own = (active, reserved, scheduled, query_task, revoke, shutdown, add_consumer)
    Panel.data.update({command.__name__: command for command in own})
    Panel.data.update({name: _refusal(name) for name in INSTEAD})
    Panel.data["terminate"] = revoke


def active(state: Any, **_: Any) -> list[dict[str, Any]]:
    """Describe the calls that run."""
    return [job_info(job) for job in state.consumer.pool.running]


def reserved(state: Any, **_: Any) -> list[dict[str, Any]]:
    """Describe the calls that have not begun."""
    return [job_info(job) for job in state.consumer.pool.reserved]


def scheduled(state: Any, **_: Any) -> list[dict[str, Any]]:
    """Describe the next calls of this worker's agents whose time has not come; no worker has them."""
    ledger = process_runtime().delivery.ledger
    found = scheduled_calls(ledger, served_agents(state.consumer), MOST_SCHEDULED)
    return [scheduled_info(record, state.hostname) for record in found]


def query_task(state: Any, ids: Any, **_: Any) -> dict[str, Any]:
    """Describe the calls that are here, by their ids."""
    wanted, pool = {ids} if isinstance(ids, str) else set(ids or ()), state.consumer.pool
    found = [*(("reserved", job) for job in pool.reserved), *(("active", job) for job in pool.running)]
    return {job.id: [word, job_info(job)] for word, job in found if job.id in wanted}


def shutdown(state: Any, **_: Any) -> Reply:
    """Drain as SIGTERM does (DESIGN "Delivery" rule 6); Celery would leave running calls to their leases."""
    ask_to_drain(state.consumer.pool)
    return {"ok": "draining"}


def revoke(state: Any, task_id: Any, **_: Any) -> Reply:
    """Cancel calls by their ids for good, running ones included, as ``goondan cancel`` does.

    Celery would store a result of its own for a call that may still run.
    """
    ids = [task_id] if isinstance(task_id, str) else list(task_id or ())
    books.revoked.update(ids)  # for messages of plain Celery producers that have not arrived yet
    return {"ok": "; ".join(f"{call_id}: {_cancelled(call_id, state.hostname)}" for call_id in ids)}


def _cancelled(call_id: str, worker: str) -> str:
    try:
        process_runtime().reaper.cancel(call_id, worker)
    except CallClosedError:
        return "has ended"
    except CallNotFoundError:
        return "not known yet, will be cancelled if it comes to this worker"
    return "cancelled"


def add_consumer(state: Any, queue: str, **_: Any) -> Reply:
    """Take the calls, or the events, of another agent of the bundle, once the process is ready for them."""
    runtime = process_runtime()
    agents = runtime.revisions.active.bundle.agents
    agent = next((name for name in agents if queue in queues_of(name)), None)
    if agent is None:
        known = ", ".join(agents)
        return {"error": f"No agent of the bundle has the queue {queue!r}; it has the agents {known}."}
    if (pause := runtime.limiter.paused.agent(agent)) is not None:
        return {"error": f"Agent {agent} is {pause.text}. Resume it first: goondan resume {agent}"}
    try:
        runtime.serve(agent)
    except ConfigError as error:
        return {"error": f"{error.code}: {error.message}"}
    state.consumer.call_soon(state.consumer.add_task_queue, queue)
    return {"ok": f"add consumer {queue}"}


def _refusal(name: str) -> Command:
    def refuse(_state: Any, **_: Any) -> Reply:
        return {"error": f"{name} has no effect on calls. {INSTEAD[name]}"}

    return refuse
