"""Keeping what a process knows from the other processes of its user."""

import ctypes
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
