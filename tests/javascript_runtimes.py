"""Node and Bun for tests: what is installed here, and what is not."""

import pytest

from goondan_tasks.machine.javascript import Runtime, find_runtime

NAMES = ("node", "bun")


def runtime(name: str) -> Runtime:
    """Return Node or Bun; skips the test where it is missing."""
    found = find_runtime(name)
    if found is None:
        pytest.skip(f"{name} is not on PATH, or too old")
    return found
