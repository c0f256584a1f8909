"""The last log lines of failed runs are kept with their calls, on real workers."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.client import PendingCall
from goondan_tasks.history.attempts import Attempt
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan
from tests.javascript_runtimes import NAMES, runtime
from tests.waiting import wait_until

KEPT_LINES_BUNDLE = Path(__file__).parents[1] / "bundles" / "kept-lines"
PATIENCE = 60


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(KEPT_LINES_BUNDLE) as running:
        yield running


@pytest.fixture(scope="module", params=NAMES)
def script_stack(request: pytest.FixtureRequest) -> Iterator[LocalStack]:
    name = runtime(request.param).name
    with LocalStack(
        KEPT_LINES_BUNDLE, agents=["mate", "bosun"], environment={"GOONDAN_JAVASCRIPT": name}
    ) as running:
        yield running


def failed(stack: LocalStack, agent: str, tool: str, args: dict[str, Any] | None = None) -> PendingCall:
    call = stack.client.submit(agent, tool, args or {})
    assert call.result(PATIENCE).status == "error"
    return call


def attempts(stack: LocalStack, call: PendingCall | str) -> tuple[Attempt, ...]:
    return stack.client.describe(call if isinstance(call, str) else call.id).attempts


def kept(stack: LocalStack, call: PendingCall | str) -> str:
    """Return the lines of the last attempt, once they are kept."""
    wait_until(
        lambda: attempts(stack, call)[-1].log is not None, PATIENCE, show=lambda: str(attempts(stack, call))
    )
    return attempts(stack, call)[-1].log or ""


def own_id(stack: LocalStack, call: PendingCall) -> str:
    return stack.client.record(call.id).call.shown_id


@pytest.mark.parametrize("tool", ["log__plain", "log__later", "log__limited", "apart__plain", "apart__later"])
@pytest.mark.parametrize("count", [1, 20])
def test_raising_handlers_lines_are_kept_with_call(stack: LocalStack, tool: str, count: int) -> None:
    calls = [stack.client.submit("sailor", tool) for _ in range(count)]
    assert {call.result(PATIENCE).status for call in calls} == {"error"}

    for call in calls:
        first, second = kept(stack, call).splitlines()
        said = own_id(stack, call)
        assert first.endswith(rf"info said.by-context said={said} apiKey=*** bell=\x1b[2J\u202e")
        assert second.endswith(f"warning said by logging: {said} logger=logbook")


@pytest.mark.parametrize("tool", ["log__waits", "log__sleeps", "apart__waits"])
def test_lines_of_handler_past_its_limit_are_kept(stack: LocalStack, tool: str) -> None:
    call = failed(stack, "sailor", tool)
    first, second = kept(stack, call).splitlines()
    assert f"said={own_id(stack, call)}" in first
    assert "said by logging" in second


def test_lines_of_cancelled_running_call_are_kept(stack: LocalStack, tmp_path: Path) -> None:
    call = stack.client.submit("sailor", "log__lasts", {"began": str(tmp_path / "began")})
    wait_until((tmp_path / "began").exists, PATIENCE)
    call.cancel()
    assert call.result(PATIENCE).status == "error"
    assert f"said={own_id(stack, call)}" in kept(stack, call)


def test_line_from_thread_of_handler_is_kept(stack: LocalStack) -> None:
    call = failed(stack, "sailor", "log__threads")
    first, second = kept(stack, call).splitlines()
    assert first.endswith(f"info said.before said={own_id(stack, call)}")
    assert second.endswith("info said.by-context on='a thread'")


def test_lines_of_middlewares_count_as_lines_of_call(stack: LocalStack) -> None:
    call = failed(stack, "bosun", "log__plain")
    said = own_id(stack, call)
    lines = kept(stack, call).splitlines()
    assert [line.split(" ", 2)[2].split(" said=")[0] for line in lines] == [
        f"watch.begins extension=watch around={said}",
        "said.by-context",
        f"said by logging: {said} logger=logbook",
        f"watch ends around {said} logger=watch",
    ]


def test_lines_of_event_and_its_step_calls_stay_apart(stack: LocalStack) -> None:
    request = stack.client.pending(stack.client.request("captain", "sail", is_async=True).id)
    assert request.result(PATIENCE).status == "error"

    [line] = kept(stack, request.id).splitlines()
    story = stack.client.describe(request.id)
    [inner] = [child.id for child in story.children if child.tool == "log__plain"]

    assert line.endswith(f"info captain.begins turn={story.turn_id}")
    assert "said=c1" in kept(stack, inner)


def test_each_call_forgetting_await_keeps_warning_line(stack: LocalStack) -> None:
    for _ in range(2):
        call = failed(stack, "sailor", "log__forgets")
        assert "_send' was never awaited" in kept(stack, call)
        asked = stack.client.request("captain", "forget", is_async=True)
        assert stack.client.pending(asked.id).result(PATIENCE).status == "error"
        lines = kept(stack, asked.id)
        assert [f"{name}' was never awaited" in lines for name in ("_call", "_run")] == [True, True]


def test_retried_call_keeps_lines_of_three_attempts_at_most(stack: LocalStack) -> None:
    call = failed(stack, "sailor", "log__again")
    kept(stack, call)
    logs = [attempt.log and attempt.log.rpartition(" ")[2] for attempt in attempts(stack, call)]
    assert logs == [None, None, "run=3", "run=4", "run=5"]


def test_only_last_of_many_lines_are_kept(stack: LocalStack) -> None:
    many, wide = (
        failed(stack, "sailor", "log__chats", {"lines": lines, "size": size})
        for lines, size in ((70, 10), (40, 100_000))
    )
    few = kept(stack, many).splitlines()
    assert few[0] == "(20 earlier lines left out)"
    assert [" line 20 " in few[1], " line 69 " in few[50], len(few)] == [True, True, 51]
    text = kept(stack, wide)
    assert 12_000 < len(text.encode()) <= 16_384
    assert " line 39 " in text.splitlines()[-1]


def test_silent_or_successful_calls_keep_no_lines(stack: LocalStack) -> None:
    well = stack.client.submit("sailor", "log__well")
    assert well.result(PATIENCE).status == "ok"
    silent = failed(stack, "sailor", "log__silent")
    wait_until(lambda: stack.client.describe(silent.id).traceback is not None, PATIENCE)
    assert [attempts(stack, call)[-1].log for call in (well, silent)] == [None, None]


def test_show_prints_lines_with_control_characters_escaped(stack: LocalStack) -> None:
    call = failed(stack, "sailor", "log__plain")
    kept(stack, call)
    env = environment(redis_url=stack.redis_url)

    text = goondan("show", call.id, env=env).stdout
    document = goondan("show", call.id, "--json", env=env).document

    assert "The last lines that attempt 1 logged:\n" in text
    assert "said.by-context" in text
    assert "\x1b" not in text
    assert "said.by-context" in document["attempts"][0]["log"]


def test_call_of_dead_worker_reports_lost_lines() -> None:
    with LocalStack(
        KEPT_LINES_BUNDLE, agents=["sailor"], environment={"GOONDAN_LEASE_SECONDS": "2"}
    ) as stack:
        call = failed(stack, "sailor", "log__dies")
        text = goondan("show", call.id, env=environment(redis_url=stack.redis_url)).stdout
        assert attempts(stack, call)[-1].log is None
    assert "The lines of attempt 1 died with its worker. See the log of sailor" in text


@pytest.mark.parametrize("tool", ["script__plain", "script__waits"])
def test_javascript_handler_and_middleware_lines_are_kept(script_stack: LocalStack, tool: str) -> None:
    for agent in ("mate", "bosun"):
        call = failed(script_stack, agent, tool)
        said = own_id(script_stack, call)
        lines = kept(script_stack, call).splitlines()
        assert [f"watch.begins {said}" in lines[0], f"around={said}" in lines[0]] == [
            agent == "mate",
            agent == "bosun",
        ]
        assert "said.by-context" in lines[1]
        assert "sk-never-shown" not in lines[1]
        assert f"said by console: {said}" in lines[2]
