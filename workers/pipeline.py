"""The onion: middlewares around a core, as one pure function (003 §6.1)."""

import inspect
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

from goondan_tasks.errors import GoondanError, MiddlewareError
from goondan_tasks.extension_api import Middleware, Onion

Context = TypeVar("Context", bound=Onion[Any])

Core = Callable[[Context], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Layer:
    """A middleware, and what errors call it, such as ``logging.timed``."""

    name: str
    middleware: Middleware


def compose(layers: Sequence[Layer], core: Core[Context]) -> Core[Context]:
    """Wrap ``core`` in ``layers``, the first one outermost; all of them share the context's attributes.

    What a middleware raises becomes a MiddlewareError that names it. What comes from further inside passes
    through it as it is, and so does an error with a code of its own. One that returns nothing passes on what
    its ``next()`` has returned.
    """
    wrapped = core
    for layer in reversed(layers):
        wrapped = _around(layer, wrapped)
    return wrapped


def _around(layer: Layer, inner: Core[Context]) -> Core[Context]:
    async def call(context: Context) -> Any:
        passage = _Passage(layer.name)

        async def proceed() -> Any:
            passage.enter()
            with _Inside(passage):
                passage.value = await inner(context)
            return passage.value

        with _Outside(passage):
            value = layer.middleware(context.layer(proceed))
            if inspect.isawaitable(value):
                value = await value
            return passage.result() if value is None else value

    return call


_NOTHING: Any = object()


class _Passage:
    """The one way from a middleware to what is inside of it."""

    __slots__ = ("error", "is_taken", "name", "value")

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_taken = False
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
        if error is self._passage.error or isinstance(error, GoondanError):
            return
        if isinstance(error, Exception):
            said = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
            raise MiddlewareError(f"Middleware {self._passage.name} raised {said}") from error
