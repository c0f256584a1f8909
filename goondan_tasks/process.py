"""Facts about this process and its machine, and the protection of its memory."""

import ctypes
import ipaddress
import signal
import sys

_PR_SET_DUMPABLE = 4


def close_to_other_processes() -> None:
    """Keep other processes of this user, such as a tool's, from reading this one's environment and memory.

    This is what ssh-agent does: prctl(2) with PR_SET_DUMPABLE gives ``/proc/<pid>/environ``, ``mem`` and
    ``fd`` to root, and keeps ptrace(2) away. It also disables core dumps. Programs that this process starts
    are not protected. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def heeds_hangup() -> bool:
    """Say whether SIGHUP ends this process; it does not if it is ignored, as under nohup.

    Call this before a handler is installed for the signal.
    """
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def is_loopback(host: str) -> bool:
    """Say whether ``host`` is this machine alone: ``localhost``, 127.0.0.0/8 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
