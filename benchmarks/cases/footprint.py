"""What a finished call leaves in Redis, and what a worker holds in memory after the runs before."""

from redis import Redis

from benchmarks.bench import Bench
from benchmarks.lane import Lane
from benchmarks.samples import Samples
from benchmarks.section import Section, at_most, comparison
from benchmarks.systems import GOONDAN

CALL_BYTES = 200
PROMISED_BYTES = 2_560
_AT_ONCE = 1_000

_TEXT = f"""\
Redis: `MEMORY USAGE` of all keys of the system's database after calls of {CALL_BYTES} bytes whose results
were read, less the same before, for each call; a call's result is its arguments. huey deletes a result when
it is read. Memory: the resident size of the worker, child processes included, after the cases of this run
before this one."""


def measure(bench: Bench) -> Section:
    """Measure the keys and the workers' resident size."""
    in_redis = Samples("bytes/call", more_is_better=False)
    resident = Samples("MiB", more_is_better=False)

    def turn(lane: Lane) -> None:
        with bench.fleet.redis(lane) as redis:
            before = bytes_of_keys(redis)
            lane.burst(bench.options.calls, size=CALL_BYTES)
            in_redis.add(lane.system, (bytes_of_keys(redis) - before) / bench.options.calls)
        resident.add(lane.system, lane.worker_bytes() / 2**20)

    lanes = bench.usual_lanes()
    failures = bench.turns(lanes, turn, rounds=1)
    tables = [
        comparison("Redis, for each finished call", in_redis),
        comparison("The worker's memory", resident),
    ]
    left = at_most(
        "Redis for each finished call of 200 bytes", in_redis.median(GOONDAN), PROMISED_BYTES, "bytes"
    )
    return Section("Footprint", _TEXT, tables, [left], failures=list(failures.values()))


def bytes_of_keys(redis: Redis) -> int:
    """Return what the keys of a database take, their names included."""
    total = 0
    keys: list[bytes] = []
    for key in redis.scan_iter(count=_AT_ONCE):
        keys.append(key)
        if len(keys) == _AT_ONCE:
            total += _memory(redis, keys)
            keys = []
    return total + _memory(redis, keys)


def _memory(redis: Redis, keys: list[bytes]) -> int:
    with redis.pipeline(transaction=False) as pipe:
        for key in keys:
            pipe.memory_usage(key, samples=0)
        return sum(size or 0 for size in pipe.execute())
