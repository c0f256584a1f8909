"""Which process this is: ids of processes and names of hosts repeat from container to container."""

import functools
import os
import socket
import uuid
from dataclasses import dataclass
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process among all of all machines."""

    #: made at random; the tags of what it reserves, and the tokens of its claims, begin with it
    id: str
    pid: int
    host: str
    #: the running kernel, and its namespace, that ``pid`` is of
    place: str

    @property
    def name(self) -> str:
        """What people know it by; another one may have the same."""
        return f"{self.pid}@{self.host}"


@functools.cache
def this_process() -> ProcessIdentity:
    """Return the identity of this process; a forked child has another."""
    host = socket.gethostname()
    return ProcessIdentity(uuid.uuid4().hex, os.getpid(), host, _place() or host)


os.register_at_fork(after_in_child=this_process.cache_clear)


def _place() -> str | None:
    try:
        return f"{_BOOT.read_text(encoding='ascii').strip()}/{_NAMESPACE.stat().st_ino}"
    except OSError:  # there is no Linux below
        return None
