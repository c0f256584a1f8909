"""The onion of ordered middlewares around a core (003 §6.1), and one that is held open at its core."""

import asyncio
import inspect
from bisect import insort
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine, Generator, Hashable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from functools import partial, wraps
from operator import itemgetter
from time import monotonic
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar

from goondan_tasks.authoring.entry import takes
from goondan_tasks.authoring.extension_api import Middleware, Onion, StepContext
from goondan_tasks.contract.errors import GoondanError, MiddlewareError
from goondan_tasks.contract.failure import named_error
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.contract.on_error import OnError
from workers.cancellation import Cancellation
from workers.concurrency.event_loop import (
    EventLoopThread,
    RunOnThread,
    beside_loop,
    drive,
    is_on_loop,
    move_to_loop,
)
from workers.concurrency.threads import on_new_thread
from workers.forks import end_fork
from workers.handlers import is_async_handler
from workers.outcome import FunctionOutcome

Owner = TypeVar("Owner")
Parameters = ParamSpec("Parameters")
T = TypeVar("T")
Context = TypeVar("Context", bound=Onion[Any])

Core = Callable[[Context], Awaitable[Any]]

#: wraps the chain of a Step
AroundStep = Callable[[Core[StepContext]], Core[StepContext]]

#: converts the answer of a middleware for the layer outside of it; may raise
Shape = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class MiddlewareServices:
    """What the middlewares around one tool call need of its run."""

    #: once set, no further function is called
    cancellation: Cancellation
    on_thread: RunOnThread
    #: makes a result from the return value of a layer
    shape: Shape
    #: makes a result from an exception
    failed: Callable[[BaseException], ToolCallResult]


def _unchanged(answer: Any) -> Any:
    return answer


@dataclass(frozen=True, slots=True)
class Layer:
    """A middleware and its name in errors, such as ``logging.timed``."""

    name: str
    middleware: Middleware
    is_async: bool = field(init=False)
    #: see :func:`workers.handlers.awaits_next_alone`
    awaits_next_alone: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_async", is_async_handler(self.middleware))
        object.__setattr__(self, "awaits_next_alone", hasattr(self.middleware, "awaits_next_alone"))

    @property
    def needs_loop(self) -> bool:
        """Whether it is awaited on the event loop."""
        return self.is_async and not self.awaits_next_alone


def compose(
    layers: Sequence[Layer],
    core: Core[Context],
    *,
    on_thread: RunOnThread = on_new_thread,
    shape: Shape = _unchanged,
) -> Core[Context]:
    """Wrap ``core`` in ``layers``, the first one outermost; all of them share the context's attributes.

    An exception of a middleware becomes a MiddlewareError that names it. Exceptions from further inside, and
    errors with a code of their own, pass unchanged. If a middleware returns nothing, the result of its
    ``next()`` counts as its answer.

    The chain may begin on a thread; it moves to the event loop as soon as a middleware awaits anything,
    unless it returns its ``next()``, or is known to await that alone. From there, plain middlewares, which
    may block, are called with ``on_thread``.
    """
    wrapped = core
    for layer in reversed(layers):
        wrapped = _around(layer, wrapped, on_thread, shape=shape)
    return wrapped


def _around(layer: Layer, inner: Core[Context], on_thread: RunOnThread, *, shape: Shape) -> Core[Context]:
    async def called(own: Context, inside: _Inside) -> Any:
        on_loop = is_on_loop()
        if layer.is_async or not on_loop:
            value = layer.middleware(own)
        else:
            value = await beside_loop(partial(layer.middleware, own), on_thread)
        if inside.pending is not None and value is inside.pending:
            return await inside.pending  # what it returns is no longer awaitable
        while inspect.isawaitable(value):  # an async one may return next() without awaiting it
            if not (on_loop or value is inside.pending or layer.awaits_next_alone):
                await move_to_loop()
            value = await value
        return value

    async def call(context: Context) -> Any:
        inside = _Inside(layer.name)

        async def proceed() -> Any:
            inside.enter()
            with OnError(inside.note):
                inside.value = await inner(context)
            return inside.value

        def begin() -> Coroutine[Any, Any, Any]:
            inside.pending = proceed()
            return inside.pending

        with OnError(inside.blame):
            try:
                value = await called(context.layer(begin), inside)
            finally:
                end_fork()
            return shape(inside.result() if value is None else value)

    return call


def blame(name: str, error: BaseException) -> None:
    """Raise a MiddlewareError that names the middleware, unless ``error`` has its own code or cancels."""
    if isinstance(error, Exception | SystemExit) and not isinstance(error, GoondanError):
        raise MiddlewareError(f"Middleware {name} raised {named_error(error)}") from error


