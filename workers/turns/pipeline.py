"""The onion: middlewares around a core, as one pure function (003 §6.1)."""

import inspect
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from goondan_tasks.errors import GoondanError, MiddlewareError
from goondan_tasks.extension_api import Middleware, Onion
from workers.concurrency.beside_loop import RunOnThread, beside_loop, is_on_loop
from workers.concurrency.event_loop import move_to_loop
from workers.concurrency.threads import on_new_thread
from workers.handlers import is_async_handler

Context = TypeVar("Context", bound=Onion[Any])

Core = Callable[[Context], Awaitable[Any]]

#: makes of a middleware's answer what its neighbour further out gets from ``next()``; may raise
Shape = Callable[[Any], Any]


def _as_it_is(answer: Any) -> Any:
    return answer


@dataclass(frozen=True, slots=True)
class Layer:
    """A middleware, and what errors call it, such as ``logging.timed``."""

    name: str
    middleware: Middleware
    is_async: bool = field(init=False)

    def __post_init__(self) -> None:
        """Look at the function once."""
        object.__setattr__(self, "is_async", is_async_handler(self.middleware))


def compose(
    layers: Sequence[Layer],
    core: Core[Context],
    *,
    on_thread: RunOnThread = on_new_thread,
    shape: Shape = _as_it_is,
) -> Core[Context]:
    """Wrap ``core`` in ``layers``, the first one outermost; all of them share the context's attributes.

    What a middleware raises becomes a MiddlewareError that names it. What comes from further inside passes
    through it as it is, and so does an error with a code of its own. One that returns nothing passes on what
    its ``next()`` has returned.

    It may be called on a thread: as soon as a middleware awaits anything but its ``next()`` it goes on on the
    event loop. From there plain middlewares, which may block, are called with ``on_thread``.
    """
    wrapped = core
    for layer in reversed(layers):
        wrapped = _around(layer, wrapped, on_thread, shape=shape)
    return wrapped


def _around(layer: Layer, inner: Core[Context], on_thread: RunOnThread, *, shape: Shape) -> Core[Context]:
    async def call(context: Context) -> Any:
        passage = _Passage(layer.name)

        async def proceed() -> Any:
            passage.enter()
            with _Inside(passage):
                passage.value = await inner(context)
            return passage.value

        def begin() -> Coroutine[Any, Any, Any]:
            passage.way = proceed()
            return passage.way

        with _Outside(passage):
            ahead = context.layer(begin)
            if layer.is_async or not is_on_loop():
                value = layer.middleware(ahead)
            else:
                value = await beside_loop(partial(layer.middleware, ahead), on_thread)
            while inspect.isawaitable(value):  # an async one that forgot to await next() means its result
                if value is not passage.way:
                    await move_to_loop()
                value = await value
            return shape(passage.result() if value is None else value)

    return call


def blame(name: str, error: BaseException | None) -> None:
    """Raise what names the middleware in what it has raised, unless that says itself what is wrong.

    Raises:
        MiddlewareError: ``error`` has no code of its own, and nobody cancels.
    """
    if isinstance(error, Exception | SystemExit) and not isinstance(error, GoondanError):
        said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        raise MiddlewareError(f"Middleware {name} raised {said}") from error


_NOTHING: Any = object()


class _Passage:
    """The one way from a middleware to what is inside of it."""

    __slots__ = ("error", "is_taken", "name", "value", "way")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_taken = False
        #: what next() returned to the middleware, and it may have returned as its own answer
        self.way: Coroutine[Any, Any, Any] | None = None
        #: what came out of it
        self.value = _NOTHING
        self.error: BaseException | None = None

    def enter(self) -> None:
        """Go in; a second time is refused, so that no handler runs twice."""
        if self.is_taken:
            raise MiddlewareError(f"Middleware {self.name} called next() a second time.")
        self.is_taken = True

    def result(self) -> Any:
        """Return what a middleware that has returned nothing passes on."""
        if self.value is _NOTHING:
            raise MiddlewareError(f"Middleware {self.name} returned nothing, without a result of next().")
        return self.value


class _Inside:
    """Notes what is raised behind ``next()``."""

    __slots__ = ("_passage",)

    def __init__(self, passage: _Passage) -> None:
        self._passage = passage

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._passage.error = error


class _Outside:
    """Names the middleware in what it raises."""

    __slots__ = ("_passage",)

    def __init__(self, passage: _Passage) -> None:
        self._passage = passage

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not self._passage.error:
            blame(self._passage.name, error)
