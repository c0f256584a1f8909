"""What an import brings along. The direction of imports is held by import-linter (``make contracts``)."""

import json
import subprocess
import sys

import pytest

from tests.architecture.sources import ROOT, python_sources

BROKER_LIBRARIES = {"celery", "kombu", "redis"}
AUTHORING_API = (
    "goondan_tasks.bundle",
    "goondan_tasks.entry",
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
# libraries are loaded once, before the forks: what matters is the order of our own modules
_IMPORT_EACH_FIRST = """
import gc, importlib, os, sys
import celery, celery.bin.worker, jsonschema_rs, kombu, pydantic_settings, redis, rich, structlog, typer, yaml
import authlib.oauth2.rfc6749, httpx2, joserfc.jwt, mcp.server, starlette.applications, uvicorn
gc.freeze()  # a child that collects copies all it has of its parent
gc.disable()
running = {}
def reap():
    process, status = os.wait()
    module = running.pop(process)
    if status:
        print(module)
for module in sys.argv[1:]:
    if len(running) == os.cpu_count():
        reap()
    process = os.fork()
    if process == 0:
        importlib.import_module(module)
        os._exit(0)
    running[process] = module
while running:
    reap()
"""


def python(program: str, *arguments: str, seconds: float = 100) -> str:
    """Run a program in a process of its own and return what it prints; warnings are errors."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    if done.stderr:
        pytest.fail(done.stderr)
    return done.stdout


def loaded_by(module: str) -> set[str]:
    """Return the packages that importing ``module`` loads."""
    return set(json.loads(python(_LOADED_BY, module)))


@pytest.mark.parametrize("module", AUTHORING_API)
def test_the_authoring_api_loads_neither_celery_nor_redis(module: str) -> None:
    assert loaded_by(module) & BROKER_LIBRARIES == set()


def test_the_check_sees_celery_where_it_is_loaded() -> None:
    assert "celery" in loaded_by("goondan_tasks.celery")


@pytest.mark.timeout(300)
def test_every_module_can_be_imported_first() -> None:
    assert python(_IMPORT_EACH_FIRST, *MODULES, seconds=280) == ""


def test_a_module_that_cannot_be_imported_is_seen() -> None:
    with pytest.raises(pytest.fail.Exception, match="no_such_module"):
        python(_IMPORT_EACH_FIRST, "goondan_tasks.no_such_module")
