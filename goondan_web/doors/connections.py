"""The door ``connections``: requests to the Connections of a bundle, which their connectors answer.

Whether a request is genuine only the connector knows: ``ctx.verify`` checks its signature.
"""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from broker_config.settings import Settings
from goondan_tasks.authoring.webhooks import MAX_BODY_BYTES, HttpRequest
from goondan_tasks.bundle.connectors import ROOT
from goondan_tasks.connectors.connections import answering
from goondan_tasks.connectors.running import Entrance, RunningConnections, running
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.names import public_paths
from goondan_web.door import Access, Door, DoorContext


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door, and run the Connections that answer requests meanwhile."""
    bundle = context.bundle()
    connections = answering(bundle)
    if not connections:
        raise ConfigError(
            "The bundle has no Connections that answer requests.",
            suggestion="Add 'http: {}' to the spec of a Connector, or open other doors.",
        )
    with running(bundle, connections, context.settings, context.client) as running_connections:
        yield connections_door(running_connections, context.settings)


def connections_door(connections: RunningConnections, settings: Settings) -> Door:
    """Make the door to Connections that run."""
    routes = [
        Route(path, _endpoint(entrance), methods=list(entrance.methods))
        for entrance in connections.entrances
        for path in public_paths(entrance.path, settings.public_url)
    ]
    return Door("connections", ROOT, routes, Access.OWN, max_body_bytes=MAX_BODY_BYTES)


def _endpoint(entrance: Entrance) -> Callable[[Request], Awaitable[Response]]:
    async def answer(request: Request) -> Response:
        found = await entrance.answer(await _read(request))
        return Response(found.body, found.status, dict(found.headers))

    return answer


async def _read(request: Request) -> HttpRequest:
    headers: dict[str, str] = {}
    for name, value in request.headers.items():
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return HttpRequest(
        request.method, request.url.path, dict(request.query_params), headers, await request.body()
    )
