"""``goondan metrics``: serves the figures of all agents to Prometheus."""

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from goondan_tasks.cli.broker import require_broker
from goondan_tasks.cli.flower import require_free
from goondan_tasks.cli.interruption import Interruption
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.metrics import serving

DEFAULT_PORT = 9464


@takes_session
def metrics(
    session: Session,
    port: Annotated[
        int | None,
        typer.Option(min=0, max=65_535, metavar="P", help="Else GOONDAN_METRICS_PORT, else 9464."),
    ] = None,
    address: Annotated[
        str | None, typer.Option(metavar="HOST", help="The address to listen on; else GOONDAN_HTTP_HOST.")
    ] = None,
) -> None:
    """Serve backlog, running, workers and crash loops of every agent to Prometheus, until Ctrl-C.

    `goondan orchestrator` serves the same if GOONDAN_METRICS_PORT is set.
    """
    settings = session.settings
    require_broker(settings)
    chosen = settings.metrics_port if port is None else port
    interruption = Interruption()
    with (
        interruption.listening(),
        metrics_server(session, DEFAULT_PORT if chosen is None else chosen, address) as url,
    ):
        if session.output.as_json:
            session.output.document({"url": url})
        session.output.note(f"Metrics: {url}")
        interruption.asked.wait()


@contextlib.contextmanager
def metrics_server(session: Session, port: int, address: str | None = None) -> Iterator[str]:
    """Serve the figures for the length of a ``with`` block; yield their URL.

    Raises:
        typer.BadParameter: nothing can listen there.
    """
    host = address or session.settings.http_host
    require_free(host, port)
    with session.client() as client, serving(client.agent_statuses, host, port) as url:
        yield url
