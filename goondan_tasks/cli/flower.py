"""``goondan flower``: Celery's web monitor, set up for agents."""

import os
import socket
from typing import Annotated

import typer

from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.broker import require_broker
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.flower_program import flower_command

LOOPBACK = "127.0.0.1"
DEFAULT_PORT = 5555


@takes_session
def flower(
    session: Session,
    port: Annotated[
        int, typer.Option(min=1, max=65_535, metavar="P", help="The port to listen on.")
    ] = DEFAULT_PORT,
    address: Annotated[str, typer.Option(metavar="HOST", help="The address to listen on.")] = LOOPBACK,
    options: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="OPTIONS", help="Flower's own options, after --: -- --basic-auth=user:password."
        ),
    ] = None,
) -> None:
    """Run Flower: workers, tasks, results and the length of every agent's queue, in a browser.

    Its REST API answers 401 unless --basic-auth or --auth is set, or FLOWER_UNAUTHENTICATED_API=true.
    """
    settings = session.settings
    path = settings.bundle and settings.bundle.absolute()
    if path is not None:
        load_bundle(path)
    require_broker(settings)
    require_free(address, port)
    url = f"http://{f'[{address}]' if ':' in address else address}:{port}"
    if session.output.as_json:
        session.output.document({"url": url})
    session.output.note(f"Flower: {url}")
    if address != LOOPBACK:
        session.output.note("Whoever reaches it sees calls and stops workers, unless --basic-auth is set.")
    command = flower_command(
        f"--address={address}", f"--port={port}", f"--logging={settings.log_level}", *(options or ())
    )
    os.execve(command[0], command, session.environment(bundle=path))  # noqa: S606


def require_free(address: str, port: int) -> None:
    """Go on if a server can listen there.

    Raises:
        typer.BadParameter: it cannot.
    """
    reason = why_not_free(address, port)
    if reason:
        raise typer.BadParameter(f"Nothing can listen on {address} port {port}: {reason}.")


def why_not_free(address: str, port: int) -> str | None:
    """Say why no server can listen on ``port``, ``None`` if one can."""
    try:
        [(family, _, _, _, place), *_] = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)
        with socket.socket(family, socket.SOCK_STREAM) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            server.bind(place)
    except OSError as error:
        return error.strerror or str(error)
    except UnicodeError:
        return "that is no host's name"
    return None
