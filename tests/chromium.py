"""The browser of the machine, for tests of pages."""

import shutil

import pytest

#: in a container it has no sandbox of its own
ARGUMENTS = ["--no-sandbox"]


def chromium() -> str:
    """Return the path of Chromium; skips the test where there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("no Chromium is on PATH")
    return found
