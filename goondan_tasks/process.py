"""This process and its machine, as the operating system knows them."""

import ctypes
import ipaddress
import signal
import sys

_PR_SET_DUMPABLE = 4


def close_to_other_processes() -> None:
    """Let no other process of this user, such as a tool's, read the environment and memory of this one.

    It is what ssh-agent does: prctl(2) with PR_SET_DUMPABLE gives ``/proc/<pid>/environ``, ``mem`` and ``fd``
    to root, and keeps ptrace(2) away. There is no core dump then. Programs that this process starts are as
    open as ever. Only Linux has it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def heeds_hangup() -> bool:
    """Say whether it ends this process: not if SIGHUP is ignored, as by nohup.

    To be asked before anybody else takes the signal.
    """
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def is_loopback(host: str) -> bool:
    """Say whether ``host`` is this machine alone: ``localhost``, 127.0.0.0/8 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
