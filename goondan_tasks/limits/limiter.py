"""The results that limits lead to: too late for a limit, shared with another call, in conflict with one."""

import math
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from broker_config.scripts import run_errand
from goondan_tasks.errors import LimitError, ToolCallConflictError
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim
from goondan_tasks.limits.errands import LimitErrands
from goondan_tasks.messages import ToolCallResult, iso_time

_UNITS = {1_000: "s", 60_000: "m", 3_600_000: "h"}


@dataclass(frozen=True, slots=True)
class GateState:
    """How it stands at a gate. Times are milliseconds, Redis time."""

    now: int
    #: how many calls wait
    line: int
    most: int
    period: int
    #: how long a call takes here, of late
    took: float
    #: when the oldest of those that count was admitted
    oldest: float | None
    #: when the one was admitted that ``most`` calls back counts for a rate
    mark: float | None

    @property
    def free_at(self) -> int:
        """When a call that joins the line now may expect its turn: exact for a rate, else estimated."""
        rounds, rest = divmod(self.line, self.most)
        if self.period:
            first = self.now if self.mark is None else max(self.now, self.mark + self.period)
            return math.ceil(first + rounds * self.period)
        took = self.took or (0 if self.oldest is None else self.now - self.oldest)
        return math.ceil(self.now + max(1_000, took * (rounds + rest / self.most)))


class Limiter:
    """Speaks for the limits of one ledger's calls where a call ends because of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._redis = ledger.redis
        self._keys = ledger.keys
        self._errands = LimitErrands(ledger.settings)

    def forget(self, call_id: str) -> None:
        """Take a call that has ended out of its line."""
        run_errand(self._redis, self._errands.leave(call_id, "", 0))

    def too_late(self, claim: Claim) -> LimitError:
        """Return the error of a call that its limits let in only after its deadline."""
        gate = claim.about or self._waited_at(claim.run.id)
        state = self.state(gate)
        seconds = max(0, state.free_at - state.now) / 1000
        when = f"{'' if state.period else 'about '}{seconds:.1f} s, at {iso_time(state.free_at)}"
        return LimitError(
            f"{_reason(gate, state)}, and the call's deadline came first: it was not run. Retry in {when}."
        )

    def state(self, gate: str) -> GateState:
        """Read how it stands at a gate."""
        holders = self._keys.holders(gate)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zcard(self._keys.line(gate))
            pipe.hmget(self._keys.limit(gate), "most", "period", "took", "owner")
            pipe.zrange(holders, 0, "+inf", byscore=True, offset=0, num=1, withscores=True)
            (seconds, micros), line, (most, period, took, owner), holder = pipe.execute()
        count = int(most or 1)
        place = line % count - count
        mark = self._redis.zrange(holders, place, place, withscores=True)
        oldest = self._redis.hget(self._keys.call(owner.decode()), "claimedAt") if owner else _score(holder)
        return GateState(
            now=seconds * 1000 + micros // 1000,
            line=line,
            most=count,
            period=int(period or 0),
            took=float(took or 0),
            oldest=None if oldest is None else float(oldest),
            mark=_score(mark),
        )

    def _waited_at(self, call_id: str) -> str:
        gate: Any = self._redis.hget(self._keys.call(call_id), "waiting")
        return "" if gate is None else gate.decode()


def _score(rows: Any) -> float | None:
    return float(rows[0][1]) if rows else None


def conflict(claim: Claim) -> ToolCallConflictError:
    """Return the error of a call whose idempotencyKey belongs to a call with other arguments."""
    return ToolCallConflictError(
        f"The idempotencyKey was used for call {claim.about}, with other arguments.",
        suggestion="Use a new idempotencyKey for a different call.",
    )


def shared(claim: Claim, result: ToolCallResult) -> ToolCallResult:
    """Return the result of a call that has its outcome from another one: all but that is its own."""
    # a file stands in the other's workdir: from another instance it cannot be read, and that is said then
    own = claim.run.ok(None, None, output_file=result.meta.output_file)
    outcome = {name: getattr(result, name) for name in ("status", "output", "handle", "error")}
    return own.model_copy(update=outcome)


def _reason(gate: str, state: GateState) -> str:
    kind, _, name = gate.partition(":")
    scope, _, instance = name.partition("@")
    if kind == "rate":
        return f"{scope} is limited to {state.most}/{_UNITS.get(state.period, 's')}"
    if kind == "serial":
        return f"Calls of {scope} run one at a time in instance {unquote(instance)!r}"
    if kind == "key":
        return "Another call with the same idempotencyKey is under way"
    return f"{scope} is limited to {state.most} at a time"
