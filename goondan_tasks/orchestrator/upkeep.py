"""How an agent's workers fare: who starts one now, and how long a crash loop pauses.

Everything here is pure: each step takes the state and Redis's time in ms and returns the next state. All
orchestrators and ``goondan agents`` share the state (:mod:`goondan_tasks.orchestrator.upkeep_store`). It
counts for one *generation*, the worker process that was started last: what is heard of an older one is
stale and changes nothing.
"""

from dataclasses import dataclass

from goondan_tasks.messages import Versioned


@dataclass(frozen=True, slots=True)
class Backoff:
    """When crashes count as a loop, and how long it pauses."""

    #: a worker that crashes within so many seconds of its start, and has finished no run, crashes quickly
    quick_seconds: float = 60.0
    #: so many quick crashes in a row are made good at once; from then on every start waits
    crashes: int = 5
    first_ms: int = 1_000
    longest_ms: int = 300_000

    def pause_ms(self, crashes: int) -> int:
        """Return how long the next start waits after so many quick crashes in a row."""
        beyond = crashes - self.crashes
        # a shift of thousands of bits would only be cut down again
        return 0 if beyond < 0 else min(self.longest_ms, self.first_ms << min(beyond, 32))


class Upkeep(Versioned):
    """The state of one agent. Times are milliseconds, Redis time."""

    #: the worker process that was started last
    generation: str = ""
    started_at: int = 0
    #: while it is starting nobody starts another one, at most until then
    starting_until: int = 0
    #: quick crashes in a row
    crashes: int = 0
    #: no start before that
    retry_at: int = 0
    #: how the last of them ended
    reason: str = ""

    def is_starting(self, now: int) -> bool:
        """Say whether a worker is being started."""
        return now < self.starting_until

    @property
    def is_looping(self) -> bool:
        """Say whether the workers crash again and again: a start has had to wait, and none has succeeded."""
        return self.retry_at > 0

    def is_pausing(self, now: int) -> bool:
        """Say whether a crash loop forbids a start."""
        return now < self.retry_at

    def begun(self, generation: str, now: int, start_ms: int) -> "Upkeep | None":
        """Start a worker, which may take ``start_ms``; ``None`` if that is not allowed now."""
        if self.is_starting(now) or self.is_pausing(now):
            return None
        return self.model_copy(
            update={"generation": generation, "started_at": now, "starting_until": now + start_ms}
        )

    def kept(self, generation: str, now: int, start_ms: int) -> "Upkeep":
        """Let a worker that is slow to start have more time, once half of it is over."""
        if now + start_ms / 2 < self.starting_until:
            return self
        return self._changed(generation, {"starting_until": now + start_ms})

    def settled(self, generation: str) -> "Upkeep":
        """Note that the worker is at work, or has ended without fault: another one may be started."""
        return self._changed(generation, {"starting_until": 0})

    def crashed(self, generation: str, now: int, reason: str, backoff: Backoff) -> "Upkeep":
        """Count a quick crash, once."""
        crashes = self.crashes + 1
        pause_ms = backoff.pause_ms(crashes)
        return self._changed(
            generation,
            {
                "generation": "",
                "starting_until": 0,
                "crashes": crashes,
                "retry_at": now + pause_ms if pause_ms else 0,
                "reason": reason,
            },
        )

    def succeeded(self) -> "Upkeep":
        """Forget the crashes: a worker of the agent has finished a run."""
        return self.model_copy(update={"crashes": 0, "retry_at": 0, "reason": ""})

    def _changed(self, generation: str, update: dict[str, object]) -> "Upkeep":
        return self.model_copy(update=update) if generation == self.generation else self
