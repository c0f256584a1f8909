"""The older version's chains: functions that change a context one after another (002 §5.1, §5.4)."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from goondan_tasks.errors import MiddlewareError
from workers.cancellation import Cancellation
from workers.concurrency.beside_loop import RunOnThread, beside_loop, is_on_loop
from workers.concurrency.event_loop import move_to_loop
from workers.concurrency.threads import on_new_thread
from workers.turns.pipeline import Layer, blame

Context = TypeVar("Context")


@dataclass(frozen=True, slots=True)
class Mutator(Layer):
    """A function of a context, and whose it is."""

    extension: str


#: takes note of what a mutator has left; may raise
Accept = Callable[[Any, Mutator], None]


def _as_it_is(context: Any, mutator: Mutator) -> None:
    pass


async def mutate(
    mutators: Sequence[Mutator],
    context: Context,
    *,
    accept: Accept = _as_it_is,
    cancellation: Cancellation | None = None,
    on_thread: RunOnThread = on_new_thread,
) -> Context:
    """Pass ``context`` through ``mutators`` and return what the last one has left.

    One that returns nothing passes on what it was given. What one raises ends the chain; and once the run's
    ``cancellation`` is set no further one is called.

    It may be called on a thread, and goes on on the event loop as soon as one is ``async``; from there plain
    ones, which may block, are called with ``on_thread``.

    Raises:
        MiddlewareError: one failed, or returned what is no such context; it is named.
        GoondanError: one raised it, or the run is cancelled.
    """
    for mutator in mutators:
        if cancellation is not None:
            cancellation.require_wanted()
        with _Blamed(mutator.name):
            value = await _called(mutator, context, on_thread)
            if value is not None and not isinstance(value, type(context)):
                raise MiddlewareError(
                    f"Middleware {mutator.name} returned no ctx, as a mutator does, but {value!r:.200}."
                )
            context = context if value is None else value
            accept(context, mutator)
    return context


async def _called(mutator: Mutator, context: Any, on_thread: RunOnThread) -> Any:
    if is_on_loop() and not mutator.is_async:
        value = await beside_loop(partial(mutator.middleware, context), on_thread)
    else:
        value = mutator.middleware(context)
    while inspect.isawaitable(value):
        await move_to_loop()
        value = await value
    return value


class _Blamed:
    """Names the mutator in what it raises."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        blame(self._name, error)
