"""The state of agents, queues and mailboxes, for ``goondan agents``, ``goondan queues`` and metrics."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Any, NamedTuple, cast

from redis import Redis

from broker_config import serializer
from broker_config.connections import milliseconds_of, redis_time, rows_of
from broker_config.keys import Keys
from broker_config.queues import call_queue, events_queue
from goondan_tasks.contract.messages import JsonObject, WireModel, iso_time
from goondan_tasks.contract.table_rows import whole_number
from goondan_tasks.contract.wording import counted, duration_text
from goondan_tasks.fleet.agent_registry import AgentRecord, WorkerRecord
from goondan_tasks.fleet.crash_backoff import CrashBackoff, CrashBackoffs
from goondan_tasks.fleet.pauses import Pause, Pauses
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import Limiter
from goondan_tasks.ledger.losses import losses_of_agents


class QueueStatus(WireModel):
    """One agent's queues (DESIGN "Commands"). ``backlog`` waits for a worker."""

    agent: str
    #: the name of the queue of tool calls
    queue: str
    #: tool calls and events
    backlog: int
    running: int
    #: calls that wait for a limit or an idempotencyKey, outside the queue
    waiting_for_limit: int = 0
    #: the age of the call or event that has waited longest for a worker or a limit; events that wait behind
    #: another event of their instance do not count
    oldest_seconds: float | None = None
    workers: int = 0
    #: the part of the backlog that is events
    events: int = 0
    #: calls whose every run killed its worker, and messages that held no call
    dead_letters: int = 0
    #: answers of the agent that arrived after their requests had ended
    late_answers: int = 0
    #: instances with events that wait or are being handled
    mailboxes: int = 0
    #: calls whose results come later
    pending: int = 0
    #: calls and events whose time is to come
    scheduled: int = 0
    #: the running calls whose workers are dead, the names of these, and how long the first has been lost
    lost: int = 0
    lost_with: tuple[str, ...] = ()
    lost_seconds: float | None = None
    #: the pauses of the agent and of its tools
    paused: tuple[Pause, ...] = ()

    @property
    def pause(self) -> Pause | None:
        """The pause of the agent itself, if there is one."""
        return next((one for one in self.paused if one.tool is None), None)

    @property
    def losses(self) -> str:
        """The lost calls in words; empty if there are none."""
        if self.lost_seconds is None:
            return ""
        return (
            f"{counted(self.lost, 'call')} lost with {', '.join(self.lost_with)} "
            f"{duration_text(self.lost_seconds)} ago"
        )


class Backlog(NamedTuple):
    """The waiting and running work of one agent."""

    #: without ages, workers and losses
    queue: QueueStatus
    #: the next message of each queue, if there is one
    heads: tuple[bytes, ...]
    #: when the oldest call that waits for a limit began to wait: ms, Redis time
    waits_since: float | None


def read_backlogs(redis: Redis, keys: Keys, agents: Iterable[str]) -> dict[str, Backlog]:
    """Read the waiting and running work of ``agents``, in one trip to Redis."""
    names = list(agents)
    with redis.pipeline(transaction=False) as pipe:
        for agent in names:
            pipe.llen(call_queue(agent))
            pipe.llen(events_queue(agent))
            pipe.zcard(keys.waiting(agent))
            pipe.zcard(keys.running(agent))
            pipe.zcard(keys.dead_letters(agent))
            pipe.hget(keys.late_answers, agent)
            pipe.zcard(keys.mailboxes(agent))
            pipe.zcard(keys.pending(agent))
            pipe.zcard(keys.scheduled(agent))
            pipe.lindex(call_queue(agent), -1)
            pipe.lindex(events_queue(agent), -1)
            pipe.zrange(keys.waiting(agent), 0, 0, withscores=True)
        answers = rows_of(pipe)
    rows = [answers[start : start + 12] for start in range(0, len(answers), 12)]
    return {name: _backlog(name, row) for name, row in zip(names, rows, strict=True)}


def _backlog(agent: str, row: Sequence[Any]) -> Backlog:
    calls, events, waiting, running, dead, _, mailboxes, pending, scheduled = (
        count or 0 for count in row[:9]
    )
    *heads, first = row[9:]
    queue = QueueStatus(
        agent=agent,
        queue=call_queue(agent),
        backlog=calls + events,
        running=running,
        waiting_for_limit=waiting,
        events=events,
        dead_letters=dead,
        late_answers=whole_number(row[5], f"the late answers of {agent}"),
        mailboxes=mailboxes,
        pending=pending,
        scheduled=scheduled,
    )
    return Backlog(queue, tuple(head for head in heads if head), float(first[0][1]) if first else None)


