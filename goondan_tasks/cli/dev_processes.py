"""What ``goondan dev`` starts: a worker for each agent, and Flower."""

import socket
import sys
from collections.abc import Sequence

from redis.exceptions import RedisError

from goondan_tasks.cli.flower import DEFAULT_PORT, LOOPBACK, why_not_free
from goondan_tasks.cli.supervisor import Supervisor
from goondan_tasks.roster import Roster

#: how many ports are tried for Flower
PORTS = 100

_FLOWER = "flower"
_PROGRAM = (sys.executable, "-P", "-m", "goondan_tasks.cli")


class DevProcesses:
    """One worker process for each agent, named like it, and Flower."""

    def __init__(self, supervisor: Supervisor, roster: Roster, worker_options: Sequence[str]) -> None:
        self._supervisor = supervisor
        self._roster = roster
        self._worker_options = worker_options
        self._agents: tuple[str, ...] = ()
        self._is_ready = False

    def serve(self, agents: tuple[str, ...]) -> None:
        """Start workers of the bundle as it is now; those of before finish their calls."""
        for agent in self._agents:
            self._supervisor.stop(_worker_name(agent))
        for agent in agents:
            command = [*_PROGRAM, "worker", "--agent", agent, *self._worker_options]
            self._supervisor.start(_worker_name(agent), command)
        self._agents, self._is_ready = agents, False

    def start_flower(self) -> str | None:
        """Start Flower on the first free port and return its URL, ``None`` if none is free."""
        ports = range(DEFAULT_PORT, DEFAULT_PORT + PORTS)
        port = next((port for port in ports if why_not_free(LOOPBACK, port) is None), None)
        if port is None:
            return None
        self._supervisor.start(_FLOWER, [*_PROGRAM, "flower", "--address", LOOPBACK, "--port", str(port)])
        return f"http://{LOOPBACK}:{port}"

    def became_ready(self) -> bool:
        """Say, once after each :meth:`serve`, that every worker consumes."""
        if self._is_ready or not self._are_consuming():
            return False
        self._is_ready = True
        return True

    def look_after(self) -> None:
        """Start again what died."""
        self._supervisor.look_after()

    def _are_consuming(self) -> bool:
        here = socket.gethostname()
        try:
            present = {worker.pid for worker in self._roster.workers() if worker.host == here}
        except RedisError:
            return False
        return all(self._supervisor.pid(_worker_name(agent)) in present for agent in self._agents)


def _worker_name(agent: str) -> str:
    """Name a worker's process; an agent may be called flower."""
    return f"worker {agent}"
