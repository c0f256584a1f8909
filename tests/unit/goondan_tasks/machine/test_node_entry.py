"""How the host describes what JavaScript throws (``goondan_tasks/machine/node/entry.mjs``)."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

import goondan_tasks
from tests.javascript_runtimes import NAMES, runtime

ENTRY = Path(goondan_tasks.__file__).parent / "machine" / "node" / "entry.mjs"


def described(name: str, folder: Path, thrown: str) -> Any:
    file = folder / "described.mjs"
    file.write_text(
        f"import {{ describe }} from '{ENTRY.as_uri()}';\n"
        f"console.log(JSON.stringify({{ ...describe({thrown}) }}));\n",
        encoding="utf-8",
    )
    done = subprocess.run([runtime(name).program, str(file)], capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", NAMES)
def test_aggregate_error_shows_inner_codes_and_messages(name: str, tmp_path: Path) -> None:
    inner = "new AggregateError([Object.assign(new Error('full'), { code: 'ENOSPC' })], 'later')"
    error = described(name, tmp_path, f"new AggregateError([new TypeError('odd'), {inner}], 'both failed')")

    assert error["message"] == "both failed: TypeError: odd; ENOSPC: full"
    assert "code" not in error


@pytest.mark.parametrize("name", NAMES)
def test_aggregate_error_that_holds_itself_is_described(name: str, tmp_path: Path) -> None:
    circle = "(() => { const e = new AggregateError([], 'round'); e.errors.push(e); return e; })()"

    assert described(name, tmp_path, circle)["message"].startswith("round")