def read_queues(ledger: Ledger, agents: Iterable[str], workers: Iterable[WorkerRecord]) -> list[QueueStatus]:
    """Read the state of the queues of ``agents``: three trips to Redis, and two more if anything runs."""
    redis, keys = ledger.redis, ledger.keys
    consumers = Counter(agent for worker in workers for agent in worker.agents)
    backlogs = read_backlogs(redis, keys, agents)
    ages = _ages(redis, keys, list(backlogs.values()))
    paused = Pauses(redis, keys).read()
    losses = losses_of_agents(ledger, [name for name, one in backlogs.items() if one.queue.running])
    found = []
    for (agent, (queue, _, _)), age in zip(backlogs.items(), ages, strict=True):
        lost = losses.get(agent, ())
        known = {
            "oldest_seconds": age,
            "workers": consumers[agent],
            "paused": paused.about(agent),
            "lost": len(lost),
            "lost_with": tuple(sorted({loss.worker for loss in lost})),
            "lost_seconds": max((loss.seconds for loss in lost), default=None),
        }
        found.append(queue.model_copy(update=known))
    return found


def _ages(redis: Redis, keys: Keys, backlogs: Sequence[Backlog]) -> list[float | None]:
    """Return the age of each backlog's oldest call or event: at a queue's head, or before a limit."""
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for backlog in backlogs:
            for head in backlog.heads:
                pipe.hget(keys.call(_call_id(head)), "queuedAt")
        time, *queued_at = rows_of(pipe)
    now, times = milliseconds_of(time), iter(queued_at)
    return [_age(now, [*islice(times, len(one.heads)), one.waits_since]) for one in backlogs]


def _age(now: float, since: Iterable[Any]) -> float | None:
    times = [time for at in since if at and (time := whole_number(at, "the time of a waiting call"))]
    return max(0.0, round((now - min(times)) / 1000, 1)) if times else None


def _call_id(message: bytes) -> str:
    try:
        return str(serializer.decode(message)["headers"]["id"])
    except (serializer.NotJsonError, KeyError, TypeError):
        return ""  # not a Celery message; a worker will say so


class AgentState(StrEnum):
    """What an agent's workers are doing."""

    #: an operator has paused it: its workers take no calls and events
    PAUSED = "paused"
    #: at least one call or event runs, or waits for a live worker
    RUNNING = "running"
    #: live workers have nothing to do
    IDLE = "idle"
    #: an orchestrator has started a worker that does not take calls yet
    STARTING = "starting"
    #: workers crash as soon as they start; the next start waits
    CRASH_LOOP = "crashLoopBackOff"
    #: the agent has no worker
    NONE = "none"


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """One agent: its description, its workers, and the state of its queues."""

    record: AgentRecord
    workers: Sequence[WorkerRecord]
    queue: QueueStatus
    backoff: CrashBackoff
    #: whether an orchestrator starts its workers
    is_orchestrated: bool
    #: ms, Redis time
    now: int

    @property
    def state(self) -> AgentState:
        """What its workers are doing."""
        if self.queue.pause is not None:
            return AgentState.PAUSED
        if self.workers:
            return AgentState.RUNNING if self.queue.running or self.queue.backlog else AgentState.IDLE
        if self.backoff.is_starting(self.now):
            return AgentState.STARTING
        return AgentState.CRASH_LOOP if self.backoff.is_looping else AgentState.NONE

    @property
    def waits_for_workers(self) -> bool:
        """Whether work waits that a worker would take: not events that only a producer handles."""
        events = 0 if self.record.has_entry else self.queue.events
        return bool(self.queue.backlog - events or self.queue.waiting_for_limit)

    @property
    def next_start_seconds(self) -> float | None:
        """The seconds until its crash loop lets a worker start; ``None`` without a crash loop."""
        if not self.backoff.is_looping:
            return None
        return max(0.0, round((self.backoff.retry_at - self.now) / 1000, 1))

    def to_wire(self) -> JsonObject:
        """Return the row of ``goondan agents --json``."""
        return {
            "name": self.record.name,
            "swarm": self.record.swarm,
            "workspace": self.record.workspace,
            "tools": [item["name"] for item in self.record.catalog],
            "workers": [worker.name for worker in self.workers],
            "backlog": self.queue.backlog,
            "running": self.queue.running,
            "state": str(self.state),
            "orchestrated": self.is_orchestrated,
            "crashes": self.backoff.crashes,
            "nextStartSeconds": self.next_start_seconds,
            "reason": self.backoff.reason or None,
            "paused": [pause.to_wire() for pause in self.queue.paused],
        }