_NOTHING: Any = object()


class _Inside:
    """The layers inside of a middleware, as it reaches them with ``next()``, once."""

    __slots__ = ("_error", "_is_entered", "_name", "pending", "value")

    def __init__(self, name: str) -> None:
        self._name = name
        self._is_entered = False
        #: what next() returned; a middleware may return it as its own answer
        self.pending: Coroutine[Any, Any, Any] | None = None
        self.value = _NOTHING
        self._error: BaseException | None = None

    def enter(self) -> None:
        """Refuse a second ``next()``, so that no handler runs twice."""
        if self._is_entered:
            raise MiddlewareError(f"Middleware {self._name} called next() a second time.")
        self._is_entered = True

    def note(self, error: BaseException) -> None:
        """Remember an exception from further inside."""
        self._error = error

    def blame(self, error: BaseException) -> None:
        """Blame the middleware for an error that does not come from further inside."""
        if error is not self._error:
            blame(self._name, error)

    def result(self) -> Any:
        """Return the answer of a middleware that has returned nothing."""
        if self.value is _NOTHING:
            raise MiddlewareError(f"Middleware {self._name} returned nothing, without a result of next().")
        return self.value


#: the time limit of middlewares on each side of ``next()``
MOST_SECONDS = 60.0


#: the result or the error of the core
CoreOutcome = FunctionOutcome[Any]


class _Pause:
    def __await__(self) -> Generator[None, CoreOutcome, CoreOutcome]:
        return (yield)


class HeldOnion:
    """One pass through an onion, held open at its core while the caller does the core's work.

    The middlewares run up to their ``next()`` first, and run the rest at the end. In plain code, plain
    middlewares run on the caller's thread; with an ``async`` one, all of them run on the event loop.
    """

    def __init__(self, event_loop: EventLoopThread) -> None:
        self._event_loop = event_loop
        #: the coroutine if it is driven on the caller's thread
        self._chain: Coroutine[Any, Any, Any] | None = None
        self._at_core: Future[None] = Future()
        self._outcome: Future[CoreOutcome] = Future()
        #: its result if it runs on the event loop
        self._ended: Future[Any] = Future()
        #: the ``time.monotonic()`` at which the core was reached
        self._reached_at = 0.0
        #: limits the middlewares while the caller waits for them
        self._timer: asyncio.Timeout | None = None
        #: the number of waits that do not count towards the limit
        self._untimed = 0

    async def pause(self) -> Any:
        """Wait for the outcome of the core; the core calls this."""
        self._reached_at = monotonic()
        self._at_core.set_result(None)
        if self._chain is not None:
            return (await _Pause()).get()
        if self._outcome.done():
            return self._outcome.result().get()
        # a middleware may stop waiting for next(), which must not cancel the outcome
        return (await asyncio.shield(asyncio.wrap_future(self._outcome))).get()

    def expect(self, outcome: CoreOutcome) -> None:
        """Give the core its outcome beforehand: the event loop then runs the middlewares without a stop."""
        self._outcome.set_result(outcome)

    async def enter(self, chain: Coroutine[Any, Any, Any], *, is_async: bool) -> None:
        """Run the middlewares up to the core; in plain code this blocks.

        Raises:
            MiddlewareError: they do not reach the core, or take too long.
            Exception: a middleware raised it.
        """
        if not is_async and self._enter_here(chain):
            return
        self._ended = self._event_loop.submit(chain)
        ends = [self._ended] if self._outcome.done() else [self._at_core, self._ended]
        await self._first_of(*ends, is_async=is_async)
        self._require_core()

    def _enter_here(self, chain: Coroutine[Any, Any, Any]) -> bool:
        """Run up to the core on this thread; return whether that was possible without the event loop."""
        self._chain = chain
        try:
            chain.send(None)
        except StopIteration as stop:
            raise _not_opened() from stop
        if not self._at_core.done():
            self._chain = None
        return self._chain is not None

    async def leave(self, outcome: CoreOutcome, *, is_async: bool) -> Any:
        """Run the rest of the middlewares with the core's outcome, and return their answer.

        Raises as :meth:`enter`, and the core's error unless a middleware catches it.
        """
        if self._chain is None:
            left = MOST_SECONDS
            if self._outcome.done():  # they have gone on since then
                left -= monotonic() - self._reached_at
            else:
                self._outcome.set_result(outcome)
            await self._first_of(self._ended, is_async=is_async, seconds=left)
            return self._result()
        try:
            self._chain.send(outcome)
        except StopIteration as stop:
            return stop.value
        self.break_off()
        raise MiddlewareError("A plain middleware awaits something after next(); make it `async def`.")

    def break_off(self) -> None:
        """Let the middlewares clean up, and drop their answer."""
        if self._chain is None:
            self._ended.cancel()
        else:
            self._chain.close()

    async def untimed(self, wait: Callable[..., Awaitable[T]], *args: Any, **fields: Any) -> T:
        """Wait for something with its own limit; the middlewares' time starts over afterwards."""
        self._set_timer(+1)
        try:
            return await wait(*args, **fields)
        finally:
            self._set_timer(-1)

    def _set_timer(self, change: int) -> None:
        self._untimed += change
        if self._timer is not None:
            end = asyncio.get_running_loop().time() + MOST_SECONDS
            self._timer.reschedule(None if self._untimed else end)

    async def _first_of(self, *futures: "Future[Any]", is_async: bool, seconds: float | None = None) -> None:
        """Wait for one of ``futures`` within the limit; break off if this is cancelled."""
        limit = MOST_SECONDS if seconds is None else seconds
        if not is_async:
            wait(futures, timeout=max(0.0, limit), return_when=FIRST_COMPLETED)
            return
        loop, is_done = asyncio.get_running_loop(), asyncio.Event()
        for future in futures:
            future.add_done_callback(lambda _: loop.call_soon_threadsafe(is_done.set))
        try:
            async with asyncio.timeout(limit) as self._timer:
                await is_done.wait()
        except TimeoutError:
            return  # the caller checks them
        except asyncio.CancelledError:
            self.break_off()
            raise
        finally:
            self._timer = None

    def _require_core(self) -> None:
        if not self._at_core.done():
            self._result()
            raise _not_opened()

    def _result(self) -> Any:
        if not self._ended.done():
            self.break_off()
            raise MiddlewareError(f"The step middlewares took longer than {MOST_SECONDS:g} s.")
        return self._ended.result()


