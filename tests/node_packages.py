"""Node packages for tests: installed once for each package.json, and kept in the user's cache."""

import fcntl
import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from goondan_tasks.machine.javascript import find_runtime, missing_runtime

FOLDERS = Path(__file__).parent / "node"
#: for the largest of them over a slow line
INSTALL_SECONDS = 240
#: what npm says when the registry cannot be reached
_OFFLINE = re.compile(r"\b(ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH|E40[13])\b")


def node_modules(folder: str) -> Path:
    """Return the ``node_modules`` of ``tests/node/<folder>/package.json``.

    Skips the test, and says why, where Node, npm or the registry is missing.
    """
    place = _installed(folder)
    if isinstance(place, str):
        pytest.skip(place)
    return place


def node() -> str:
    """Return the path of a Node that the product can use; skips the test where there is none."""
    found = find_runtime("node")
    if found is None:
        pytest.skip(missing_runtime("node"))
    return found.program


@functools.cache
def _installed(folder: str) -> Path | str:
    """Install a folder's packages unless they are there; return why that cannot be."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            return f"{program} is not on PATH"
    manifest = (FOLDERS / folder / "package.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "goondan-workers" / "node"
    place = cache / f"{folder}-{hashlib.sha256(manifest).hexdigest()[:16]}"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # tests run in several processes
        if not place.exists():
            with tempfile.TemporaryDirectory(dir=cache) as draft:
                Path(draft, "package.json").write_bytes(manifest)
                fault = _install(draft)
                if fault:
                    return fault
                Path(draft, "done").mkdir()
                for name in ("package.json", "node_modules"):
                    Path(draft, name).rename(Path(draft, "done", name))
                Path(draft, "done").rename(place)
    return place / "node_modules"


def _install(place: str) -> str:
    """Run npm; return what keeps it from the registry, if anything does."""
    try:
        done = subprocess.run(
            [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--no-package-lock",
                "--fetch-retries=1",
                "--fetch-timeout=30000",
            ],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"npm has not installed the packages within {INSTALL_SECONDS} s"
    offline = _OFFLINE.search(done.stderr)
    if done.returncode != 0 and offline is not None:
        return f"npm cannot reach its registry ({offline.group()})"
    assert done.returncode == 0, done.stderr
    return ""
