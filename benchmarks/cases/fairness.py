"""Whether a call waits in one worker while another has a slot for it."""

import base64
import json
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from redis import Redis

from benchmarks.bench import Bench
from benchmarks.figures import Samples, Section, at_most, percentile
from benchmarks.lanes import Lane
from benchmarks.systems import GOONDAN, Shape
from benchmarks.timeline import HandlerRun, longest_idle_wait
from broker_config.keys import Keys

SHORT, MEDIUM, LONG = ("pause-short", 0.001), ("pause-medium", 0.01), ("pause-long", 1.0)
WORKERS, SLOTS = 2, 8
TICK_SECONDS = 0.01
AIM_MS = 20.0

#: how long the events of the last calls are waited for
EVENTS_SECONDS = 10.0

#: submitted at each tick of the stream, and a long call at every tenth
_TICK = [SHORT] * 4 + [MEDIUM] * 2
_BACKLOG = [SHORT] * 600 + [MEDIUM] * 300 + [LONG] * 32

_TEXT = f"""\
Two of our worker processes with {SLOTS} slots each run sync tools that last 1 ms, 10 ms and 1 s. The
*stream* submits six short and medium calls every {TICK_SECONDS * 1000:g} ms and a long one every
{TICK_SECONDS * 10_000:g} ms, which keeps about 12 of the 16 slots busy; the *backlog* submits
{len(_BACKLOG)} calls at once in random order. Every handler returns when it began and ended, on the clock
that all processes share, and in which process; the producer knows when it submitted. From these alone
follows for each call the longest time for which it waited, in the queue or in a worker, while the worker that
did *not* run it had a slot idle, and while that worker ran nothing at all. The maxima over all calls of a
turn are shown. Where the processors cannot keep up, most of that is the queue; so the same is shown from the
time on at which a worker had claimed the call, which its events tell. In the backlog
a worker runs short calls one after another on purpose, which counts as idle slots too."""

#: what is idle meanwhile in the other worker, which then runs fewer calls than this
_IDLE = (("a slot idle", SLOTS), ("the worker idle", 1))


def measure(bench: Bench) -> Section:
    """Measure how long a slot is idle in one worker while a call waits in another."""
    figures = Samples("ms")
    seconds = 1 if bench.options.is_quick else 5
    shuffled = random.Random(1)

    def add(lane: Lane, load: str, batches: list[Any]) -> None:
        with claim_times(lane.redis) as claims:
            answer = lane.order("stream", batches=batches, interval=TICK_SECONDS)
            runs = [HandlerRun(**run) for run in answer["runs"]]
            end = time.monotonic() + EVENTS_SECONDS
            while len(claims) < len(runs) and time.monotonic() < end:
                time.sleep(TICK_SECONDS)
        workers = [worker.pid for worker in lane.workers]
        for since, waiting in ((load, runs), (f"{load}, claimed", since_claims(lane.redis, runs, claims))):
            for idle, slots in _IDLE:
                figures.add(f"{since}: {idle}", 1000 * longest_idle_wait(waiting, workers, slots))
        waits = [1000 * (run.begun - run.submitted) for run in runs]
        figures.add(f"{load}: p50 of the wait", percentile(waits, 50))
        figures.add(f"{load}: p99 of the wait", percentile(waits, 99))

    def turn(lane: Lane) -> None:
        ticks = range(round(seconds / TICK_SECONDS))
        add(lane, "stream", [_TICK + [LONG] * (tick % 10 == 0) for tick in ticks])
        add(lane, "backlog", [shuffled.sample(_BACKLOG, len(_BACKLOG))])

    failures = bench.turns([(GOONDAN, Shape(workers=WORKERS, concurrency=SLOTS))], turn)
    aims = [
        at_most(
            f"longest wait with {what} in the other, {since}",
            figures.median(f"{since}: {idle}"),
            AIM_MS,
            "ms",
        )
        for load in ("stream", "backlog")
        for since in (load, f"{load}, claimed")
        for what, (idle, _) in zip(("a slot idle", "nothing running"), _IDLE, strict=True)
    ]
    return Section("Fairness between two workers", _TEXT, [figures.table()], aims, failures=failures.values())


@contextmanager
def claim_times(redis: Redis) -> Iterator[dict[str, float]]:
    """Collect, by id, when workers claim calls (``time.monotonic()``): what their events say."""
    claims: dict[str, float] = {}
    to_monotonic = time.monotonic() - time.time()

    def note(published: dict[str, Any]) -> None:
        message = json.loads(published["data"])
        events = json.loads(base64.b64decode(message["body"]))
        for event in events if isinstance(events, list) else [events]:
            if event["type"] == "task-received":
                claims[event["uuid"]] = event["timestamp"] + to_monotonic

    with redis.pubsub() as subscription:
        subscription.psubscribe(**{"*celeryev*": note})
        subscription.get_message(timeout=EVENTS_SECONDS)  # that it is subscribed
        thread = subscription.run_in_thread(sleep_time=TICK_SECONDS, daemon=True)
        yield claims
        thread.stop()
        thread.join()


def since_claims(redis: Redis, runs: Sequence[HandlerRun], claims: Mapping[str, float]) -> list[HandlerRun]:
    """Return the runs as if each call had been submitted when it was claimed, for the last time."""
    prefix = Keys().call("")
    keys = [key.decode() for key in redis.scan_iter(f"{prefix}*", count=1_000)]
    with redis.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.hget(key, "result")
        results = pipe.execute()
    begun = {
        json.loads(result)["output"]["begun"]: key.removeprefix(prefix)
        for key, result in zip(keys, results, strict=True)
        if result and b'"begun"' in result
    }
    return [replace(run, submitted=claims[begun[run.begun]]) for run in runs]
