"""Which gates a call must pass, from what its Tool and its export declare (DESIGN §3).

A limit that stands on a Tool is shared by the exports that declare none of their own; one that stands
on an export is that export's alone. It counts calls of every agent that uses the Tool, on every worker.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from goondan_tasks.bundle import BoundTool
from goondan_tasks.bundle.fields import RATE_PERIODS_MS
from goondan_tasks.messages import ToolCall

#: stands for a digest where equal keys are enough
_ANY = "-"


@dataclass(frozen=True, slots=True)
class Limits:
    """What one export declares, resolved."""

    #: the gates of ``maxConcurrency`` and ``rateLimit``, lines of ``gates.lua``
    concurrency: str | None = None
    rate: str | None = None
    #: the Tool or export of which one call runs at a time per instance
    serial_scope: str | None = None
    key_arguments: tuple[str, ...] = ()
    #: the export's own limit of a run, in seconds
    timeout_seconds: float = 0

    @property
    def is_empty(self) -> bool:
        """Whether nothing limits the export's calls but what they say themselves."""
        return not (self.concurrency or self.rate or self.serial_scope or self.key_arguments)

    def run_seconds(self, call: ToolCall) -> float:
        """Return how long the call's run may take; 0 if neither it nor its export says."""
        return max(self.timeout_seconds, call.timeout_seconds or 0)

    @classmethod
    def of(cls, bound: BoundTool) -> "Limits":
        """Read what a bound tool declares."""
        export = bound.export
        most, rate = export.max_concurrency, export.rate_limit
        return cls(
            concurrency=None
            if most is None
            else _seats(most, f"concurrency:{_scope(bound, 'max_concurrency')}"),
            rate=None if rate is None else _rate(rate, f"rate:{_scope(bound, 'rate_limit')}"),
            serial_scope=_scope(bound, "serial") if export.serial else None,
            key_arguments=export.idempotency_key or (),
            timeout_seconds=export.timeout_seconds or 0,
        )

    def gates(self, call: ToolCall) -> str:
        """Return a call's gates in the order in which it waits at them: a text for ``gates.lua``."""
        gates = (self._key(call), self._serial(call), self.concurrency, self.rate)
        return "\n".join(gate for gate in gates if gate)

    def _serial(self, call: ToolCall) -> str | None:
        if self.serial_scope is None:
            return None
        return _seats(1, f"serial:{self.serial_scope}@{quote(call.instance_key, safe='')}")

    def _key(self, call: ToolCall) -> str | None:
        """Return the gate of the call's idempotencyKey; one that the caller gives goes before the export's.

        It holds for calls of one agent and tool, whatever their instance.
        """
        digest = _ANY
        key: list[Any] = []
        if call.idempotency_key:
            digest, key = _digest(call.args), ["given", call.idempotency_key]
        elif self.key_arguments and isinstance(call.args, dict):
            key = ["declared", [[name, call.args.get(name)] for name in self.key_arguments]]
        if not key:
            return None
        return f"key 1 0 {digest} key:{_digest([call.agent_name, call.tool_name, key])}"


def _scope(bound: BoundTool, field: str) -> str:
    """Return whose limit it is: the export's own name if it declares the field itself, else the Tool's."""
    declared = (export for export in bound.tool.spec.exports if export.name == bound.export.name)
    is_own = any(getattr(export, field) is not None for export in declared)
    if bound.is_v1:  # the name of an older export does not say its Tool
        return f"{bound.tool.name}/{bound.export.name if is_own else '*'}"
    return bound.name if is_own else bound.tool.name


def _seats(most: int, name: str) -> str:
    return f"seats {most} 0 {_ANY} {name}"


def _rate(rate: str, name: str) -> str:
    count, _, unit = rate.partition("/")
    return f"rate {count} {RATE_PERIODS_MS[unit]} {_ANY} {name}"


def _digest(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:32]
