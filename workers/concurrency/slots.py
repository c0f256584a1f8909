"""The slots of a worker bound its calls in progress; a call that waits for another agent holds none.

Such a call releases its slot while it waits. When it goes on it takes one again, before calls that have not
begun.
"""

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, Protocol

from goondan_tasks.contract.errors import LimitError
from workers.concurrency.threads import InOrder, Work


@dataclass(frozen=True, slots=True)
class QueuedJob:
    """Something to carry out: ``job`` begins it as soon as there is a slot."""

    job: Work
    #: what it carries out
    message: Any
    #: its turn among the messages, which must end even if the job does not begin
    turn: InOrder


class Wait(Enum):
    """What a call waits for without its slot."""

    #: another agent; or anything in blocking code, which keeps its thread. The number of these is limited
    AGENT = auto()
    #: its own tools, on the event loop; while as many wait for them, no further events are taken
    TOOLS = auto()
    #: everything that its handler does, on the event loop
    HANDLER = auto()


class ReleasedSlot(Protocol):
    """The state of a call that has released its slot while it waits."""

    def end(self, then: Work) -> None:
        """Call ``then``, on any thread, as soon as the call may go on."""

    def give_up(self) -> bool:
        """End with the call; return whether it has a slot to leave."""


class ReleaseSlot(Protocol):
    """Releases the slot of a call."""

    def __call__(self, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        """Release it for this kind of wait."""


class KeptSlot:
    """Stands for a released slot where the pool cannot release any: the call keeps its slot."""

    def __init__(self, wait: Wait = Wait.AGENT) -> None:
        """Keep the slot, whatever the wait is for."""

    def end(self, then: Work) -> None:
        """Let the call go on."""
        then()

    def give_up(self) -> bool:
        """Return true: there is a slot to leave."""
        return True


class Slots:
    """The slots, the calls that wait for one, and the calls that have released theirs."""

    def __init__(
        self, limit: Callable[[], int], begin: Callable[[QueuedJob], None], on_free: Work = lambda: None
    ) -> None:
        self._on_free = on_free
        #: how many calls may wait without a slot for each of the first two kinds of :class:`Wait`
        self.most_released = 0
        self._limit = limit
        self._begin = begin
        self._lock = threading.Lock()
        self.taken = 0
        #: events whose messages wait to be claimed, each of which may begin a Turn
        self._expected = 0
        self._released: Counter[Wait] = Counter()
        #: how many of the taken slots belong to calls that wait without releasing them
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
        """Count events whose messages wait to be claimed; with a negative number, those that are."""
        with self._lock:
            self._expected += events

    @property
    def takes_events(self) -> bool:
        """Whether another Turn may begin: not too many wait for their tools, or are about to begin.

        Each call that waits for an agent makes room for one, which may be the Turn that it waits for.
        """
        waiting = self._released[Wait.TOOLS] - self._released[Wait.AGENT]
        return waiting + self._expected < self.most_released

    def take(self) -> bool:
        """Take a slot now, to be given back with :meth:`leave`; return whether there was one."""
        with self._lock:
            if self.taken >= self._limit() or self._waiting or self._returning:
                return False
            self.taken += 1
            return True

    def enter(self, queued: QueuedJob) -> None:
        """Begin a job as soon as there is a slot."""
        with self._lock:
            if self.taken >= self._limit():
                self._waiting.append(queued)
                return
            self.taken += 1
        self._begin(queued)

    def leave(self, released_slot: ReleasedSlot | None) -> None:
        """End a job; ``released_slot`` is that of a call which has waited, or still does."""
        if released_slot is None or released_slot.give_up():
            self._pass_on(1)

    def leave_all(self, count: int) -> None:
        """End so many jobs that have not waited."""
        while self._pass_on(count):
            count = 0

    def take_waiting(self) -> Sequence[QueuedJob]:
        """Remove and return the jobs that have not begun."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def release_slot(self, wait: Wait = Wait.AGENT) -> ReleasedSlot:
        """Release the slot of a call to the next one.

        When :attr:`most_released` calls wait for agents, further ones keep their slots while they wait.

        Raises:
            LimitError: the last slot would be kept.
        """
        with self._lock:
            if wait is Wait.AGENT and self._released[wait] >= self.most_released:
                return self._keep()
            self._released[wait] += 1
        self._pass_on(1)
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
        self.leave_all(0)

    def _pass_on(self, freed: int) -> bool:
        """Free so many slots and give one to the next waiting call, if any; return whether one was given."""
        back, queued = None, None
        with self._lock:
            self.taken -= freed
            if self.taken < self._limit():
                if self._returning:
                    back = self._returning.popleft()
                    back.has_slot = True
                elif self._waiting:
                    queued = self._waiting.popleft()
                self.taken += back is not None or queued is not None
        if back is not None:
            back.go_on()
        elif queued is not None:
            self._begin(queued)
        else:
            self._on_free()
        return back is not None or queued is not None

    def come_back(self, released: "_Released") -> None:
        """Give a call a slot again as soon as there is one."""
        with self._lock:
            self._released[released.wait] -= 1
            if released.has_ended:
                pass  # it needs no slot
            elif self.taken < self._limit():
                self.taken += 1
                released.has_slot = True
            else:
                self._returning.append(released)
                return
        released.go_on()

    def give_up(self, released: "_Released") -> bool:
        """End a call that may wait, or wait for a slot again; return whether it had a slot."""
        with self._lock:
            released.has_ended = True
            if released.has_slot:
                return True
            is_returning = released in self._returning
            if is_returning:
                self._returning.remove(released)
        if is_returning:
            released.go_on()
        return False

    def stop_idling(self) -> None:
        """Note that a call that kept its slot goes on."""
        with self._lock:
            self._idle -= 1


class _Released:
    """A slot that was released to the next call."""

    def __init__(self, slots: Slots, wait: Wait) -> None:
        self._slots = slots
        self.wait = wait
        self._then: Work | None = None
        #: whether the call has a slot again
        self.has_slot = False
        self.has_ended = False

    def end(self, then: Work) -> None:
        """See :class:`ReleasedSlot`."""
        self._then = then
        self._slots.come_back(self)

    def go_on(self) -> None:
        """Let the call go on."""
        if self._then is not None:
            self._then()

    def give_up(self) -> bool:
        """See :class:`ReleasedSlot`."""
        return self._slots.give_up(self)


class _IdleSlot(KeptSlot):
    """A slot that its call keeps while it waits, counted meanwhile."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots

    def end(self, then: Work) -> None:
        """See :class:`ReleasedSlot`."""
        self._slots.stop_idling()
        then()
