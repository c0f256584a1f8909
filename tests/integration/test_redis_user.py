"""A Redis user that may do just what docs/how-to/deploy.md lists."""

import re
import shlex
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from redis import Redis

from broker_config.connections import connect
from broker_config.embedded import EmbeddedRedis
from goondan_tasks.client import Client, TextDelta, TurnEnded
from goondan_tasks.testing import LocalStack
from tests.integration.conftest import CALLS_BUNDLE
from tests.integration.goondan_process import environment, goondan
from tests.waiting import wait_until

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "how-to" / "deploy.md"
PATIENCE = 60


def documented_user() -> list[str]:
    """Return the documented command, without redis-cli."""
    page = PAGE.read_text("utf-8")
    found = re.search(r"^\$ redis-cli (ACL SETUSER .*?)^```", page, re.DOTALL | re.MULTILINE)
    assert found is not None
    return shlex.split(found[1].replace("\\\n", " "))


class RestrictedStack(LocalStack):
    """Everything but the private Redis itself is the documented user."""

    @property
    def redis_url(self) -> str:
        return f"redis://goondan:PASSWORD@{urlsplit(self.redis.url).netloc.rpartition('@')[2]}/0"

    def _open_directory(self, resources: ExitStack) -> None:
        super()._open_directory(resources)
        with Redis.from_url(self.redis.url) as redis:
            redis.execute_command(*documented_user())


@pytest.fixture(scope="module")
def restricted() -> Iterator[RestrictedStack]:
    with RestrictedStack(CALLS_BUNDLE, agents=["smith"]) as stack:
        yield stack


def refused(stack: LocalStack) -> list[Any]:
    with Redis.from_url(stack.redis.url) as redis:
        return [(one["reason"], one["object"], one["context"]) for one in redis.acl_log()]


def test_restricted_users_calls_run_through_to_result(restricted: RestrictedStack) -> None:
    client = restricted.client
    calls = client.submit_many(
        [{"agentName": "smith", "toolName": "echo__args", "args": {"n": number}} for number in range(20)]
    )
    assert [call.result(PATIENCE).output for call in calls] == [{"n": number} for number in range(20)]
    sleeper = client.submit("smith", "bash__exec", {"command": "sleep 60"})
    wait_until(lambda: sleeper.status() == "running")
    sleeper.cancel()
    error = sleeper.result(PATIENCE).error
    assert error is not None
    assert error.code == "E_TOOL_CANCELLED"
    with Client.connect(restricted.redis_url) as other:
        assert other.record(calls[0].id).status == "done"
    assert refused(restricted) == []


@pytest.mark.parametrize(
    "command",
    [
        ["call", "smith", "echo__args", '{"a": 1}'],
        ["calls"],
        ["queues"],
        ["agents"],
        ["traces"],
        ["dead-letters", "list"],
        ["calls", "--tool", "echo__*", "--text", "nothing"],
        ["dead-letters", "list", "--group"],
        ["approvals", "list"],
        ["instances"],
        ["audit"],
        ["usage"],
        ["handoffs"],
        ["doctor"],
    ],
    ids=" ".join,
)
def test_command_of_restricted_user_is_refused_nothing(
    restricted: RestrictedStack, command: list[str]
) -> None:
    done = goondan(*command, env=environment(redis_url=restricted.redis_url))
    assert done.exit_code == 0, done.stderr
    assert refused(restricted) == []


def test_every_command_of_our_scripts_is_documented() -> None:
    folders = (REPOSITORY / name for name in ("broker_config", "goondan_tasks"))
    scripts = [path.read_text("utf-8") for folder in folders for path in folder.rglob("*.lua")]
    used = {name.lower() for text in scripts for name in re.findall(r"redis\.p?call\('([A-Z]+)'", text)}
    assert "hmget" in used
    assert used <= {word[1:] for word in documented_user() if word.startswith("+")}


def test_restricted_user_stops_worker_without_refusals(restricted: RestrictedStack) -> None:
    worker = restricted.start_worker()
    restricted.stop_worker(worker)
    assert worker.returncode == 0
    assert refused(restricted) == []


def test_user_forbidden_to_name_connection_still_connects() -> None:
    with EmbeddedRedis() as server:
        with Redis.from_url(server.url) as redis:
            redis.execute_command(
                *["ACL", "SETUSER", "plain", "on", ">PASSWORD", "~*", "&*", "+@all", "-client"]
            )
        place = urlsplit(server.url).netloc.rpartition("@")[2]
        with connect(f"redis://plain:PASSWORD@{place}/0") as redis:
            assert redis.ping()


def test_streams_of_restricted_user_are_joined_at_end(restricted: RestrictedStack) -> None:
    client = restricted.client
    call = client.submit("smith", "echo__args", {}, delay=3600, keep=60)
    key = f"goondan:turn-stream:{call.id}"
    piece = b'[{"type":"text","step":0,"text":"one","answerId":"a"}]'
    with Redis.from_url(restricted.redis.url) as redis:
        redis.xadd(key, {"entries": piece, "answer": "1"})
        call.cancel()

        text, end = client.follow(call.id)

        assert redis.xlen(key) == 3
    assert isinstance(text.event, TextDelta)
    assert isinstance(end.event, TurnEnded)
    assert refused(restricted) == []
