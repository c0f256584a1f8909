"""What a person sees while a call is waited for: where it stands, and what is missing."""

import contextlib
import sys
from collections.abc import Callable
from time import monotonic

from rich.status import Status

from broker_config.queues import events_queue
from goondan_tasks.agents.handling import is_event
from goondan_tasks.cli.output import Output, Screen
from goondan_tasks.cli.progress_view import with_bar
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.errors import BrokerUnreachableError, WaitTimeout
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.messages import ToolCallResult

#: how often the line on the terminal is renewed
TICK_SECONDS = 0.5
#: how long a call without workers may wait before that is said
PATIENCE_SECONDS = 2.0

Teller = Callable[[float], None]


def wait_for_result(
    client: Client, pending: PendingCall, *, agent: str, timeout: float | None
) -> ToolCallResult:
    """Wait for the result, and tell on stderr how it stands.

    Raises:
        WaitTimeout: it did not come within ``timeout`` seconds; the call goes on.
    """
    with contextlib.ExitStack() as screen:
        tell = (
            _status_line(client, pending, agent, screen)
            if sys.stderr.isatty()
            else _warning(client, pending, agent)
        )
        try:
            return _wait(pending, timeout, tell)
        except (KeyboardInterrupt, BrokerUnreachableError):
            screen.close()
            Output().note(
                f"Stopped waiting; the call goes on. See it with: goondan result {pending.id}, "
                f"end it with: goondan cancel {pending.id}"
            )
            raise


def _wait(pending: PendingCall, timeout: float | None, tell: Teller) -> ToolCallResult:
    began = monotonic()
    while True:
        waited = monotonic() - began
        rest = TICK_SECONDS if timeout is None else min(TICK_SECONDS, timeout - waited)
        try:
            return pending.result(max(0.0, rest))
        except WaitTimeout:
            waited = monotonic() - began
            if timeout is not None and waited >= timeout:
                raise WaitTimeout(pending.id, timeout) from None
            tell(waited)


def _status_line(client: Client, pending: PendingCall, agent: str, screen: contextlib.ExitStack) -> Teller:
    """Return a teller that renews one line with a spinner; the line comes with the first tick."""
    status = Status("", console=Screen(stderr=True))
    is_shown = False

    def tell(waited: float) -> None:
        nonlocal is_shown
        record = client.record(pending.id)
        line = f"{_standing(client, record, agent)} · {waited:.0f} s"
        status.update(line if record.progress is None else with_bar(line, record.progress))
        if not is_shown:
            is_shown = True
            screen.enter_context(status)

    return tell


def _standing(client: Client, record: CallRecord, agent: str) -> str:
    if record.worker is not None:
        return f"{record.status} on {record.worker}, attempt {record.attempt}"
    if missing := _missing(client, record, agent):
        return missing
    workers = _worker_count(client, agent)
    queue = next(row for row in client.queues() if row.agent == agent)
    if record.waiting_for is not None:
        return f"{_limit(record)}: {queue.waiting_for_limit} wait for limits"
    name = events_queue(agent) if is_event(record.call) else queue.queue
    count = f"{workers} worker{'' if workers == 1 else 's'}"
    return f"queued on {name}: {queue.backlog} waiting, {queue.running} running, {count}"


def _warning(client: Client, pending: PendingCall, agent: str) -> Teller:
    """Return a teller that says once, and only if so, who or what is missing before the call can run."""
    told = False

    def tell(waited: float) -> None:
        nonlocal told
        if not told and waited >= PATIENCE_SECONDS:
            told = True
            record = client.record(pending.id)
            if record.worker is None and (missing := _missing(client, record, agent) or _limit(record)):
                Output().note(missing)

    return tell


def _limit(record: CallRecord) -> str | None:
    return None if record.waiting_for is None else f"queued, waits for {record.waiting_for}"


def _worker_count(client: Client, agent: str) -> int:
    return sum(agent in worker.agents for worker in client.workers())


def _missing(client: Client, record: CallRecord, agent: str) -> str | None:
    """Say who has to come before the call goes on; ``None`` if somebody is there."""
    known = client.agents().get(agent)
    if known is not None and is_event(record.call) and not known.has_entry:
        return f"nobody has fetched it yet: {agent} has no entry, its brain has to call Client.receive"
    if _worker_count(client, agent):
        return None
    if any(one.record.name == agent and one.is_orchestrated for one in client.agent_statuses()):
        return f"no worker serves agent {agent!r} yet; an orchestrator looks after it (`goondan agents`)"
    return f"no worker serves agent {agent!r}; start one with: goondan worker --agent {agent}"
