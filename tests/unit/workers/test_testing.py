"""One call without Redis: what a handler may use of its context."""

from pathlib import Path

from workers.testing import run_tool

WORKSHOP = Path(__file__).parents[2] / "bundles" / "workshop"


def test_progress_is_checked_as_in_a_worker(tmp_path: Path) -> None:
    said = run_tool(WORKSHOP, "smith", "teller__errs", state_root=tmp_path).output
    assert len(said) == 10
    assert said[0] == "E_TOOL: progress: done must be a number from 0 to 2**53."


def test_a_call_is_not_cancelled_and_may_tell_of_its_progress(tmp_path: Path) -> None:
    (tmp_path / "guest").touch()
    args = {"steps": 5, "place": str(tmp_path)}
    assert run_tool(WORKSHOP, "smith", "teller__counts", args, state_root=tmp_path / "s").output == "counted"
    told = run_tool(WORKSHOP, "smith", "echo__context", state_root=tmp_path / "s").output
    assert told["cancelled"] is False
