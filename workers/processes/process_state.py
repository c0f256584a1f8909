"""What belongs to a process rather than to a module, and must not reach from one call into the next."""

import os
import signal
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Directory, environment, umask and the answer to SIGTERM, as they were."""

    #: a descriptor: the path may lead elsewhere by then
    directory: int
    environment: dict[str, str]
    umask: int
    on_sigterm: Any

    @classmethod
    def now(cls) -> "ProcessState":
        """Take note of the state, on the main thread."""
        umask = os.umask(0)
        os.umask(umask)
        environment = dict(os.environ)  # noqa: TID251 - kept for the next call, not read
        return cls(os.open(".", os.O_RDONLY), environment, umask, signal.getsignal(signal.SIGTERM))

    def restore(self) -> None:
        """Put the state back, and call off an alarm."""
        os.fchdir(self.directory)
        environment = os.environ  # noqa: TID251 - given back as it was
        if environment != self.environment:
            environment.clear()
            environment.update(self.environment)
        os.umask(self.umask)
        signal.alarm(0)
        signal.signal(signal.SIGTERM, self.on_sigterm)
