"""npm packages for tests: installed once from a folder's ``package.json``, which pins them."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

_INSTALL_SECONDS = 240
_OPTIONS = ("--ignore-scripts", "--engine-strict", "--no-package-lock", "--no-audit", "--no-fund")


def node_modules(folder: Path) -> Path:
    """Return a ``node_modules`` with what ``folder/package.json`` names.

    It is made below the user's cache directory when it is first asked for; the test is skipped, with the
    reason, where there is no node or npm, or where npm cannot install.
    """
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed")
    manifest = (folder / "package.json").read_bytes()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "goondan-tests"
    place = cache / hashlib.sha256(manifest).hexdigest()[:16]
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (place / "installed").exists():
            (place / "package.json").write_bytes(manifest)
            _install(place)
            (place / "installed").touch()
    return place / "node_modules"


def _install(place: Path) -> None:
    command = ["npm", "install", *_OPTIONS]
    try:
        subprocess.run(command, cwd=place, check=True, timeout=_INSTALL_SECONDS, capture_output=True)
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode(errors="replace").splitlines()
        reason = " ".join(line for line in said if line.startswith("npm error"))
        pytest.skip(f"npm cannot install {place / 'package.json'}: {reason[:300]}")
    except subprocess.TimeoutExpired:
        pytest.skip(f"npm has not installed {place / 'package.json'} within {_INSTALL_SECONDS} s")
