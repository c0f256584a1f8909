"""What limits need of a worker process: a writer, and the limits that each tool declares."""

import re
from collections import deque
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from redis import Redis

from broker_config.scripts import ScriptCall
from goondan_tasks.bundle import load_bundle
from goondan_tasks.bundle.binding import declared_tool
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.schema import compile_schema
from goondan_tasks.ledger.claim_request import ClaimTerms
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.limiter import Limits, token_limit
from workers.delivery.limiter import CallLimiter
from workers.javascript.tools import HostedTools, Hosts
from workers.processes.isolation import Children, Isolation
from workers.tools.registered_tool import RegisteredTool
from workers.tools.registry import Registry

BUNDLE = load_bundle(Path(__file__).parents[1] / "bundles/admission")
#: the tokens that requests to the model ``small`` may use in a minute
MOST_TOKENS = 100
_ASKING = declared_tool("model", {"name": "ask", "idempotent": True}, "none.py", Path())
_TOKENS = token_limit("small", MOST_TOKENS)
_ASK = RegisteredTool(_ASKING, lambda ctx, input: None, compile_schema(None), is_async=False, tokens=_TOKENS)
REGISTRY = Registry(BUNDLE, Isolation(Children(), ""), HostedTools(Hosts(), Path(), ""), {_ASKING.name: _ASK})
#: a tool whose calls run one at a time per instance, whatever the limits under test say
_SERIAL = "gate__serial"
_LINE = re.compile(r"(\S+) (\d+) (\d+) (\S+) (\S+)")


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of a call, as ``permits.lua`` reads it."""

    kind: str
    most: int
    period: int
    digest: str
    name: str

    @property
    def line(self) -> str:
        return f"{self.kind} {self.most} {self.period} {self.digest} {self.name}"


def limits_of(call: ToolCall) -> tuple[Limit, ...]:
    """Return the limits of a call of the bundle, in the order in which it waits for them."""
    limits = REGISTRY.limits(call.agent_name, call.tool_name)
    lines = "" if limits is None else limits.for_call(call)
    if call.tool_name == _SERIAL and "serial:" not in lines:
        lines += f"\nseats 1 0 - serial:{_SERIAL}@{call.instance_key}"
    return tuple(
        Limit(kind, int(most), int(period), digest, name)
        for kind, most, period, digest, name in _LINE.findall(lines)
    )


def terms_of_tools() -> dict[str, ClaimTerms]:
    """Return the terms on which the calls of each tool are claimed."""
    tools = {**BUNDLE.all_tools(), _ASKING.name: _ASKING}
    return {
        name: ClaimTerms(
            idempotent=bool(bound.export.idempotent),
            max_attempts=bound.export.max_attempts or 3,
            limits=(REGISTRY.limits("coder", name) or Limits()).terms,
        )
        for name, bound in tools.items()
    }


def terms_on_reserve(tool: str, terms: ClaimTerms, *, asks_limits: bool) -> ClaimTerms | None:
    """Return the terms on which calls are claimed as they are reserved, ``None`` if none is.

    A worker that does not ask limits then claims no call with limits; each asks for itself.
    """
    limits = REGISTRY.limits("coder", tool)
    if limits is None or limits.is_empty:
        return terms
    return terms if asks_limits else None


class Writer:
    """Runs scripts in order, as a PipelinedWriter does: late or twice when Redis is away for a while."""

    def __init__(self, redis: Redis, is_faulty: Callable[[float], bool]) -> None:
        self._redis = redis
        self._is_faulty = is_faulty
        self.unsent: deque[tuple[ScriptCall[Any], Callable[[Any], object]]] = deque()
        self.is_dead = False

    def send(self, script_call: ScriptCall[Any], receiver: Callable[[Any], object]) -> bool:
        self.unsent.append((script_call, receiver))
        if self._is_faulty(0.1):
            return False
        self.flush()
        return True

    def put_off(self, script_call: ScriptCall[Any], receiver: Callable[[Any], object]) -> None:
        self.unsent.append((script_call, receiver))

    def ask(self, script_call: ScriptCall[Any]) -> Any:
        self.flush()
        return self._run(script_call)

    def flush(self) -> None:
        """Send what has waited for Redis."""
        while self.unsent and not self.is_dead:
            script_call, receiver = self.unsent.popleft()
            receiver(self._run(script_call))

    def _run(self, script_call: ScriptCall[Any]) -> Any:
        answer = script_call.run(self._redis)
        return script_call.run(self._redis) if self._is_faulty(0.1) else answer


class Limiters:
    """Makes the limiters of worker processes. Each is a copy: a new one reads its scripts again."""

    def __init__(self, ledger: Ledger) -> None:
        nothing: Any = None
        self._first = CallLimiter(ledger, nothing, lambda _: REGISTRY)

    def make(self, writer: Writer) -> CallLimiter:
        """Make the limiter of one worker process."""
        limiter: Any = copy(self._first)
        limiter.writer = writer
        made: CallLimiter = limiter
        return made
