"""``goondan serve``: several doors of one server."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import Server, environment, goondan, serving
from tests.integration.mcp_doors import Doors

CALLS_BUNDLE = Path(__file__).parent.parent / "bundles" / "calls"
PATIENCE = 60


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(CALLS_BUNDLE, agents=["smith"], workers=0) as stack:
        yield stack


@pytest.fixture(scope="module")
def server(stack: LocalStack) -> Iterator[Server]:
    env = environment(redis_url=stack.redis_url, bundle=CALLS_BUNDLE)
    with serving("serve", "--agent", "smith", env=env) as server:
        yield server


def test_every_door_of_bundle_is_open_without_choice(server: Server) -> None:
    answers = {
        path: httpx2.get(server.url + path, timeout=PATIENCE) for path in ("/healthz", "/readyz", "/metrics")
    }
    closed = httpx2.get(f"{server.url}/oauth/callback", timeout=PATIENCE)
    completed = httpx2.post(f"{server.url}/callbacks/no-such-call/x", json={"output": 1}, timeout=PATIENCE)

    assert {path: answer.status_code for path, answer in answers.items()} == dict.fromkeys(answers, 200)
    assert 'goondan_workers{agent="smith"} 0.0' in answers["/metrics"].text
    assert (closed.status_code, closed.json()["error"]["code"]) == (404, "E_NOT_FOUND")
    assert (completed.status_code, completed.json()["error"]["code"]) == (404, "E_CALL_NOT_FOUND")


def test_mcp_client_passes_beside_other_doors(stack: LocalStack, server: Server) -> None:
    async def names() -> list[str]:
        async with Doors(stack, f"{server.url}/mcp").client("http", "auto") as client:
            return [tool.name for tool in (await client.list_tools()).tools]

    assert "echo__args" in asyncio.run(names())


@pytest.mark.parametrize(
    ("options", "exit_code", "word"),
    [
        (("--door", "metrics,callback"), 2, "Did you mean callbacks?"),
        (("--door", "mcp"), 3, "--agent"),
        (("--door", "mcp", "--agent", "nobody"), 3, "smith"),
        (("--door", "mcp", "--agent", "smith", "--address", "0.0.0.0"), 3, "GOONDAN_HTTP_TOKEN"),
    ],
)
def test_reason_why_door_cannot_open_is_shown(
    stack: LocalStack, options: tuple[str, ...], exit_code: int, word: str
) -> None:
    env = environment(redis_url=stack.redis_url, bundle=CALLS_BUNDLE)
    refused = goondan("serve", *options, env=env)

    assert (refused.exit_code, refused.stdout) == (exit_code, "")
    assert word in refused.stderr
