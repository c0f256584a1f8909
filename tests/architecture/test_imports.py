"""What an import brings along. The direction of imports is held by import-linter (``make contracts``)."""

import ast
import json
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from tests.architecture.imports import imports_of, longest_chain, named_imports
from tests.architecture.sources import ROOT, Source, python_sources

BROKER_LIBRARIES = {"celery", "kombu", "redis"}
AUTHORING_API = (
    "goondan_tasks.bundle",
    "goondan_tasks.authoring.entry",
    "goondan_tasks.contract.errors",
    "goondan_tasks.authoring.extension_api",
    "goondan_tasks.contract.messages",
    "goondan_tasks.contract.names",
    "goondan_tasks.contract.schema",
    "goondan_tasks.authoring.tool_api",
)
#: what extras bring that no start of a worker or of a command may need
RARE = {"authlib", "flower", "joserfc", "mcp", "prometheus_client", "starlette", "uvicorn", "watchfiles"}
WORKER = {"celery", "httpx2", "kombu"}
COMMANDS = {"rich", "typer"}
#: the profile of the older version, and the modules at which it is plugged in
OLDER_VERSION = (
    "workers.v1",
    "goondan_tasks.v1_api",
    "goondan_tasks.authoring.v1_api",
    "goondan_tasks.bundle.v1_resources",
)
OLDER_VERSION_SEAMS = {
    "goondan_tasks.bundle.inventory",
    "workers.contexts",
    "workers.extensions.pipelines",
    "workers.javascript.middleware_context",
    "workers.javascript.tools",
    "workers.javascript.v1_context",
    "workers.revisions.factory",
}
#: how many modules the longest chain of imports may have
DEEPEST = 22
#: what of the extras each module may not load, after those above it
WITHOUT = {
    **dict.fromkeys(AUTHORING_API, BROKER_LIBRARIES),
    "goondan_tasks.client": RARE | WORKER | COMMANDS,
    "goondan_tasks.testing": RARE | WORKER | COMMANDS,
    "goondan_tasks.cli.dev": RARE | WORKER,
    "goondan_tasks.cli.doors": RARE | WORKER,
    "goondan_tasks.cli.oauth": RARE | WORKER,
    "goondan_tasks.cli.servers": RARE | WORKER,
    "workers.tasks": RARE,
}
_LOADED_BY = """
import importlib, json, sys
loaded = {}
for module in sys.argv[1:]:
    before = set(sys.modules)
    importlib.import_module(module)
    loaded[module] = sorted({name.partition(".")[0] for name in set(sys.modules) - before})
print(json.dumps(loaded))
"""


@cache
def loaded() -> dict[str, list[str]]:
    """Import these one after another and return which packages each brings; warnings are errors."""
    modules = [*WITHOUT, "goondan_tasks.oauth.provider"]
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", _LOADED_BY, *modules],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    if done.stderr:
        pytest.fail(done.stderr)
    packages: dict[str, list[str]] = json.loads(done.stdout)
    return packages


@pytest.mark.parametrize("module", WITHOUT)
def test_libraries_are_loaded_where_they_are_needed(module: str) -> None:
    assert WITHOUT[module].intersection(loaded()[module]) == set()


@pytest.mark.parametrize(
    ("module", "library"), [("workers.tasks", "celery"), ("goondan_tasks.oauth.provider", "joserfc")]
)
def test_check_sees_library_where_it_is_loaded(module: str, library: str) -> None:
    assert library in loaded()[module]


def cycle_in(imports: Mapping[str, set[str]]) -> list[str]:
    """Return modules that import one another, so that not each of them can be imported first."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        cycle: list[str] = error.args[1]
        return cycle
    return []


def test_every_module_can_be_imported_first() -> None:
    sources = python_sources()
    names = {source.module for source in sources}
    assert cycle_in({source.module: imports_of(source, names) for source in sources}) == []


def test_chains_of_imports_are_short() -> None:
    sources = python_sources()
    names = {source.module for source in sources}
    chain = longest_chain({source.module: named_imports(source, names) for source in sources})
    assert len(chain) <= DEEPEST, chain


def test_longest_chain_of_imports_is_found() -> None:
    imports = {"door": {"till", "drawer"}, "till": {"drawer"}, "drawer": set[str](), "sign": {"drawer"}}
    assert longest_chain(imports) == ["door", "till", "drawer"]


@pytest.mark.parametrize(
    ("door", "till", "drawer"),
    [
        ("from shop.till import count", "import shop.door", ""),
        ("from shop.till.drawer import count", "from shop import door", ""),
        ("if True:\n    import shop.till.drawer", "from shop.door import opened", ""),
        ("import shop.till", "class Till:\n    from shop.door import opened", ""),
        ("", "import shop.till.drawer", "from shop.till import count"),
    ],
)
def test_modules_that_import_one_another_are_seen(door: str, till: str, drawer: str) -> None:
    assert len(cycle_in(shop(door, till, drawer))) > 2


@pytest.mark.parametrize(
    "till",
    [
        "def later():\n    import shop.door",
        "if TYPE_CHECKING:\n    import shop.door",
        "from shop.till import drawer",
        "",
    ],
)
def test_deferred_or_unexecuted_import_is_no_cycle(till: str) -> None:
    assert cycle_in(shop("import shop.till", till, "")) == []


def shop(door: str, till: str, drawer: str) -> dict[str, set[str]]:
    """Return what the modules of a made-up package import."""
    texts = {
        "shop/__init__.py": "",
        "shop/door.py": door,
        "shop/till/__init__.py": till,
        "shop/till/drawer.py": drawer,
    }
    sources = [Source(Path(path), text, ast.parse(text)) for path, text in texts.items()]
    names = {source.module for source in sources}
    return {source.module: imports_of(source, names) for source in sources}


def _is_older(module: str) -> bool:
    return module.startswith(OLDER_VERSION)


def test_older_version_is_imported_only_at_its_seams() -> None:
    importers = {
        source.module
        for source in python_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom) and _is_older(node.module or "")
    }

    assert {module for module in importers if not _is_older(module)} == OLDER_VERSION_SEAMS
