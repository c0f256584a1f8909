"""Facts about this process and its machine: its memory, signals, addresses and ports."""

import ctypes
import ipaddress
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_PR_SET_DUMPABLE = 4


def close_to_other_processes() -> None:
    """Keep other processes of this user, such as a tool's, from reading this one's environment and memory.

    This is what ssh-agent does: prctl(2) with PR_SET_DUMPABLE gives ``/proc/<pid>/environ``, ``mem`` and
    ``fd`` to root, and keeps ptrace(2) away. It also disables core dumps. Programs that this process starts
    are not protected. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def sighup_ends_process() -> bool:
    """Return whether SIGHUP ends this process; it does not if it is ignored, as under nohup.

    Call this before a handler is installed for the signal.
    """
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is this machine alone: ``localhost``, 127.0.0.0/8 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen for the length of a ``with`` block; port 0 takes any free one.

    Raises:
        OSError: nothing can listen there.
    """
    try:
        [(family, _, _, _, place), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # such as 127..0.0.1, where a part is missing
        raise OSError("that is not the name of a host") from None
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(place)
        server.listen()
        yield server


def url_of(server: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port, *_ = server.getsockname()
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"
