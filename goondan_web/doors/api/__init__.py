"""The door ``api``: agents, their Turns and calls over HTTP, below ``/v1``, with an OpenAPI document."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from broker_config import serializer
from broker_config.settings import Settings
from goondan_tasks.client import AsyncClient
from goondan_tasks.contract.messages import ToolCall
from goondan_web.answers import JSON
from goondan_web.door import Access, Door, DoorContext
from goondan_web.doors.api.approvals import Approvals
from goondan_web.doors.api.audit import Audit
from goondan_web.doors.api.bundles import Bundles
from goondan_web.doors.api.calls import Calls
from goondan_web.doors.api.fleet import Fleet
from goondan_web.doors.api.history import History
from goondan_web.doors.api.instances import Instances
from goondan_web.doors.api.openapi import document
from goondan_web.doors.api.operations import Operation
from goondan_web.doors.api.runs import Waits
from goondan_web.doors.api.schedules import Schedules
from goondan_web.doors.api.turns import Turns

PATH = "/v1"
DOCUMENT_PATH = f"{PATH}/openapi.json"
#: a JSON escape may take six bytes for a character of three
INFLATION = 2
#: the size of a body without its input, arguments or output
FRAME_BYTES = 262_144


@contextmanager
def opened(context: DoorContext) -> Iterator[Door]:
    """Yield the door."""
    yield api_door(AsyncClient(context.client), context.settings)


def api_door(client: AsyncClient, settings: Settings) -> Door:
    """Make the door."""
    waits = Waits(client)
    all_operations = operations_of(client, waits)
    written = serializer.encode(document(all_operations))

    async def describe(_: Request) -> Response:
        return Response(written, media_type=JSON)

    async def call_of(call_id: str) -> ToolCall:
        return (await client.record(call_id)).call

    routes = [Route(DOCUMENT_PATH, describe), *(operation.route(call_of) for operation in all_operations)]
    most = INFLATION * max(settings.max_args_bytes, settings.max_output_bytes) + FRAME_BYTES
    return Door("api", PATH, routes, Access.TOKEN, max_body_bytes=most, end=waits.end, is_for_pages=True)


def operations_of(client: AsyncClient, waits: Waits) -> Sequence[Operation]:
    """Return all that can be asked of the API."""
    tables = (
        Turns(client, waits),
        Calls(client, waits),
        Approvals(client),
        Instances(client),
        Fleet(client),
        History(client),
        Schedules(client),
        Audit(client),
        Bundles(client),
    )
    return [operation for table in tables for operation in table.operations()]
