"""The crash back-off of each agent's workers, which all orchestrators of a namespace share in Redis."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from redis import Redis
from redis.client import Pipeline
from redis.exceptions import ResponseError

from broker_config import serializer
from broker_config.connections import redis_time
from broker_config.keys import Keys
from broker_config.refusals import is_script_fault
from goondan_tasks.contract.messages import Versioned, is_newer
from goondan_tasks.contract.table_rows import report_row

#: how long a back-off is kept after its last change
BACKOFF_TTL_SECONDS = 86_400


@dataclass(frozen=True, slots=True)
class BackoffRules:
    """When crashes are a crash loop, and how long its pauses are."""

    #: a crash is quick if it is within this time after the start, and no run has finished
    quick_seconds: float = 60.0
    #: the number of quick crashes in a row after which starts are delayed
    crashes: int = 5
    first_ms: int = 1_000
    longest_ms: int = 300_000

    def pause_ms(self, crashes: int) -> int:
        """Return the pause before the next start after this number of quick crashes in a row."""
        excess = crashes - self.crashes
        # an unbounded shift could have thousands of bits
        return 0 if excess < 0 else min(self.longest_ms, self.first_ms << min(excess, 32))


class CrashBackoff(Versioned):
    """The starts and crashes of one agent's workers. Times are milliseconds, Redis time.

    It is immutable; methods return the next state. ``generation`` is the last started worker process, and
    reports about an older one change nothing.
    """

    generation: str = ""
    started_at: int = 0
    #: the latest end of its start; no other worker is started before
    starting_until: int = 0
    #: quick crashes in a row
    crashes: int = 0
    #: the earliest time of the next start
    retry_at: int = 0
    #: how the last worker ended
    reason: str = ""

    def is_starting(self, now: int) -> bool:
        """Return whether a worker is being started."""
        return now < self.starting_until

    @property
    def is_looping(self) -> bool:
        """Whether the workers are in a crash loop: a start was delayed, and none has succeeded since."""
        return self.retry_at > 0

    def is_pausing(self, now: int) -> bool:
        """Return whether a crash loop forbids a start."""
        return now < self.retry_at

    def begun(self, generation: str, now: int, start_ms: int) -> "CrashBackoff | None":
        """Begin a start, which may take ``start_ms``; return ``None`` if no start is allowed now."""
        if self.is_starting(now) or self.is_pausing(now):
            return None
        begun = {"generation": generation, "started_at": now, "starting_until": now + start_ms}
        return self.model_copy(update=begun)

    def kept(self, generation: str, now: int, start_ms: int) -> "CrashBackoff":
        """Extend a slow start when half of its time is over."""
        if now + start_ms / 2 < self.starting_until:
            return self
        return self._changed(generation, {"starting_until": now + start_ms})

    def settled(self, generation: str) -> "CrashBackoff":
        """End a start: the worker is ready, or ended without a crash."""
        return self._changed(generation, {"starting_until": 0})

    def crashed(self, generation: str, now: int, reason: str, rules: BackoffRules) -> "CrashBackoff":
        """Count a quick crash; repeated reports count once."""
        crashes = self.crashes + 1
        pause_ms = rules.pause_ms(crashes)
        crashed = {"crashes": crashes, "retry_at": now + pause_ms if pause_ms else 0, "reason": reason}
        return self._changed(generation, {"generation": "", "starting_until": 0, **crashed})

    def succeeded(self) -> "CrashBackoff":
        """Reset the crashes, since a worker of the agent has finished a run."""
        return self.model_copy(update={"crashes": 0, "retry_at": 0, "reason": ""})

    def _changed(self, generation: str, update: dict[str, object]) -> "CrashBackoff":
        return self.model_copy(update=update) if generation == self.generation else self


#: returns the next state, given the current one and the time in ms; ``None``: no change
BackoffStep = Callable[[CrashBackoff, int], CrashBackoff | None]


class CrashBackoffs:
    """The back-offs of all agents, in Redis."""

    def __init__(self, redis: Redis, keys: Keys) -> None:
        self._redis = redis
        self._keys = keys

    def read(self, agents: Iterable[str]) -> dict[str, CrashBackoff]:
        """Return the back-offs of these agents; the reason of one of a newer version says so."""
        names = list(agents)
        keys = [self._keys.crash_backoff(name) for name in names]
        rows = self._redis.mget(keys) if names else []
        return {name: _readable(row, key) for name, row, key in zip(names, rows, keys, strict=True)}

    def change(self, agent: str, step: BackoffStep) -> CrashBackoff | None:
        """Change an agent's back-off atomically; return the new state. A damaged one is replaced.

        Raises:
            redis.exceptions.RedisError: Redis cannot be reached; the change may have been made.
            ValueError: a newer version wrote the state.
        """
        key = self._keys.crash_backoff(agent)
        after: CrashBackoff | None = None

        def write(pipe: Pipeline) -> None:
            nonlocal after
            now = int(redis_time(pipe))
            before, has_other_type = CrashBackoff(), False
            try:
                before = _backoff(pipe.get(key), key)
            except ResponseError as error:
                if not is_script_fault(error):
                    raise
                report_row(key, str(error))
                has_other_type = True
            after = step(before, now)
            pipe.multi()
            if after is not None and (after != before or has_other_type):
                pipe.set(key, serializer.encode(after.to_wire()), ex=BACKOFF_TTL_SECONDS)

        self._redis.transaction(write, key)  # repeats if another orchestrator changes it meanwhile
        return after


def _readable(row: bytes | str | None, key: str) -> CrashBackoff:
    try:
        return _backoff(row, key)
    except ValueError:
        return CrashBackoff(
            reason="The state of its workers was written by another version of goondan and cannot be read."
        )


def _backoff(row: bytes | str | None, key: str) -> CrashBackoff:
    """Read a back-off; a damaged one is logged, and counts as none.

    Raises:
        ValueError: a newer version wrote it.
    """
    if row is None:
        return CrashBackoff()
    try:
        return CrashBackoff.from_wire(serializer.decode(row))
    except ValueError as error:
        if is_newer(error):
            raise
        report_row(key, " ".join(str(error).split()))
        return CrashBackoff()
