"""What an orchestrator sees of its agents in Redis, and what it does to their calls."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from redis import Redis

from broker_config.left_messages import LeftMessages
from broker_config.settings import Settings
from goondan_tasks.client.queue_status import Backlog, read_backlogs
from goondan_tasks.client.sweeper import Sweeper
from goondan_tasks.dispatch import dispatch_for
from goondan_tasks.errors import GoondanError
from goondan_tasks.ledger.errands import sweep_seconds
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.orchestrator.queued_calls import QueuedCalls
from goondan_tasks.orchestrator.queued_messages import QueuedMessages
from goondan_tasks.orchestrator.successes import Successes
from goondan_tasks.orchestrator.upkeep import Upkeep
from goondan_tasks.orchestrator.upkeep_store import UpkeepStore
from goondan_tasks.roster import AgentRecord, Roster, WorkerRecord

#: how long an orchestrator counts as there after it has looked
SEEN_SECONDS = 10

#: how often the table of agents is made known again
PUBLISH_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Sight:
    """One look. ``now`` is ms, Redis time."""

    now: int
    workers: Sequence[WorkerRecord]
    backlogs: Mapping[str, Backlog]
    upkeeps: Mapping[str, Upkeep]


class Fleet:
    """The agents of one bundle, as they stand in Redis."""

    def __init__(self, redis: Redis, settings: Settings, agents: Iterable[AgentRecord], name: str) -> None:
        self._redis = redis
        self._agents = {agent.name: agent for agent in agents}
        self._name = name
        self._ledger = Ledger(redis, settings)
        settlement = Settlement(self._ledger, dispatch_for(settings), settings.help_url)
        self._calls = QueuedCalls(self._ledger, settlement, name)
        self._messages = QueuedMessages(self._ledger)
        self._successes = Successes(self._ledger)
        self._are_messages_here = settings.effective_broker_url == settings.redis_url
        self._sweeper = Sweeper(lambda: settlement.sweep(name), sweep_seconds(settings))
        left = LeftMessages(redis, settings.lease_seconds)
        self._left = Sweeper(left.put_back, sweep_seconds(settings))
        self._publisher = Sweeper(lambda: self.roster.publish_agents(self._agents.values()), PUBLISH_SECONDS)
        self.roster = Roster(redis, self._ledger.keys)
        self.upkeep = UpkeepStore(redis, self._ledger.keys)

    def look(self, agents: Collection[str]) -> Sight:
        """Look at these agents, and say that they are looked after.

        What a dead worker had reserved stands in its queue again, even where no other worker is left.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached.
        """
        self._publisher.sweep()
        self._sweeper.sweep()
        if self._are_messages_here:
            self._left.sweep()
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            for agent in agents:
                pipe.set(self._ledger.keys.orchestrated(agent), self._name, ex=SEEN_SECONDS)
            (seconds, micros), *_ = pipe.execute()
        return Sight(
            now=seconds * 1000 + micros // 1000,
            workers=self.workers(),
            backlogs=read_backlogs(self._redis, self._ledger.keys, agents),
            upkeeps=self.upkeep.read(agents),
        )

    def workers(self) -> list[WorkerRecord]:
        """Return the workers that are alive."""
        return self.roster.workers()

    def is_needed(self, agent: str, backlog: Backlog) -> bool:
        """Say whether something waits for a worker of the agent.

        Events of an agent without an entry wait for its brain, which is elsewhere.
        """
        if not self._are_messages_here:
            return self._calls.has_any(self._agents[agent])
        events = backlog.events if self._agents[agent].has_entry else 0
        return bool(backlog.calls or events or backlog.waiting_for_limit)

    def has_finished_run(self, agent: str, since: int) -> bool:
        """Say whether a worker of the agent has finished a run since ``since`` (ms, Redis time)."""
        return self._successes.has_any(agent, since)

    def seconds_since(self, moment: int) -> float:
        """Return how long ago ``moment`` (ms, Redis time) was."""
        seconds, micros = self._redis.time()
        return seconds + micros / 1e6 - moment / 1000

    def end_queued(self, agent: str, error: GoondanError) -> int:
        """End the calls and requests that wait for the agent, with ``error``; return how many."""
        self._messages.tidy(agent)  # first, to know those that plain Celery has queued
        ended = self._calls.end(self._agents[agent], error)
        if ended:
            self._messages.tidy(agent)
        return ended
