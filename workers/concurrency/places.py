"""The places of a worker: so many calls are in progress, and a call that waits for another agent holds none.

It gives its place back while it waits, and takes one again, before all that has not begun, when it goes on.
"""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from goondan_tasks.errors import LimitError
from workers.concurrency.threads import Job


@dataclass(frozen=True, slots=True)
class Entrant:
    """Something that is to be carried out; ``job`` begins it, as soon as there is a place."""

    job: Job
    #: its message, with the claim that may have come with it
    request: Any
    lasts: bool = False


class Absence(Protocol):
    """The time in which a call waits for another agent."""

    def end(self, then: Job) -> None:
        """Call ``then``, on any thread, as soon as the call may go on."""

    def give_up(self) -> bool:
        """Be over because the call has ended; say whether it has a place to leave."""


#: begins an absence
StepOut = Callable[[], Absence]


class NoAbsence:
    """That of a call whose pool cannot lend its place."""

    def end(self, then: Job) -> None:
        """Let it go on."""
        then()

    def give_up(self) -> bool:
        """Say that there is a place to leave."""
        return True


class Places:
    """The places, those who wait for one, and those who have lent theirs."""

    def __init__(
        self, limit: Callable[[], int], begin: Callable[[Entrant], None], on_free: Job = lambda: None
    ) -> None:
        self._on_free = on_free
        #: how many calls may wait without a place
        self.most_absent = 0
        self._limit = limit
        self._begin = begin
        self._lock = threading.Lock()
        self.taken = 0
        self._absent = 0
        #: of the places taken, those whose calls wait all the same
        self._idle = 0
        self._waiting: deque[Entrant] = deque()
        self._returning: deque[_Lent] = deque()

    @property
    def backlog(self) -> int:
        """How many have not begun."""
        return len(self._waiting)

    @property
    def free(self) -> int:
        """How many places nobody has, and nobody waits for."""
        return self._limit() - self.taken - len(self._waiting) - len(self._returning)

    def take(self) -> bool:
        """Take a place at once, to be left with :meth:`leave`; say whether there was one."""
        with self._lock:
            if self.taken >= self._limit() or self._waiting or self._returning:
                return False
            self.taken += 1
            return True

    def enter(self, entrant: Entrant) -> None:
        """Begin, as soon as there is a place."""
        with self._lock:
            if self.taken >= self._limit():
                self._waiting.append(entrant)
                return
            self.taken += 1
        self._begin(entrant)

    def leave(self, absence: Absence | None) -> None:
        """End what is carried out; ``absence`` is that of a call which has waited, or still does."""
        if absence is None or absence.give_up():
            self._free()

    def take_waiting(self) -> Sequence[Entrant]:
        """Take away those that have not begun."""
        with self._lock:
            waiting = list(self._waiting)
            self._waiting.clear()
        return waiting

    def step_out(self) -> Absence:
        """Begin an absence: the place goes to the next one.

        Beyond so many absences a call keeps its place while it waits, but never the last one.

        Raises:
            LimitError: that would be so.
        """
        with self._lock:
            if self._absent >= self.most_absent:
                return self._keep()
            self._absent += 1
        self._free()
        return _Lent(self)

    def _keep(self) -> "_Kept":
        if self._idle + 1 >= self._limit():
            raise LimitError(
                f"{self._absent + self._idle} calls of this worker wait for other agents already.",
                suggestion="Start more workers for the agent, ask with `async: true`, "
                "or raise GOONDAN_MAX_WAITING.",
            )
        self._idle += 1
        return _Kept(self)

    def fill(self) -> None:
        """Give those who wait the places that have been added."""
        while self._pass_on(0):
            pass

    def _free(self) -> None:
        self._pass_on(1)

    def _pass_on(self, freed: int) -> bool:
        """Give a place to whoever waits, if there is one after so many were ``freed``; say whether."""
        lent, entrant = None, None
        with self._lock:
            self.taken -= freed
            if self.taken < self._limit():
                if self._returning:
                    lent = self._returning.popleft()
                    lent.seat()
                elif self._waiting:
                    entrant = self._waiting.popleft()
                self.taken += lent is not None or entrant is not None
        if lent is not None:
            lent.go_on()
        elif entrant is not None:
            self._begin(entrant)
        else:
            self._on_free()
        return lent is not None or entrant is not None

    def come_back(self, lent: "_Lent") -> None:
        """Give an absent one a place again, as soon as there is one."""
        with self._lock:
            self._absent -= 1
            if lent.has_ended:
                pass  # nobody counts it any more
            elif self.taken < self._limit():
                self.taken += 1
                lent.seat()
            else:
                self._returning.append(lent)
                return
        lent.go_on()

    def give_up(self, lent: "_Lent") -> bool:
        """End a call wherever it is; say whether it had a place."""
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
        """Note that one of those who kept their places goes on."""
        with self._lock:
            self._idle -= 1


class _Lent:
    """The absence of a call that has lent its place."""

    def __init__(self, places: Places) -> None:
        self._places = places
        self._then: Job | None = None
        self.is_seated = False
        self.has_ended = False

    def end(self, then: Job) -> None:
        """See :class:`Absence`."""
        self._then = then
        self._places.come_back(self)

    def seat(self) -> None:
        """Note that it has a place again."""
        self.is_seated = True

    def go_on(self) -> None:
        """Let the call go on."""
        if self._then is not None:
            self._then()

    def give_up(self) -> bool:
        """End the call; say whether it has a place to leave."""
        return self._places.give_up(self)


class _Kept:
    """The absence of a call that keeps its place."""

    def __init__(self, places: Places) -> None:
        self._places = places

    def end(self, then: Job) -> None:
        """See :class:`Absence`."""
        self._places.stop_idling()
        then()

    def give_up(self) -> bool:
        """Say that there is a place to leave."""
        return True
