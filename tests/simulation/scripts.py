"""Scripts under a virtual clock, and with planted faults."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from broker_config.scripts import Script

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


@contextmanager
def simulated_scripts(*mutations: Mutation) -> Iterator[None]:
    """Let every script that is made in a ``with`` block read the virtual clock and hold the mutations.

    Raises:
        AssertionError: a mutation fits no script that was made.
    """
    of = Script.of.__func__  # type: ignore[attr-defined]
    planted: set[str] = set()

    def changed(cls: type[Script], text: str) -> Any:
        for mutation in mutations:
            if mutation.old in text:
                planted.add(mutation.name)
                text = text.replace(mutation.old, mutation.new)
        return of(cls, _TIME.sub(_VIRTUAL, text))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Script, "of", classmethod(changed))
        yield
    missing = {mutation.name for mutation in mutations} - planted
    assert not missing, f"no script holds the text of {missing}"
