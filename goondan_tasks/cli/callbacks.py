"""``goondan callbacks``: pending calls are completed over HTTP."""

from enum import StrEnum
from typing import Annotated

import typer

from goondan_tasks.cli.broker import require_broker
from goondan_tasks.cli.extras import extra
from goondan_tasks.cli.http_options import Address, Port, announced
from goondan_tasks.cli.interruption import Interruption
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.client import AsyncClient
from goondan_tasks.logs import configure_logging


class Action(StrEnum):
    """What is to be done."""

    SERVE = "serve"


@takes_session
def callbacks(
    session: Session,
    action: Annotated[Action, typer.Argument(metavar="ACTION", help="serve.")],
    port: Port = None,
    address: Address = None,
) -> None:
    """Serve the addresses that tools get from ctx.callback_url, until Ctrl-C.

    POST {"output": …} or {"error": {"message": …}} to one completes its call, once. Workers make the
    addresses of their GOONDAN_PUBLIC_URL, which must lead here.
    """
    with extra("serve"):  # optional: only now
        from goondan_tasks.callbacks import make_app
        from goondan_tasks.http import serve
    settings = session.settings
    require_broker(settings)
    configure_logging(settings)
    host = address or settings.http_host
    with (
        session.client() as client,
        Interruption().listening(),
        announced(session, host, port, "/callbacks") as server,
    ):
        if settings.public_url is None:
            session.output.note("GOONDAN_PUBLIC_URL is not set here; workers need it to make addresses.")
        serve(make_app(AsyncClient(client), settings), server)
