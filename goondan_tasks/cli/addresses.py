"""The addresses that commands listen on."""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator

import typer

from goondan_tasks.cli.session import Session
from goondan_tasks.machine.process import listening

_IN_USE = os.strerror(errno.EADDRINUSE)


@contextlib.contextmanager
def listening_socket(host: str, port: int) -> Iterator[socket.socket]:
    """Yield a socket that listens.

    Raises:
        typer.BadParameter: it cannot listen there.
    """
    with contextlib.ExitStack() as resources:
        try:
            server = resources.enter_context(listening(host, port))
        except OSError as error:
            raise _no_listener(host, port, error.strerror or str(error)) from error
        yield server


def announce(session: Session, what: str, url: str, **more: object) -> None:
    """Tell people and programs where a server is reached."""
    if session.output.as_json:
        session.output.document({"url": url, **more})
    session.output.note(f"{what}: {url}")


def why_not_free(address: str, port: int) -> str | None:
    """Return why no server can listen on ``port``; ``None`` if one can."""
    try:
        with listening(address, port):
            return None
    except OSError as error:
        return error.strerror or str(error)


def require_free(address: str, port: int) -> None:
    """Check that a server can listen on ``port``.

    Raises:
        typer.BadParameter: it cannot.
    """
    if reason := why_not_free(address, port):
        raise _no_listener(address, port, reason)


def _no_listener(address: str, port: int, reason: str) -> typer.BadParameter:
    advice = " Stop what listens there, or choose another port." if reason == _IN_USE else ""
    return typer.BadParameter(f"cannot listen on {address} port {port}: {reason}.{advice}")