def read_agents(
    ledger: Ledger, records: Mapping[str, AgentRecord], workers: Iterable[WorkerRecord]
) -> list[AgentStatus]:
    """Read the state of these agents, with two more trips to Redis than :func:`read_queues`."""
    redis, keys, present = ledger.redis, ledger.keys, list(workers)
    backoffs = CrashBackoffs(redis, keys).read(records)
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for name in records:
            pipe.exists(keys.orchestrated(name))
        time, *orchestrated = pipe.execute()
    return [
        AgentStatus(
            record=records[queue.agent],
            workers=[worker for worker in present if queue.agent in worker.agents],
            queue=queue,
            backoff=backoffs[queue.agent],
            is_orchestrated=bool(is_orchestrated),
            now=int(milliseconds_of(time)),
        )
        for queue, is_orchestrated in zip(read_queues(ledger, records, present), orchestrated, strict=True)
    ]


class LimitStatus(WireModel):
    """A limit with calls that wait: of exports, of a Model, of an idempotencyKey, or of a paused tool."""

    limit: str
    #: how many calls wait
    waiting: int
    #: how many calls it admits at once, or within the period
    most: int
    #: of a rate; null where calls count as long as they run
    period_seconds: float | None = None
    #: when a call that joins the wait queue now is admitted; estimated where there is no period
    free_at: str


def read_limits(ledger: Ledger) -> list[LimitStatus]:
    """Read the limits that calls wait for, in two trips to Redis for each."""
    limits = cast("list[bytes]", ledger.redis.zrange(ledger.keys.limits, 0, -1))
    limiter = Limiter(ledger)
    states = {name: limiter.state(name) for name in (limit.decode(errors="replace") for limit in limits)}
    return [
        LimitStatus(
            limit=name,
            waiting=state.waiting,
            most=state.most,
            period_seconds=state.period / 1000 if state.period else None,
            free_at=iso_time(state.free_at),
        )
        for name, state in states.items()
        if state.waiting
    ]


#: how many mailboxes of an agent are checked, the longest unserved first
LOOKED_AT = 100


@dataclass(frozen=True, slots=True)
class UnfetchedMail:
    """The number of an agent's mailboxes that no producer has served, and the longest time in seconds."""

    agent: str
    mailboxes: int
    seconds: float


def read_unfetched_mail(
    redis: Redis, keys: Keys, agents: Iterable[str], *, older_than_seconds: float
) -> list[UnfetchedMail]:
    """Return the agents whose events have waited for that long while no producer receives them."""
    now = int(redis_time(redis))
    waiting = [_unserved(redis, keys, agent, now, older_than_seconds * 1000) for agent in agents]
    found = [mail for mail in waiting if mail is not None]
    # a producer that waits for events has subscribed to their news
    heard = {mail.agent: redis.pubsub_numsub(keys.mail(mail.agent))[0][1] for mail in found}
    return [mail for mail in found if not heard[mail.agent]]


def _unserved(redis: Redis, keys: Keys, agent: str, now: int, age_ms: float) -> UnfetchedMail | None:
    boxes = cast(
        "list[tuple[bytes, float]]",
        redis.zrangebyscore(
            keys.mailboxes(agent), "-inf", now - age_ms, start=0, num=LOOKED_AT, withscores=True
        ),
    )
    with redis.pipeline(transaction=False) as pipe:
        for box, _ in boxes:
            pipe.lindex(keys.mailbox(box.decode()), 0)
        firsts = rows_of(pipe)
        for first in firsts:
            pipe.hget(keys.call((first or b"").decode()), "status")
        statuses = rows_of(pipe)
    since = [at for (_, at), status in zip(boxes, statuses, strict=True) if status == b"queued"]
    return UnfetchedMail(agent, len(since), (now - min(since)) / 1000) if since else None
