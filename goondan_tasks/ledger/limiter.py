"""Limits of exports, and the results of calls that end because of them."""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Self, cast
from urllib.parse import quote, unquote

from broker_config.connections import milliseconds_of, rows_of
from broker_config.queues import call_queue, wake_up_key
from broker_config.scripts import Script, ScriptCall
from goondan_tasks.contract.errors import LimitError, ToolCallConflictError
from goondan_tasks.contract.messages import ToolCall, ToolCallResult, iso_time
from goondan_tasks.contract.table_rows import only_advice, whole_number
from goondan_tasks.fleet.pauses import Pauses, is_pause, pause_name
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import Claim

if TYPE_CHECKING:
    from goondan_tasks.bundle import BoundTool

#: marks the times of calls that were admitted and have not started, see ``permits.lua``
RESERVED = 10**13

#: the period of ``tokensPerMinute`` (ms)
MINUTE = 60_000

#: in place of a digest: calls with equal keys need not have equal arguments
_ANY = "-"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits that an export declares."""

    #: the limits of ``maxConcurrency`` and ``rateLimit``, as lines for ``permits.lua``
    concurrency: str | None = None
    rate: str | None = None
    #: that of a Model's ``tokensPerMinute``
    tokens: str | None = None
    #: the Tool or export whose calls run one at a time per instance
    serial_scope: str | None = None
    key_arguments: tuple[str, ...] = ()
    #: the export's own time limit of a run
    timeout_seconds: float = 0

    @property
    def is_empty(self) -> bool:
        """Whether the export declares no limit."""
        return not (self.concurrency or self.rate or self.tokens or self.serial_scope or self.key_arguments)

    def run_seconds(self, call: ToolCall) -> float:
        """Return the longer of the time limits of the call and its export (seconds), 0 if there is none."""
        return max(self.timeout_seconds, call.timeout_seconds or 0)

    @classmethod
    def of(cls, bound: "BoundTool", *, tokens: str | None = None) -> "Limits":
        """Return the limits of a bound tool; ``tokens`` is what :func:`token_limit` returns."""
        export = bound.export
        most, rate = export.max_concurrency, export.rate_limit
        return cls(
            concurrency=None
            if most is None
            else _permits(most, f"concurrency:{_scope(bound, 'max_concurrency')}"),
            rate=None if rate is None else _rate(rate, f"rate:{_scope(bound, 'rate_limit')}"),
            tokens=tokens,
            serial_scope=_scope(bound, "serial") if export.serial else None,
            key_arguments=export.idempotency_key or (),
            timeout_seconds=export.timeout_seconds or 0,
        )

    @property
    def terms(self) -> tuple[str, str] | None:
        """What :attr:`ClaimTerms.limits` is; ``None`` if there are none for ``claim_on_reserve.lua``."""
        common = "\n".join(limit for limit in (self.concurrency, self.rate, self.tokens) if limit)
        return (common, self.serial_scope or "") if common or self.serial_scope else None

    def for_call(self, call: ToolCall, *, is_paused: bool = False) -> str:
        """Return the limits of a call as text (``permits.lua``), in the order in which it waits for them."""
        pause = f"paused 1 0 {_ANY} {pause_name(call.agent_name, call.tool_name)}" if is_paused else None
        own = (self._key(call), self._serial(call))
        call_limits = (pause, *own, self.concurrency, self.rate, self.tokens)
        return "\n".join(limit for limit in call_limits if limit)

    def has_key(self, call: ToolCall) -> bool:
        """Return whether a call has an idempotencyKey, given or declared."""
        return self._key(call) is not None

    def _serial(self, call: ToolCall) -> str | None:
        if self.serial_scope is None:
            return None
        return _permits(1, f"serial:{self.serial_scope}@{quote(call.instance_key, safe='')}")

    def _key(self, call: ToolCall) -> str | None:
        """Return the limit of the call's idempotencyKey; a key that the caller gives overrides the export's.

        It applies to all calls of one agent and tool, in any instance. A replay shares no unknown outcome,
        which may be that of the call that it replays.
        """
        is_replay = call.replay_of is not None
        return key_limit(
            (call.agent_name, call.tool_name), call.args, self.key_arguments, call.idempotency_key, is_replay
        )


def key_limit(
    names: tuple[str, str],
    args: Any,
    key_arguments: Sequence[str],
    given: str | None,
    is_replay: bool = False,
) -> str | None:
    """Return the limit of an idempotencyKey as text, if a call has one; ``names`` are its agent and tool."""
    digest = _ANY
    key: list[Any] = []
    if given:
        digest, key = _digest(args), ["given", given]
    elif key_arguments and isinstance(args, dict):
        key = ["declared", [[name, args.get(name)] for name in key_arguments]]
    return f"key 1 {int(is_replay)} {digest} key:{_digest([*names, key])}" if key else None


def _scope(bound: "BoundTool", field: str) -> str:
    """Return the owner of a limit: the export if it declares the field itself, else the Tool."""
    declared = (export for export in bound.tool.spec.exports if export.name == bound.export.name)
    is_own = any(getattr(export, field) is not None for export in declared)
    if bound.is_v1:  # the name of a v1 export does not contain its Tool
        return f"{bound.tool.name}/{bound.export.name if is_own else '*'}"
    return bound.name if is_own else bound.tool.name


def _permits(most: int, name: str) -> str:
    return f"seats {most} 0 {_ANY} {name}"


def _rate(rate: str, name: str) -> str:
    from goondan_tasks.bundle.fields import RATE_PERIODS_MS  # producers settle calls without a bundle

    count, _, unit = rate.partition("/")
    return f"rate {count} {RATE_PERIODS_MS[unit]} {_ANY} {name}"


def token_limit(model: str, most: int) -> str:
    """Return the limit of a Model's tokens as a line for ``permits.lua``; its name is that of their key."""
    return f"tokens {most} {MINUTE} {_ANY} tokens:{quote(model, safe='')}"


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


