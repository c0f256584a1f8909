"""What an orchestrator says of an outage of Redis."""

from types import SimpleNamespace
from typing import Any, cast

from redis.exceptions import ConnectionError as RedisConnectionError

from goondan_tasks.orchestrator.orchestrator import Orchestrator


class Log:
    """Notes the names of events."""

    def __init__(self) -> None:
        self.events: list[str] = []

    def warning(self, event: str, **_: Any) -> None:
        self.events.append(event)

    debug = info = error = warning


class Fleet:
    """A fleet without agents, whose Redis may be away."""

    is_away = False

    def look(self, _agents: object) -> object:
        if self.is_away:
            raise RedisConnectionError("refused")
        return SimpleNamespace()


def test_an_outage_is_told_once_and_so_is_its_end() -> None:
    log, fleet = Log(), Fleet()
    members = SimpleNamespace(ended=list, present={})
    orchestrator = Orchestrator((), cast(Any, fleet), cast(Any, members), log=cast(Any, log))

    for fleet.is_away in (False, True, True, True, False, False, True):
        orchestrator.look()

    assert log.events == ["orchestrator.redis_away", "orchestrator.redis_back", "orchestrator.redis_away"]
