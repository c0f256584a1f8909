"""What a pending call is completed with, and the result it comes to."""

from dataclasses import dataclass
from typing import Any, Self

from broker_config import serializer
from goondan_tasks.calls import Run, with_meta
from goondan_tasks.errors import ToolOutputError
from goondan_tasks.messages import ToolCallError, ToolCallResult, epoch_milliseconds, iso_time


@dataclass(frozen=True, slots=True)
class Outcome:
    """An output, or an error."""

    output: Any = None
    error: ToolCallError | None = None

    def to_json(self) -> bytes:
        """Write it as the ledger keeps it.

        Raises:
            NotJsonError: the output has no JSON form.
        """
        if self.error is not None:
            return serializer.encode({"error": self.error.to_wire()})
        return serializer.encode({"output": self.output})

    @classmethod
    def of(cls, completion: bytes) -> Self:
        """Read what ``resolve.lua`` has kept: a token, and the outcome.

        A damaged one is an error: it must not stand in the way of the call's end, nor of others.
        """
        try:
            wire = serializer.decode(completion.partition(b" ")[2])
            error = wire.get("error")
            return cls(wire.get("output"), None if error is None else ToolCallError.from_wire(error))
        except (ValueError, AttributeError) as damage:
            message = f"What the call was completed with cannot be read: {damage}"
            lost = ToolOutputError(message[:500])
            name = type(lost).__name__
            return cls(error=ToolCallError(code=lost.code, name=name, message=lost.message))


def completed(run: Run, interim: ToolCallResult | None, outcome: Outcome) -> ToolCallResult:
    """Return the final result of a pending call; the interim one tells who has begun it, and when."""
    result = run.ok(None, None) if interim is None else interim
    now, started_at = run.clock(), result.meta.started_at
    final = result.model_copy(
        update={
            "status": "ok" if outcome.error is None else "error",
            "output": outcome.output,
            "error": outcome.error,
        }
    )
    return with_meta(
        final,
        finished_at=iso_time(now),
        duration_ms=None if started_at is None else round(now - epoch_milliseconds(started_at), 3),
        output_file=None,
        expires_at=None,
        awaits=None,
    )