def _not_opened() -> MiddlewareError:
    return MiddlewareError("A step middleware did not call next(), so the Step has not opened.")


Place = TypeVar("Place", bound=Hashable)
Function = TypeVar("Function")


class Ranks(Generic[Place, Function]):
    """The functions at each place of each agent's pipelines, by priority and registration (DESIGN §6)."""

    def __init__(self) -> None:
        self._ranked: defaultdict[tuple[str, Place], list[tuple[int, Function]]] = defaultdict(list)
        #: the tuples are replaced, never changed, so that reading needs no lock
        self._functions: dict[tuple[str, Place], tuple[Function, ...]] = {}
        #: grows with every change
        self.version = 0

    def of(self, agent: str, place: Place) -> tuple[Function, ...]:
        """Return the functions at a place, the lowest priority first."""
        return self._functions.get((agent, place), ())

    def add(self, agent: str, place: Place, function: Function, priority: int) -> None:
        """Add a function after those of the same priority, which must be an integer (TypeError)."""
        if type(priority) is not int:
            raise TypeError(f"a priority is a whole number, not {priority!r}")
        ranked = self._ranked[agent, place]
        insort(ranked, (priority, function), key=itemgetter(0))
        self._functions[agent, place] = tuple(function for _, function in ranked)
        self.version += 1

    def clear(self, agent: str, place: Place) -> None:
        self._ranked.pop((agent, place), None)
        self._functions.pop((agent, place), None)
        self.version += 1


def require_function(function: Any, count: int, how: str) -> None:
    """Raise a TypeError unless ``function`` can be called with ``count`` arguments."""
    if not callable(function):
        raise TypeError(f"a middleware is a function, not {type(function).__name__}")
    if not takes(function, count):
        raise TypeError(f"a middleware is called with {how}")


def function_name(extension: str, function: Any, given: str | None = None) -> str:
    """Return the name of an extension's function in errors."""
    return f"{extension}.{given or getattr(function, '__name__', type(function).__name__)}"


def blocking(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that does not suspend, and return its result.

    Raises:
        RuntimeError: it suspends.
    """
    ended = drive(coroutine)
    if ended is None:
        coroutine.close()
        raise RuntimeError("plain code cannot wait for something on the event loop")
    return ended[0]


def in_plain_code(
    method: Callable[Concatenate[Owner, Parameters], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Owner, Parameters], T]:
    """Return a coroutine method as a blocking one, so that the same code serves plain and async callers.

    The coroutine gets to know ``is_async``. If true, it runs blocking functions beside the event loop; if
    false, on the caller's own thread, so that it never suspends.
    """

    @wraps(method)
    def run(self: Owner, /, *args: Parameters.args, **fields: Parameters.kwargs) -> T:
        return blocking(method(self, *args, **fields))

    return run


async def may_block(function: Callable[[], T], *, is_async: bool) -> T:
    """Call a function that may block; in async code, on another thread."""
    return await beside_loop(function, on_new_thread) if is_async else function()
