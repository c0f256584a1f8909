"""Scripts under a virtual clock, and with planted faults."""

import inspect
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, reduce
from importlib import import_module
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from broker_config import scripts
from broker_config.scripts import Script, ScriptCall
from tests.simulation.clock import patch_clocks
from tests.simulation.refusals import exchange_or_refuse

#: holds the seconds and the microseconds of the virtual clock, as ``TIME`` answers
CLOCK = "sim:clock"
#: the texts of the scripts that were made in the current block
_made: dict[str, None] = {}
_TIME = re.compile(r"redis\.call\('TIME'\)")
#: batches so small that the few calls of a walk fill them
_SMALLER = {"local MOST_AT_ONCE = 100\n": "local MOST_AT_ONCE = 3\n"}
_VIRTUAL = f"redis.call('HMGET', '{CLOCK}', 's', 'us')"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A fault to plant: every script that holds ``old`` gets ``new`` in its place.

    With ``where`` it is the source of that function, as ``module:Class.method``.
    """

    name: str
    old: str
    new: str
    where: str = ""


#: what is done with each script call and its answer
Watcher = Callable[[ScriptCall[Any], Any], None]
_watchers: list[Watcher] = []


def watch_scripts(watcher: Watcher) -> None:
    """From now on, show each script call that is simulated, and its answer, to ``watcher`` alone."""
    _watchers[:] = [watcher]


def show_script(script_call: ScriptCall[Any], answer: Any) -> None:
    """Show a script call that was run, and its answer, to the watcher."""
    for watcher in _watchers:
        watcher(script_call, answer)


@contextmanager
def simulated_scripts(*mutations: Mutation) -> Iterator[None]:
    """Let every script that is made in a ``with`` block read the virtual clock and hold the mutations.

    Raises:
        AssertionError: a mutation fits no script that was made.
    """
    of = Script.of.__func__  # type: ignore[attr-defined]
    exchange = scripts._exchange_with_retry
    planted: set[str] = set()
    _made.clear()

    def changed(cls: type[Script], text: str) -> Any:
        for mutation in mutations:
            if not mutation.where and mutation.old in text:
                planted.add(mutation.name)
                text = text.replace(mutation.old, mutation.new)
        for size, smaller in _SMALLER.items():
            text = text.replace(size, smaller)
        simulated = _TIME.sub(_VIRTUAL, text)
        _made[simulated] = None
        return of(cls, simulated)

    def watched(
        connection: Any,
        script_calls: Sequence[ScriptCall[Any]],
        meanwhile: Callable[[], object] | None = None,
        *,
        returns_faults: bool = False,
    ) -> list[Any]:
        send = partial(exchange, returns_faults=returns_faults)
        answers = exchange_or_refuse(connection, script_calls, send)
        if meanwhile is not None:
            meanwhile()
        for script_call, answer in zip(script_calls, answers, strict=True):
            if not isinstance(answer, RedisError):
                show_script(script_call, answer)
        return answers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scripts, "_exchange_with_retry", watched)
        for mutation in filter(lambda one: one.where, mutations):
            _plant(patch, mutation)
            planted.add(mutation.name)
        patch_clocks(patch)
        patch.setattr(Script, "of", classmethod(changed))
        yield
    _watchers.clear()
    missing = {mutation.name for mutation in mutations} - planted
    assert not missing, f"no script holds the text of {missing}"


def load_scripts(redis: Redis) -> None:
    """Load all scripts that were made: a client that has to send a text makes a trip more than another."""
    with redis.pipeline(transaction=False) as pipe:
        for text in _made:
            pipe.script_load(text)
        pipe.execute()


def require_text(mutation: Mutation, texts: Sequence[str]) -> None:
    """Require that a fault can still be planted in one of these scripts, or in its function.

    Raises:
        AssertionError: the code has changed since.
    """
    if mutation.where:
        with pytest.MonkeyPatch.context() as patch:
            _plant(patch, mutation)
    else:
        assert any(mutation.old in text for text in texts), f"no script holds the text of {mutation.name!r}"


def _plant(patch: pytest.MonkeyPatch, mutation: Mutation) -> None:
    """Replace a function by one with the fault."""
    module, _, path = mutation.where.partition(":")
    *outer, name = path.split(".")
    owner: Any = reduce(getattr, outer, import_module(module))
    function = inspect.getattr_static(owner, name)
    function = getattr(function, "fget", None) or getattr(function, "__func__", function)
    text = textwrap.dedent(inspect.getsource(function))
    assert mutation.old in text, f"{mutation.where} does not hold the text of {mutation.name}"
    made: dict[str, Any] = {}
    names = inspect.unwrap(function).__globals__
    code = compile(text.replace(mutation.old, mutation.new), mutation.where, "exec")
    exec(code, names, made)  # noqa: S102 - our own source, with a planted fault
    patch.setattr(owner, name, made[name])
