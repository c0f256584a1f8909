"""MCP Tasks whose server is killed between ``tools/call`` and ``tasks/get``, or whose asking worker is."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp.client.client import Client

from goondan_tasks.machine.process import listening
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, start
from tests.integration.mcp_task_client import ENDS, Task, TasksExtension, begun, reached, respond, unasked
from tests.integration.test_mcp_remote_tasks import clerk_bundle, name_of

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(300)]

PENDING_BUNDLE = Path(__file__).parent.parent / "bundles" / "pending"
ROUNDS = 3
CALLS = 6
PATIENCE = 90


@contextmanager
def replica(stack: LocalStack, port: int = 0) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """Run a server that may be killed; yield its process and its URL."""
    command = ("mcp-server", "--agent", "builder", "--http", "--port", str(port), "--json")
    env = environment(redis_url=stack.redis_url)
    with start(*command, env=env, errors=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        document = "".join(iter(process.stdout.readline, "}\n")) + "}"
        try:
            yield process, json.loads(document)["url"]
        finally:
            process.kill()


def connected(url: str) -> Client:
    """Make a client of the extension that can ask its user."""
    return Client(url, mode="auto", extensions=[TasksExtension()], elicitation_callback=unasked)


async def begin(url: str, until: Path) -> list[str]:
    """Begin a task that runs, and one that waits for an approval; return their ids."""
    async with connected(url) as client:
        running = await begun(client, "jobs__linger", {"until": str(until), "ends": True})
        held = await begun(client, "guarded__wipe", {"disk": until.name})
    assert isinstance(running, Task)
    assert isinstance(held, Task)
    return [running.task_id, held.task_id]


async def finish(url: str, tasks: list[str], until: Path) -> list[dict[str, Any] | None]:
    """Let the tasks end; return their results."""
    async with connected(url) as client:
        await reached(client, tasks[0], "working")
        await reached(client, tasks[1], "input_required")
        await asyncio.to_thread(until.touch)
        await respond(client, tasks[1], approval={"action": "accept", "content": {"confirm": True}})
        return [(await reached(client, task, *ENDS)).result for task in tasks]


def test_tasks_of_killed_servers_continue_at_other_servers(tmp_path: Path) -> None:
    with LocalStack(PENDING_BUNDLE, agents=["builder"]) as stack, replica(stack) as (_, other):
        for number in range(ROUNDS):
            until = tmp_path / f"until-{number}"
            with replica(stack) as (server, url):
                tasks = asyncio.run(begin(url, until))
                server.kill()
                server.wait()
            if number % 2:
                lingered, wiped = asyncio.run(finish(other, tasks, until))
            else:
                with replica(stack) as (_, successor):
                    lingered, wiped = asyncio.run(finish(successor, tasks, until))
            assert lingered is not None
            assert wiped is not None
            assert lingered["content"][0]["text"] == "done here"
            assert wiped["structuredContent"] == {"wiped": until.name}


def test_calls_awaiting_tasks_outlive_server_and_workers(tmp_path: Path) -> None:
    with listening("127.0.0.1", 0) as free:
        port = int(free.getsockname()[1])
    untils = [tmp_path / f"until-{number}" for number in range(CALLS)]
    with LocalStack(PENDING_BUNDLE, agents=["builder"], concurrency=CALLS) as far, ExitStack() as servers:
        server, url = servers.enter_context(replica(far, port))
        bundle = clerk_bundle(tmp_path / "bundle", url)
        with LocalStack(bundle, workers=2, concurrency=1) as near:
            submit, tool = near.client.submit, name_of("jobs__linger")
            calls = [submit("clerk", tool, {"until": str(until), "ends": True}) for until in untils]
            for call in calls:
                assert call.result(PATIENCE).status == "pending"
            server.kill()
            server.wait()
            for worker in near.workers:
                worker.kill()
                worker.wait()
            for until in untils:
                until.touch()
            servers.enter_context(replica(far, port))
            near.start_worker()
            results = [call.result(PATIENCE, wait_pending=True) for call in calls]

    assert [result.output for result in results] == ["done here"] * CALLS
