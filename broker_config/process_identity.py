"""The identity of a process; process ids and host names are not unique among containers."""

import functools
import os
import secrets
import socket
import uuid
from dataclasses import dataclass, field
from pathlib import Path

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_NAMESPACE = Path("/proc/self/ns/pid")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """A process, identified among those of all machines."""

    #: random; the tags of its reservations and the tokens of its claims begin with it. It is published
    id: str
    pid: int
    host: str
    #: the running kernel and the PID namespace of ``pid``
    place: str
    #: 128 random bits in each tag and token, so that nobody can compute them: callbacks derive from tokens
    secret: str = field(repr=False)

    @property
    def name(self) -> str:
        """The name for people; it may not be unique."""
        return f"{self.pid}@{self.host}"


@functools.cache
def this_process() -> ProcessIdentity:
    """Return the identity of this process; a forked child has a new one."""
    host = socket.gethostname()
    return ProcessIdentity(uuid.uuid4().hex, os.getpid(), host, _place() or host, secrets.token_urlsafe(16))


os.register_at_fork(after_in_child=this_process.cache_clear)


def _place() -> str | None:
    try:
        return f"{_BOOT.read_text(encoding='ascii').strip()}/{_NAMESPACE.stat().st_ino}"
    except OSError:  # not Linux
        return None