@dataclass(frozen=True, slots=True)
class LimitAnswer:
    """The answer of ``admit.lua``."""

    word: str
    #: the call or limit that the word refers to
    about: str
    #: Redis time in ms
    now: int

    @classmethod
    def of(cls, answer: Sequence[Any]) -> Self:
        """Read the script's answer."""
        word, about, now = answer
        return cls(word.decode(), about.decode(), now)


class LimitScripts:
    """The scripts for calls with limits that are not claimed on reserve, or whose runs take long."""

    def __init__(self, ledger: Ledger) -> None:
        folder = files("goondan_tasks.ledger") / "scripts"
        self._begin, self._leave = (Script.read(folder, "permits", name) for name in ("begin", "leave"))
        self._admit = Script.read(folder, "ttl", "permits", "queueing", "admit")
        self._keys, self._terms = ledger.keys, ledger.limit_terms
        settings = ledger.settings
        self._ttl = settings.result_ttl_seconds + settings.queue_timeout_seconds
        self._call_timeout = settings.call_timeout_seconds

    def admit(
        self,
        call_id: str,
        call: ToolCall,
        call_limits: str,
        *,
        message: bytes,
        run_seconds: float,
        token: str = "",
        is_on_record: bool = True,
    ) -> ScriptCall[LimitAnswer]:
        """Ask whether a call may run now, for at most ``run_seconds`` (``admit.lua``).

        With the ``token`` of its claim, a call that must wait is queued again. If the call is not known to be
        that of its record, and was approved, the answer is ``approved`` and the record's call as JSON.
        """
        queue = call_queue(call.agent_name)
        # the space marks the message of an admitted call, see permits.lua
        turn = b" " + message if message else b""
        # what a call holds must outlive the call
        ttl = math.ceil(self._ttl + max(run_seconds, self._call_timeout))
        queue_names = call.agent_name, queue, wake_up_key(queue)
        arguments = (self._terms, call_id, *queue_names, call_limits, turn, ttl, token, int(is_on_record))
        keys = [self._keys.call(call_id), self._keys.due, self._keys.running(call.agent_name)]
        return ScriptCall(self._admit, keys, arguments, LimitAnswer.of)

    def begin(self, call_id: str, token: str, call_limits: str) -> ScriptCall[Any]:
        """Count the start of a run for its rates now, since it may take long (``begin.lua``)."""
        arguments = [self._terms, call_id, token, call_limits]
        return ScriptCall(self._begin, [self._keys.call(call_id)], arguments)

    def leave(self, call_id: str, token: str, call_limits: str) -> ScriptCall[Any]:
        """Release what a run holds that has ended, and whose record is damaged (``leave.lua``)."""
        arguments = [self._terms, call_id, token, call_limits]
        return ScriptCall(self._leave, [self._keys.call(call_id)], arguments)


_UNITS = {1_000: "s", 60_000: "m", 3_600_000: "h"}


@dataclass(frozen=True, slots=True)
class LimitState:
    """The state of a limit. Times are milliseconds, Redis time."""

    now: int
    #: the number of waiting calls
    waiting: int
    most: int
    period: int
    #: the recent average duration of a call (ms)
    took: float
    #: when the oldest call that counts was admitted
    oldest: float | None
    #: for a rate: when the call has started on whose expiry the next one in line depends; ``RESERVED`` and
    #: the time of its admission if it has not started
    mark: float | None

    @property
    def free_at(self) -> int:
        """When a call that joins the wait queue now is admitted.

        It is exact for a rate, the latest time for tokens, and otherwise estimated.
        """
        rounds, rest = divmod(self.waiting, self.most)
        if self.period:
            first = self.now if self.mark is None else max(self.now, self.mark % RESERVED + self.period)
            return math.ceil(first + rounds * self.period)
        took = self.took or (0 if self.oldest is None else self.now - self.oldest)
        return math.ceil(self.now + max(1_000, took * (rounds + rest / self.most)))


