"""One call without Redis: what a handler may use of its context."""

import subprocess
import sys
from pathlib import Path
from typing import Any, cast

import pytest

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


def test_a_misspelt_field_is_refused_as_a_client_does() -> None:
    fields = cast(Any, {"instance": "issue-42"})
    with pytest.raises(
        TypeError, match="unexpected keyword argument 'instance'; did you mean 'instance_key'"
    ):
        run_tool(WORKSHOP, "smith", "echo__args", **fields)


def test_the_log_of_a_call_that_fails_shows_no_local_variables(tmp_path: Path) -> None:
    code = (
        "import sys; from workers.testing import run_tool; "
        "run_tool(sys.argv[1], 'smith', 'odd__raises', {'kind': 'value', 'message': 'cold'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(WORKSHOP)], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout == ""
    assert done.stderr.count("ValueError: cold") == 1
    assert "locals" not in done.stderr
