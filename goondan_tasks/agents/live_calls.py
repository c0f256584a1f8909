"""Which instances have calls or events that are queued, waiting or running."""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass

from broker_config import serializer
from goondan_tasks.ledger.ledger import Ledger

#: how many records are read in one trip
BATCH = 500

#: how a call stands that has no result yet
_LIVE = frozenset({b"queued", b"running", b"pending"})
_DONE = b"done"


@dataclass(frozen=True, slots=True)
class LiveCall:
    """A call that has no result yet or is handled still, or one that came a moment ago."""

    id: str
    agent: str
    instance_key: str


class LiveCalls:
    """Reads the ledger's calls for what has to do with instances."""

    def __init__(self, ledger: Ledger) -> None:
        self._redis = ledger.redis
        self._keys = ledger.keys

    def all(self) -> list[LiveCall]:
        """Return the calls and events that have no result yet, and the events that are handled all the same.

        Those were answered at their limit, and their handlers go on (``finish_event.lua``). What was live all
        the while is among them; what was submitted meanwhile may be missing.
        """
        ids = (member for member, _ in self._redis.zscan_iter(self._keys.due, count=BATCH))
        return self._read(ids, live_only=True)

    def since(self, moment: int, agents: Iterable[str]) -> list[LiveCall]:
        """Return the calls and events of ``agents`` that were submitted at ``moment`` (ms) or later."""
        with self._redis.pipeline(transaction=False) as pipe:
            for agent in agents:
                pipe.zrange(self._keys.calls(agent), moment, "+inf", byscore=True)
            ids = itertools.chain.from_iterable(pipe.execute())
        return self._read(ids, live_only=False)

    def _read(self, ids: Iterable[bytes], *, live_only: bool) -> list[LiveCall]:
        found, rest = [], iter(ids)
        while batch := list(itertools.islice(rest, BATCH)):
            with self._redis.pipeline(transaction=False) as pipe:
                for call_id in batch:
                    pipe.hmget(self._keys.call(call_id.decode()), "status", "call", "token")
                rows = pipe.execute()
            for call_id, (status, call, token) in zip(batch, rows, strict=True):
                is_live = status in _LIVE or (status == _DONE and token is not None)
                if call is not None and (is_live or not live_only):
                    found.append(_live_call(call_id.decode(), call))
        return found


def _live_call(call_id: str, call: bytes) -> LiveCall:
    # not as a ToolCall: one of a newer version must be seen, too
    wire = serializer.decode(call)
    return LiveCall(call_id, str(wire.get("agentName", "")), str(wire.get("instanceKey", "default")))
