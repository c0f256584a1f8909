"""The slots of a worker bound its calls in progress; a call that waits for another agent holds none.

It gives its slot back while it waits, and takes one again, before all that has not begun, when it goes on.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from goondan_tasks.errors import LimitError
from workers.concurrency.threads import InOrder, Job


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """Something that is to be carried out; ``job`` begins it, as soon as there is a slot."""

    job: Job
    #: its message, with the claim that may have come with it
    request: Any
    #: its turn among the messages, if it has one: it ends, too, if the job does not begin
    turn: InOrder | None = None


class Wait(Enum):
    """What a call waits for without its slot."""

    #: another agent; or anything in plain code, which keeps its thread. Only so many may
    AGENT = auto()
    #: its own tools, on the event loop: while so many do, no further events are taken
    TOOLS = auto()
    #: all that its handler does, on the event loop
    HANDLER = auto()


class ReleasedSlot(Protocol):
    """The time in which a call waits for another agent."""

    def end(self, then: Job) -> None:
        """Call ``then``, on any thread, as soon as the call may go on."""

    def give_up(self) -> bool:
        """End with the call; return whether it has a slot to leave."""


class ReleaseSlot(Protocol):
    """Begins a released slot."""

    def __call__(self, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        """Release the slot of a call."""


class KeptSlot:
    """The released slot of a call whose pool cannot lend its slot."""

    def __init__(self, wait: Wait = Wait.AGENT) -> None:
        """Keep the slot in any case."""

    def end(self, then: Job) -> None:
        """Let it go on."""
        then()

    def give_up(self) -> bool:
        """Return true: there is a slot to leave."""
        return True


class Slots:
    """The slots, the calls that wait for one, and the calls that have lent theirs."""

    def __init__(
        self, limit: Callable[[], int], begin: Callable[[QueuedJob], None], on_free: Job = lambda: None
    ) -> None:
        self._on_free = on_free
        #: how many calls may wait without a slot, by what they wait for: see :class:`Wait`
        self.most_released = 0
        self._limit = limit
        self._begin = begin
        self._lock = threading.Lock()
        self.taken = 0
        #: events on their way through Celery, each of which may begin a Turn
        self._expected = 0
        self._released: Counter[Wait] = Counter()
        #: of the slots taken, those whose calls wait without giving them up
        self._idle = 0
        self._waiting: deque[QueuedJob] = deque()
        self._returning: deque[_Released] = deque()

    @property
    def backlog(self) -> int:
        """How many jobs have not begun."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """How many slots are neither taken nor waited for."""
        return self._limit() - self.taken - len(self._waiting) - len(self._returning)

    def expect(self, events: int) -> None:
        """Count events that are on their way through Celery, or with a negative number have come."""
        with self._lock:
            self._expected += events

    @property
    def takes_events(self) -> bool:
        """Whether another Turn may begin, since not too many wait for their tools, or are about to begin.

        Each call that waits for an agent makes room for one, which may be the Turn that it waits for.
        """
        waiting = self._released[Wait.TOOLS] - self._released[Wait.AGENT]
        return waiting + self._expected < self.most_released

    def take(self) -> bool:
        """Take a slot at once, to be left with :meth:`leave`; return whether there was one."""
        with self._lock:
            if self.taken >= self._limit() or self._waiting or self._returning:
                return False
            self.taken += 1
            return True

    def enter(self, queued: QueuedJob) -> None:
        """Begin, as soon as there is a slot."""
        with self._lock:
            if self.taken >= self._limit():
                self._waiting.append(queued)
                return
            self.taken += 1
        self._begin(queued)

    def leave(self, released_slot: ReleasedSlot | None) -> None:
        """End what is carried out; ``released slot`` is that of a call which has waited, or still does."""
        if released_slot is None or released_slot.give_up():
            self._free()

    def take_waiting(self) -> Sequence[QueuedJob]:
        """Remove and return the jobs that have not begun."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def release_slot(self, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        """Release the slot of a call, which goes to the next one.

        Beyond so many that wait for agents a call keeps its slot while it waits, but never the last one.

        Raises:
            LimitError: that would be so.
        """
        with self._lock:
            if wait is Wait.AGENT and self._released[wait] >= self.most_released:
                return self._keep()
            self._released[wait] += 1
        self._free()
        return _Released(self, wait)

    def _keep(self) -> "_IdleSlot":
        if self._idle + 1 >= self._limit():
            raise LimitError(
                f"{self._released[Wait.AGENT] + self._idle} calls of this worker wait for other agents "
                "already.",
                suggestion="Start more workers for the agent, ask with `async: true`, "
                "or raise GOONDAN_MAX_WAITING.",
            )
        self._idle += 1
        return _IdleSlot(self)

    def fill(self) -> None:
        """Give the added slots to waiting calls."""
        while self._pass_on(0):
            pass

    def _free(self) -> None:
        self._pass_on(1)

    def _pass_on(self, freed: int) -> bool:
        """Free so many slots and give one to the next waiting call, if any; return whether it was given."""
        lent, queued = None, None
        with self._lock:
            self.taken -= freed
            if self.taken < self._limit():
                if self._returning:
                    lent = self._returning.popleft()
                    lent.take_back()
                elif self._waiting:
                    queued = self._waiting.popleft()
                self.taken += lent is not None or queued is not None
        if lent is not None:
            lent.go_on()
        elif queued is not None:
            self._begin(queued)
        else:
            self._on_free()
        return lent is not None or queued is not None

    def come_back(self, lent: "_Released") -> None:
        """Give a call its slot back, as soon as there is one."""
        with self._lock:
            self._released[lent.wait] -= 1
            if lent.has_ended:
                pass  # it is not counted any more
            elif self.taken < self._limit():
                self.taken += 1
                lent.take_back()
            else:
                self._returning.append(lent)
                return
        lent.go_on()

    def give_up(self, lent: "_Released") -> bool:
        """End a call in any state; return whether it had a slot."""
        with self._lock:
            lent.has_ended = True
            if lent.has_slot:
                return True
            is_returning = lent in self._returning
            if is_returning:
                self._returning.remove(lent)
        if is_returning:
            lent.go_on()
        return False

    def stop_idling(self) -> None:
        """Note that a call that kept its slot goes on."""
        with self._lock:
            self._idle -= 1


class _Released:
    """The released slot of a call that has lent its slot."""

    def __init__(self, slots: Slots, wait: Wait) -> None:
        self._slots = slots
        self.wait = wait
        self._then: Job | None = None
        self.has_slot = False
        self.has_ended = False

    def end(self, then: Job) -> None:
        """See :class:`ReleasedSlot`."""
        self._then = then
        self._slots.come_back(self)

    def take_back(self) -> None:
        """Note that it has a slot again."""
        self.has_slot = True

    def go_on(self) -> None:
        """Let the call go on."""
        if self._then is not None:
            self._then()

    def give_up(self) -> bool:
        """End the call; return whether it has a slot to leave."""
        return self._slots.give_up(self)


class _IdleSlot:
    """The released slot of a call that keeps its slot."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def end(self, then: Job) -> None:
        """See :class:`ReleasedSlot`."""
        self._slots.stop_idling()
        then()

    def give_up(self) -> bool:
        """Return true: there is a slot to leave."""
        return True
