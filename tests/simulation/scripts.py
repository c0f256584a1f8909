"""Scripts under a virtual clock, and with planted faults."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from broker_config import scripts
from broker_config.scripts import Script, ScriptCall

#: holds the seconds and the microseconds of the virtual clock, as ``TIME`` answers
CLOCK = "sim:clock"
_TIME = re.compile(r"redis\.call\('TIME'\)")
_VIRTUAL = f"redis.call('HMGET', '{CLOCK}', 's', 'us')"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fault to plant: every script that holds ``old`` gets ``new`` in its place."""

    name: str
    old: str
    new: str


#: what is done with each script call and its answer
Watcher = Callable[[ScriptCall[Any], Any], None]
_watchers: list[Watcher] = []


def watch_scripts(watcher: Watcher) -> None:
    """From now on, show each script call that is simulated, and its answer, to ``watcher`` alone."""
    _watchers[:] = [watcher]


@contextmanager
def simulated_scripts(*mutations: Mutation) -> Iterator[None]:
    """Let every script that is made in a ``with`` block read the virtual clock and hold the mutations.

    Raises:
        AssertionError: a mutation fits no script that was made.
    """
    of = Script.of.__func__  # type: ignore[attr-defined]
    exchange = scripts._exchange_with_retry
    planted: set[str] = set()

    def changed(cls: type[Script], text: str) -> Any:
        for mutation in mutations:
            if mutation.old in text:
                planted.add(mutation.name)
                text = text.replace(mutation.old, mutation.new)
        return of(cls, _TIME.sub(_VIRTUAL, text))

    def watched(connection: Any, script_calls: Sequence[ScriptCall[Any]]) -> list[Any]:
        answers = exchange(connection, script_calls)
        for watcher in _watchers:
            for script_call, answer in zip(script_calls, answers, strict=True):
                watcher(script_call, answer)
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "_exchange_with_retry", watched)
        patch.setattr(Script, "of", classmethod(changed))
        yield
    _watchers.clear()
    missing = {mutation.name for mutation in mutations} - planted
    assert not missing, f"no script holds the text of {missing}"
