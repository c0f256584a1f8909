"""Sends the HTTP API what its document allows and what it does not: every answer must be one that it has."""

import asyncio
from typing import Any

import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import booleans
from pydantic import SecretStr
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from goondan_tasks.client import AsyncClient, Client
from goondan_web.application import make_application
from goondan_web.door import Door
from goondan_web.doors.api import DOCUMENT_PATH, api_door

TOKEN = {"Authorization": "Bearer t0ken"}
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def document_of(client: Client) -> Any:
    """Return the document of an application whose waits end at once."""
    loaded = client.settings.model_copy(update={"http_token": SecretStr("t0ken")})
    door = api_door(AsyncClient(client), loaded)
    asyncio.run(_ended(door))
    app = make_application([door], loaded, "127.0.0.1")
    return schemathesis.openapi.from_asgi(DOCUMENT_PATH, app, headers=TOKEN)


async def _ended(door: Door) -> None:
    await door.end()


def require_documented_answers(
    document: Any, known: dict[str, str], mode: GenerationMode, examples: int
) -> None:
    """Send every operation so many requests, to what is ``known`` by its place in paths, and to others."""
    chosen = settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    for found in document.get_all_operations():
        operation = found.ok()

        @chosen
        @given(case=operation.as_strategy(generation_mode=mode), is_known=booleans())
        def answer(case: Any, is_known: bool) -> None:
            if is_known:
                case.path_parameters |= {
                    name: known[name] for name in case.path_parameters or () if name in known
                }
            case.call_and_validate(checks=CHECKS, headers=TOKEN)

        answer()
