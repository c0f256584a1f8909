"""The slots of a worker: so many calls are in progress, and a call that waits for another agent holds none.

It gives its slot back while it waits, and takes one again, before all that has not begun, when it goes on.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


class ReleasedSlot(Protocol):
    """The time in which a call waits for another agent."""

    def end(self, then: Job) -> None:
        """Call ``then``, on any thread, as soon as the call may go on."""

    def give_up(self) -> bool:
        """Be over because the call has ended; say whether it has a slot to leave."""


#: begins a released slot
ReleaseSlot = Callable[[], ReleasedSlot]


class KeptSlot:
    """That of a call whose pool cannot lend its slot."""

    def end(self, then: Job) -> None:
        """Let it go on."""
        then()

    def give_up(self) -> bool:
        """Say that there is a slot to leave."""
        return True


class Slots:
    """The slots, those who wait for one, and those who have lent theirs."""

    def __init__(
        self, limit: Callable[[], int], begin: Callable[[QueuedJob], None], on_free: Job = lambda: None
    ) -> None:
        self._on_free = on_free
        #: how many calls may wait without a slot
        self.most_released = 0
        self._limit = limit
        self._begin = begin
        self._lock = threading.Lock()
        self.taken = 0
        self._released = 0
        #: of the slots taken, those whose calls wait all the same
        self._idle = 0
        self._waiting: deque[QueuedJob] = deque()
        self._returning: deque[_Released] = deque()

    @property
    def backlog(self) -> int:
        """How many have not begun."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """How many slots nobody has, and nobody waits for."""
        return self._limit() - self.taken - len(self._waiting) - len(self._returning)

    def take(self) -> bool:
        """Take a slot at once, to be left with :meth:`leave`; say whether there was one."""
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
        """Take away those that have not begun."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def release_slot(self) -> ReleasedSlot:
        """Release the slot of a call, which goes to the next one.

        Beyond so many released slots a call keeps its slot while it waits, but never the last one.

        Raises:
            LimitError: that would be so.
        """
        with self._lock:
            if self._released >= self.most_released:
                return self._keep()
            self._released += 1
        self._free()
        return _Released(self)

    def _keep(self) -> "_IdleSlot":
        if self._idle + 1 >= self._limit():
            raise LimitError(
                f"{self._released + self._idle} calls of this worker wait for other agents already.",
                suggestion="Start more workers for the agent, ask with `async: true`, "
                "or raise GOONDAN_MAX_WAITING.",
            )
        self._idle += 1
        return _IdleSlot(self)

    def fill(self) -> None:
        """Give those who wait the slots that have been added."""
        while self._pass_on(0):
            pass

    def _free(self) -> None:
        self._pass_on(1)

    def _pass_on(self, freed: int) -> bool:
        """Give a slot to whoever waits, if there is one after so many were ``freed``; say whether."""
        lent, queued = None, None
        with self._lock:
            self.taken -= freed
            if self.taken < self._limit():
                if self._returning:
                    lent = self._returning.popleft()
                    lent.seat()
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
        """Give an absent one a slot again, as soon as there is one."""
        with self._lock:
            self._released -= 1
            if lent.has_ended:
                pass  # nobody counts it any more
            elif self.taken < self._limit():
                self.taken += 1
                lent.seat()
            else:
                self._returning.append(lent)
                return
        lent.go_on()

    def give_up(self, lent: "_Released") -> bool:
        """End a call wherever it is; say whether it had a slot."""
        with self._lock:
            lent.has_ended = True
            if lent.is_seated:
                return True
            is_returning = lent in self._returning
            if is_returning:
                self._returning.remove(lent)
        if is_returning:
            lent.go_on()
        return False

    def stop_idling(self) -> None:
        """Note that one of those who kept their slots goes on."""
        with self._lock:
            self._idle -= 1


class _Released:
    """The released slot of a call that has lent its slot."""

    def __init__(self, slots: Slots) -> None:
        self._slots = slots
        self._then: Job | None = None
        self.is_seated = False
        self.has_ended = False

    def end(self, then: Job) -> None:
        """See :class:`ReleasedSlot`."""
        self._then = then
        self._slots.come_back(self)

    def seat(self) -> None:
        """Note that it has a slot again."""
        self.is_seated = True

    def go_on(self) -> None:
        """Let the call go on."""
        if self._then is not None:
            self._then()

    def give_up(self) -> bool:
        """End the call; say whether it has a slot to leave."""
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
        """Say that there is a slot to leave."""
        return True