class Limiter:
    """Reads limits, and makes the errors of calls that end because of them."""

    def __init__(self, ledger: Ledger) -> None:
        self._redis = ledger.redis
        self._keys = ledger.keys

    def too_late(self, claim: Claim) -> LimitError:
        """Return the error of a call that its limits would admit only after its deadline."""
        limit = claim.about or self._waited_at(claim.run.id)
        if is_pause(limit):
            call = claim.run.call
            pause = Pauses(self._redis, self._keys).read().of(call.agent_name, call.tool_name)
            text = "was paused" if pause is None else f"is {pause.text}"
            return LimitError(
                f"{call.tool_name} of {call.agent_name} {text}; its deadline came first, and it was not run.",
                suggestion="Submit the call again when the tool is resumed.",
            )
        state = self.state(limit)
        seconds = max(0, state.free_at - state.now) / 1000
        when = f"{'' if state.period else 'about '}{seconds:.1f} s, at {iso_time(state.free_at)}"
        text = limit_text(limit, state)
        return LimitError(f"{text}, and the call's deadline came first: it was not run. Retry in {when}.")

    def state(self, limit: str) -> LimitState:
        """Read the state of a limit."""
        holders = self._keys.holders(limit)
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.time()
            pipe.zcard(self._keys.wait_queue(limit))
            pipe.hmget(self._keys.limit(limit), "most", "period", "took", "owner")
            pipe.zrange(holders, 0, "+inf", byscore=True, offset=0, num=1, withscores=True)
            time, waiting, numbers, holder = rows_of(pipe)
        most, period, took, owner = numbers or (None,) * 4
        count = whole_number(most, self._keys.limit(limit)) or 1
        place = (waiting or 0) % count - count
        with self._redis.pipeline(transaction=False) as pipe:
            pipe.zrange(holders, place, place, withscores=True)
            if owner:
                pipe.hget(self._keys.call(owner.decode(errors="replace")), "claimedAt")
            mark, *claimed = rows_of(pipe)
        oldest: float | None = _score(holder)
        if owner:
            oldest = whole_number(claimed[0], self._keys.limit(limit)) or None
        return LimitState(
            now=int(milliseconds_of(time)),
            waiting=waiting or 0,
            most=count,
            period=whole_number(period, self._keys.limit(limit)),
            took=whole_number(took, self._keys.limit(limit)),
            oldest=oldest,
            # tokens have no holders; in a period, those that count now do no more
            mark=int(milliseconds_of(time)) if limit.startswith("tokens:") else _score(mark),
        )

    def _waited_at(self, call_id: str) -> str:
        key, limit = self._keys.call(call_id), None
        with only_advice(key):
            limit = cast("bytes | None", self._redis.hget(key, "waiting"))
        return "" if limit is None else limit.decode(errors="replace")


def _score(rows: Any) -> float | None:
    return float(rows[0][1]) if rows else None


def conflict(claim: Claim) -> ToolCallConflictError:
    """Return the error of a call whose idempotencyKey belongs to a call with other arguments."""
    return ToolCallConflictError(
        f"The idempotencyKey was used for call {claim.about}, with other arguments.",
        suggestion="Use a new idempotencyKey for a different call.",
    )


def shared(claim: Claim, result: ToolCallResult) -> ToolCallResult:
    """Return the result of a call that shares the outcome of another call."""
    # the file is in the other call's workdir; a reader in another instance gets an error that says so
    own = claim.run.ok(None, None, output_file=result.meta.output_file)
    outcome = {name: getattr(result, name) for name in ("status", "output", "handle", "error")}
    return own.model_copy(update=outcome)


def limit_text(limit: str, state: LimitState) -> str:
    """Say whom a limit admits, as the beginning of a sentence."""
    kind, _, name = limit.partition(":")
    scope, _, instance = name.partition("@")
    if kind == "rate":
        return f"{scope} is limited to {state.most}/{_UNITS.get(state.period, 's')}"
    if kind == "tokens":
        return f"Model {unquote(name)!r} is limited to {state.most} tokens a minute"
    if kind == "serial":
        return f"Calls of {scope} run one at a time in instance {unquote(instance)!r}"
    if kind == "key":
        return "Another call with the same idempotencyKey is under way"
    return f"{scope} is limited to {state.most} at a time"
