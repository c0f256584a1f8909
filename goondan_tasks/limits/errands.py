"""What the scripts of limits are given, and what they answer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Self

from broker_config.keys import Keys
from broker_config.queues import bell, call_queue
from broker_config.scripts import Errand, Script
from broker_config.settings import Settings
from goondan_tasks.ledger.errands import sweep_seconds
from goondan_tasks.messages import ToolCall


@dataclass(frozen=True, slots=True)
class Answer:
    """What a script said (see ``gates.lua`` and ``admit.lua``)."""

    word: str
    #: the call or the gate that the word is about
    about: str
    #: ms until somebody must look at the lines; ``None`` if nobody waits
    look_in: int | None
    #: Redis time in ms
    now: int
    #: ids and JSON of the calls that were let in and need a message
    unsent: Mapping[str, bytes]

    @classmethod
    def of(cls, answer: Sequence[Any]) -> Self:
        """Read a script's answer."""
        word, about, look_in, now, unsent = answer
        calls = {call_id.decode(): call for call_id, call in zip(unsent[::2], unsent[1::2], strict=True)}
        return cls(word.decode(), about.decode(), None if look_in < 0 else look_in, now, calls)


class LimitErrands:
    """Makes the errands of limits."""

    def __init__(self, settings: Settings) -> None:
        keys = self._keys = Keys(settings.namespace)
        shared = _read("gates")
        self._admit, self._leave, self._look = (
            Script.of(shared + _read(name)) for name in ("admit", "leave", "look")
        )
        self._shared = [
            *(family("") for family in (keys.call, keys.limit, keys.holders, keys.line, keys.waiter)),
            keys.waiting(""),
            round(settings.lease_seconds * 1000),
            round(sweep_seconds(settings) * 1000),
        ]
        self._ttl = round(settings.result_ttl_seconds + settings.queue_timeout_seconds)
        self._call_timeout = settings.call_timeout_seconds

    def admit(
        self, call_id: str, call: ToolCall, gates: str, *, message: bytes, run_seconds: float
    ) -> Errand:
        """Ask whether a call may run now, for ``run_seconds`` at most (``admit.lua``)."""
        queue = call_queue(call.agent_name)
        # the space marks a message that was let in, see gates.lua
        turn = b" " + message if message else b""
        arguments = (call_id, call.agent_name, queue, bell(queue), gates, turn)
        return self._errand(self._admit, *arguments, run_seconds=run_seconds)

    def leave(self, call_id: str, gates: str, admitted_at: int, *, pauses: bool = False) -> Errand:
        """Give back what a call holds (``leave.lua``), also one that ``pauses`` before its next run."""
        return self._errand(self._leave, call_id, gates, admitted_at, int(pauses))

    def look(self) -> Errand:
        """Let in the calls whose time has come (``look.lua``)."""
        return self._errand(self._look)

    def _errand(self, script: Script, *arguments: Any, run_seconds: float = 0) -> Errand:
        # what a call holds must outlive it, or the limit would be forgotten
        ttl = self._ttl + round(max(run_seconds, self._call_timeout))
        return Errand(script, [self._keys.limits], [*self._shared, ttl, *arguments])


def _read(name: str) -> str:
    return (files("goondan_tasks.limits") / "scripts" / f"{name}.lua").read_text("utf-8")
