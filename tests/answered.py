"""Script calls that need no Redis."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Answered(Generic[T]):
    """Stands for a script call: it is answered by a function, or its error is raised."""

    answer: Callable[[], T]

    def run(self, _redis: object) -> T:
        """Return the answer."""
        return self.answer()
