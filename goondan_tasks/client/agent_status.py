"""How the agents stand: what ``goondan agents`` shows, and metrics count."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.client.queue_status import QueueStatus, read_queues
from goondan_tasks.messages import JsonObject
from goondan_tasks.orchestrator.supervisor import CrashBackoff, CrashBackoffs
from goondan_tasks.roster import AgentRecord, WorkerRecord


class AgentState(StrEnum):
    """What an agent's workers are doing."""

    #: at least one call or event is in hand, or waits for a live worker
    RUNNING = "running"
    #: live workers have nothing to do
    IDLE = "idle"
    #: an orchestrator has started one that does not take calls yet
    STARTING = "starting"
    #: workers crash as soon as they start; the next start waits
    CRASH_LOOP = "crashLoopBackOff"
    #: there is no worker
    NONE = "none"


@dataclass(frozen=True, slots=True)
class AgentStatus:
    """One agent: what it is, who works for it, and how its queues and its workers stand."""

    record: AgentRecord
    workers: Sequence[WorkerRecord]
    queue: QueueStatus
    upkeep: CrashBackoff
    #: whether an orchestrator looks after it
    is_orchestrated: bool
    #: ms, Redis time
    now: int

    @property
    def state(self) -> AgentState:
        """What its workers are doing."""
        if self.workers:
            return AgentState.RUNNING if self.queue.running or self.queue.backlog else AgentState.IDLE
        if self.upkeep.is_starting(self.now):
            return AgentState.STARTING
        return AgentState.CRASH_LOOP if self.upkeep.is_looping else AgentState.NONE

    @property
    def next_start_seconds(self) -> float | None:
        """In how many seconds its crash loop lets a worker start; ``None`` without one."""
        if not self.upkeep.is_looping:
            return None
        return max(0.0, round((self.upkeep.retry_at - self.now) / 1000, 1))

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
            "crashes": self.upkeep.crashes,
            "nextStartSeconds": self.next_start_seconds,
            "reason": self.upkeep.reason or None,
        }


def read_agents(
    redis: Redis, keys: Keys, records: Mapping[str, AgentRecord], workers: Iterable[WorkerRecord]
) -> list[AgentStatus]:
    """Read how these agents stand, in four short trips."""
    present = list(workers)
    upkeeps = CrashBackoffs(redis, keys).read(records)
    with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        for name in records:
            pipe.exists(keys.orchestrated(name))
        (seconds, micros), *orchestrated = pipe.execute()
    return [
        AgentStatus(
            record=records[queue.agent],
            workers=[worker for worker in present if queue.agent in worker.agents],
            queue=queue,
            upkeep=upkeeps[queue.agent],
            is_orchestrated=bool(is_orchestrated),
            now=seconds * 1000 + micros // 1000,
        )
        for queue, is_orchestrated in zip(
            read_queues(redis, keys, records, present), orchestrated, strict=True
        )
    ]
