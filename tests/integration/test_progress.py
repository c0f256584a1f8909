"""Progress comes from a handler to whoever waits."""

from pathlib import Path

from goondan_tasks.client import Client, PendingCall
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan
from tests.waiting import wait_until

PATIENCE = 60

CALLS_BUNDLE = Path(__file__).parents[1] / "bundles" / "calls"


def done(call: PendingCall) -> float | None:
    progress = call.progress()
    return None if progress is None else progress.done


def test_progress_arrives_live_and_last_report_stays(client: Client, tmp_path: Path) -> None:
    call = client.submit("smith", "teller__counts", {"steps": 10, "place": str(tmp_path)})
    assert call.progress() is None or done(call) is not None
    wait_until(lambda: done(call) == 9, PATIENCE)
    progress = call.progress()
    assert progress is not None
    assert (progress.total, progress.message, call.status()) == (10, "step 9", "running")
    (tmp_path / "guest").touch()
    assert call.result(PATIENCE).output == "counted"
    last = call.progress()
    assert last is not None
    assert (last.done, last.total, last.message) == (10, 10, None)
    assert last.updated_at > progress.updated_at


def test_of_very_many_reports_last_one_arrives(client: Client, tmp_path: Path) -> None:
    (tmp_path / "guest").touch()
    call = client.submit("smith", "teller__counts", {"steps": 20_000, "place": str(tmp_path)})
    assert call.result(PATIENCE).output == "counted"
    assert done(call) == 20_000


def test_last_progress_of_first_handler_on_new_redis_arrives(tmp_path: Path) -> None:
    (tmp_path / "guest").touch()
    with LocalStack(CALLS_BUNDLE, agents=["smith"]) as stack:
        assert stack.client.call("smith", "echo__args", timeout=PATIENCE).status == "ok"
        call = stack.client.submit("smith", "teller__counts", {"steps": 0, "place": str(tmp_path)})
        assert call.result(PATIENCE).output == "counted"
        assert done(call) == 0


def test_record_of_call_has_its_progress(calls_stack: LocalStack, tmp_path: Path) -> None:
    call = calls_stack.client.submit("smith", "teller__counts", {"steps": 3, "place": str(tmp_path)})
    wait_until(lambda: done(call) == 2, PATIENCE)
    env = environment(redis_url=calls_stack.redis_url)
    [listed] = [row for row in goondan("calls", "--json", env=env).document if row["id"] == call.id]
    updated_at = listed["progress"].pop("updatedAt")
    earlier = [{"done": step, "total": 3, "message": f"step {step}"} for step in range(2)]
    assert listed["progress"] == {"done": 2, "total": 3, "message": "step 2", "earlier": earlier}
    assert updated_at > listed["claimedAt"]
    assert goondan("cancel", call.id, "--json", env=env).document["cancelled"] is True
    assert goondan("result", call.id, "--timeout", str(PATIENCE), env=env).exit_code == 1


def test_invalid_progress_is_error_and_changes_nothing(client: Client) -> None:
    call = client.submit("smith", "teller__errs")
    said = call.result(PATIENCE).output
    assert len(said) == 9
    assert all(line.startswith("E_TOOL: progress: ") for line in said)
    progress = call.progress()
    assert progress is not None
    assert (progress.done, progress.total, progress.message) == (1, 2, "right")
