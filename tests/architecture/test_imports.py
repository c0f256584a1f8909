"""What an import brings along. The direction of imports is held by import-linter (``make contracts``)."""

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.architecture.sources import ROOT, python_sources

BROKER_LIBRARIES = {"celery", "kombu", "redis"}
AUTHORING_API = (
    "goondan_tasks.bundle",
    "goondan_tasks.errors",
    "goondan_tasks.extension_api",
    "goondan_tasks.messages",
    "goondan_tasks.names",
    "goondan_tasks.schema",
    "goondan_tasks.tool_api",
)
# importing a __main__ runs the program
MODULES = [source.module for source in python_sources() if not source.module.endswith(".__main__")]

_LOADED_BY = """
import importlib, json, sys
importlib.import_module(sys.argv[1])
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
"""


def imported_alone(module: str) -> "subprocess.CompletedProcess[str]":
    """Import ``module`` in a process of its own, which prints the packages that are loaded then."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", _LOADED_BY, module],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def loaded_by(module: str) -> set[str]:
    """Return the packages that importing ``module`` loads."""
    done = imported_alone(module)
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize("module", AUTHORING_API)
def test_the_authoring_api_loads_neither_celery_nor_redis(module: str) -> None:
    assert loaded_by(module) & BROKER_LIBRARIES == set()


def test_the_check_sees_celery_where_it_is_loaded() -> None:
    assert "celery" in loaded_by("goondan_tasks.celery")


@pytest.mark.timeout(300)
def test_every_module_can_be_imported_alone_and_first() -> None:
    with ThreadPoolExecutor(max_workers=4) as pool:
        outcomes = dict(zip(MODULES, pool.map(imported_alone, MODULES), strict=True))

    assert {module: done.stderr for module, done in outcomes.items() if done.returncode} == {}
