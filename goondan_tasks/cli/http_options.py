"""Where a command listens for HTTP, and how it says so."""

import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Annotated

import typer

from goondan_tasks.cli.extras import extra
from goondan_tasks.cli.session import Session

Port = Annotated[
    int | None,
    typer.Option(min=0, max=65_535, metavar="P", help="The port to listen on; else GOONDAN_HTTP_PORT."),
]
Address = Annotated[
    str | None, typer.Option(metavar="HOST", help="The address to listen on; else GOONDAN_HTTP_HOST.")
]


@contextmanager
def announced(session: Session, host: str, port: int | None, path: str) -> Iterator[socket.socket]:
    """Listen for the length of a ``with`` block, and say at which URL.

    Raises:
        ConfigError: the extra is not installed.
        typer.BadParameter: nothing can listen there.
    """
    with extra("serve"):  # optional: only now
        from goondan_tasks.http import listening, url_of
    chosen = session.settings.http_port if port is None else port
    with ExitStack() as resources:
        try:
            server = resources.enter_context(listening(host, chosen))
        except (OSError, UnicodeError) as error:
            reason = getattr(error, "strerror", None) or "that is no host's name"
            raise typer.BadParameter(f"Nothing can listen on {host} port {chosen}: {reason}.") from error
        url = url_of(server) + path
        if session.output.as_json:
            session.output.document({"url": url})
        session.output.note(f"Listening: {url}")
        yield server
