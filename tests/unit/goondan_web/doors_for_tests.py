"""Applications for tests of the HTTP application."""

from typing import Any

from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from broker_config.settings import Settings
from goondan_web.application import Application, make_application
from goondan_web.door import Access, Door


async def count(request: Request) -> PlainTextResponse:
    """Read the whole body and say how long it is."""
    return PlainTextResponse(f"{len(await request.body())} bytes")


def counting_door(access: Access = Access.TOKEN, path: str = "/", **fields: Any) -> Door:
    """Make a door that counts the bytes of bodies."""
    return Door("count", path, [Route(path, count, methods=["GET", "POST"])], access, **fields)


def application(*doors: Door, host: str = "127.0.0.1", **settings: Any) -> Application:
    """Make an application with these doors, which is served on ``host``."""
    return make_application(doors or (counting_door(),), Settings.load(**settings), host)
