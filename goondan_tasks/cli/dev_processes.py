"""What ``goondan dev`` keeps running: a worker for each agent, and Flower."""

import contextlib
import os
import socket
import threading
from collections.abc import Sequence
from pathlib import Path

from redis import Redis
from redis.exceptions import RedisError

from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.cli.dev_revision import is_followed
from goondan_tasks.cli.flower import DEFAULT_PORT, LOOPBACK, why_not_free
from goondan_tasks.cli.supervisor import Supervisor
from goondan_tasks.orchestrator.orchestrator import Fleet, Orchestrator, Rules
from goondan_tasks.orchestrator.supervisor import PROGRAM
from goondan_tasks.orchestrator.supervisor import Supervisor as Members
from goondan_tasks.roster import AgentRecord, Roster
from goondan_tasks.tool_api import Logger

#: how many ports are tried for Flower
PORTS = 100

_FLOWER = "flower"
_RULES = Rules(is_always_needed=True)


class DevProcesses:
    """The workers, which an orchestrator keeps, and Flower."""

    def __init__(
        self, supervisor: Supervisor, members: Members, redis: Redis, settings: Settings, log: Logger
    ) -> None:
        self._supervisor = supervisor
        self._members = members
        self._redis = redis
        self._settings = settings
        self._log = log
        self._roster = Roster(redis, Keys(settings.namespace))
        self._orchestrator = self._made(())
        self._agents: list[str] = []
        self._is_ready = False

    def follows(self, bundle: Path, agents: Sequence[AgentRecord], stop: threading.Event) -> bool:
        """Say whether each agent has a worker that takes the bundle's change by itself."""
        is_same_crew = [agent.name for agent in agents] == self._agents
        return is_same_crew and is_followed(bundle, agents[0], self._settings, self._redis, stop=stop)

    def serve(self, agents: Sequence[AgentRecord]) -> None:
        """Start workers of the bundle as it is now; those of before finish their calls."""
        self._orchestrator = self._made(agents)
        self._agents = [agent.name for agent in agents]
        with contextlib.suppress(RedisError):
            forget_dead_workers(self._roster)
        self._orchestrator.begin_anew()
        self._orchestrator.look()
        self._is_ready = False

    def start_flower(self) -> str | None:
        """Start Flower on the first free port and return its URL, ``None`` if none is free."""
        ports = range(DEFAULT_PORT, DEFAULT_PORT + PORTS)
        port = next((port for port in ports if why_not_free(LOOPBACK, port) is None), None)
        if port is None:
            return None
        self._supervisor.start(_FLOWER, [*PROGRAM, "flower", "--address", LOOPBACK, "--port", str(port)])
        return f"http://{LOOPBACK}:{port}"

    def became_ready(self) -> bool:
        """Say, once after each :meth:`serve`, that every agent has a worker."""
        if self._is_ready:
            return False
        with contextlib.suppress(RedisError):
            self._is_ready = self._orchestrator.are_served()
        return self._is_ready

    def look_after(self) -> None:
        """Start again what died."""
        self._supervisor.look_after()
        self._orchestrator.look()

    def end(self) -> None:
        """End everything: what runs has the grace period."""
        self._orchestrator.stop()
        self._supervisor.end()

    def _made(self, agents: Sequence[AgentRecord]) -> Orchestrator:
        fleet = Fleet(self._redis, self._settings, agents, f"dev-{os.getpid()}@{socket.gethostname()}")
        names = [agent.name for agent in agents]
        return Orchestrator(names, fleet, self._members, rules=_RULES, log=self._log)


def forget_dead_workers(roster: Roster) -> None:
    """Remove the records of this machine's workers that were killed, perhaps with an earlier dev."""
    for worker in roster.workers():
        if worker.host == socket.gethostname():
            try:
                os.kill(worker.pid, 0)
            except ProcessLookupError:
                roster.remove_worker(worker.row)
            except PermissionError:
                continue  # somebody else's, and alive
