"""What programs need of their process and machine: memory, signals, variables, addresses and ports."""

import ctypes
import ipaddress
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import urlsplit

_PR_SET_DUMPABLE = 4
#: variables about the user and the machine that programs need, besides ``LC_*``
_MACHINE = frozenset({
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "TERM", "LANG", "LANGUAGE", "TZ", "TMPDIR"),
    *("LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SSL_CERT_FILE", "SSL_CERT_DIR", "CURL_CA_BUNDLE"),
    *("REQUESTS_CA_BUNDLE", "NODE_EXTRA_CA_CERTS", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "all_proxy", "no_proxy"),
})  # fmt: skip


def close_to_other_processes() -> None:
    """Keep this user's other processes, such as tools, from reading this one's environment and memory.

    Like ssh-agent, this uses prctl(2) with PR_SET_DUMPABLE: ``/proc/<pid>/environ``, ``mem`` and ``fd``
    belong to root then, ptrace(2) is refused, and there are no core dumps. Child programs are not
    protected. Linux only.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def sighup_ends_process() -> bool:
    """Return whether SIGHUP ends this process: not if it is ignored, as under nohup.

    Call this before a handler for the signal is installed.
    """
    return signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN


def is_loopback(host: str) -> bool:
    """Return whether ``host`` is a loopback address: ``localhost``, 127.0.0.0/8 or ::1."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def names_this_machine(host: str) -> bool:
    """Return whether a ``Host`` header, with or without a port, names a loopback address.

    A web page whose own name resolves to this machine (DNS rebinding) sends that name.
    """
    try:
        parts = urlsplit(f"//{host}")
        _ = parts.port
    except ValueError:
        return False
    return is_loopback(parts.hostname or "")


@contextmanager
def listening(host: str, port: int) -> Iterator[socket.socket]:
    """Listen on an address during a ``with`` block; port 0 means any free port.

    Raises:
        OSError: the address cannot be used.
    """
    try:
        [(family, _, _, _, address), *_] = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except UnicodeError:  # such as 127..0.0.1, where a part is missing
        raise OSError("that is not the name of a host") from None
    with socket.socket(family, socket.SOCK_STREAM) as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind(address)
        server.listen()
        yield server


def url_of(server: socket.socket) -> str:
    """Return the URL of a listening socket."""
    host, port, *_ = server.getsockname()
    return url_at(host, port)


def url_at(host: str, port: int) -> str:
    """Return the URL of a server at an address."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def own_environment() -> Mapping[str, str]:
    """Return the environment of this process."""
    return os.environ  # noqa: TID251 - child_environment selects what programs get


def child_environment(environ: Mapping[str, str] | None = None) -> dict[str, str]:
    """Return the variables of ``environ`` (default: this process's) that every program of a tool gets."""
    environ = own_environment() if environ is None else environ
    return {name: text for name, text in environ.items() if name in _MACHINE or name.startswith("LC_")}
