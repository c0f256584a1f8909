"""The floor: redis-py alone, one BRPOP a call, its result stored and published; no promise is kept."""

import json
import time
import uuid
from collections.abc import Sequence

from redis import Redis
from redis.client import PubSub

from benchmarks import workload
from benchmarks.workload import PATIENCE_SECONDS, Call, Wire, run

RESULT_SECONDS = 86_400


class RawProducer:
    """Pushes calls; results come on a channel of its own."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._channel = f"replies-{uuid.uuid4().hex}"
        self._replies: PubSub = redis.pubsub(ignore_subscribe_messages=True)
        self._replies.subscribe(self._channel)
        self._arrived: dict[str, Wire] = {}

    def submit_each(self, calls: Sequence[Call]) -> list[str]:
        """Push the calls one by one."""
        for call in calls:
            self._redis.lpush(call.queue, self._encoded(call))
        return [call.id for call in calls]

    def submit_batch(self, calls: Sequence[Call]) -> list[str]:
        """Push the calls by one command."""
        self._redis.lpush(calls[0].queue, *map(self._encoded, calls))
        return [call.id for call in calls]

    def outputs(self, handles: Sequence[str]) -> list[Wire]:
        """Wait for the results, in order."""
        return [self._output(call_id) for call_id in handles]

    def _encoded(self, call: Call) -> str:
        return json.dumps({**call.wire(), "reply": self._channel})

    def _output(self, call_id: str) -> Wire:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while call_id not in self._arrived:
            if time.monotonic() > deadline:
                raise TimeoutError(f"call {call_id} has no result after {PATIENCE_SECONDS} s")
            if message := self._replies.get_message(timeout=PATIENCE_SECONDS):
                reply = json.loads(message["data"])
                self._arrived[reply["id"]] = reply["output"]
        return self._arrived.pop(call_id)


def open_producer() -> RawProducer:
    """Connect and subscribe."""
    return RawProducer(Redis.from_url(workload.redis_url()))


def work() -> None:
    """Run calls until the process is ended."""
    redis = Redis.from_url(workload.redis_url(), socket_timeout=None)
    while True:
        if (popped := redis.brpop(workload.queues())) is None:
            continue
        call = json.loads(popped[1])
        reply = json.dumps({"id": call["id"], "output": run(call)})
        with redis.pipeline(transaction=False) as pipe:
            pipe.set(f"result-{call['id']}", reply, ex=RESULT_SECONDS)
            pipe.publish(call["reply"], reply)
            pipe.execute()


if __name__ == "__main__":
    work()
