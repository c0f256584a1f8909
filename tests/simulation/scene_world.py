"""A swarm of a scene, with programs between whose trips others act."""

from typing import Any

from tests.simulation.scripts import watch_scripts
from tests.simulation.world import QUEUES, KnownCall, World


def _ignore(*_: Any) -> None:
    pass


class SceneWorld(World):
    """A swarm whose scripts are not held against the rules of the model, which run one after the other."""

    def __init__(self, parts: Any) -> None:
        super().__init__(parts)
        watch_scripts(_ignore)
        self.theme = ()  # no limits

    def look(self) -> None:
        """Read the results of all calls."""
        calls = [one for one in self.calls.values() if not one.is_damaged]
        with self.redis.pipeline(transaction=False) as pipe:
            for one in calls:
                pipe.hmget(self.ledger.keys.call(one.id), "status", "result")
            rows = pipe.execute()
        self.seen = {
            one.id: ("", result if status in (b"done", b"dead") else b"")
            for one, (status, result) in zip(calls, rows, strict=True)
        }

    def push(self, one: KnownCall) -> None:
        """Queue the message of a tool call, as another program does."""
        self.redis.lpush(QUEUES[0], one.submission.message)
