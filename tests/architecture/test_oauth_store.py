"""Who may write into the OAuth store."""

import ast

import pytest

from tests.architecture.sources import python_sources

_WRITES = {
    "replace_grant",
    "forget",
    "open_session",
    "advance",
    "complete",
    "encrypt_again",
}
#: what people do at the command line and in the console; no tool or extension is given a client
_BY_HAND = {"goondan_tasks.cli.oauth", "goondan_tasks.client.bundles"}
#: what hands the store to the manager and the callback, and what is given the manager with it
_ROOTS = {
    "goondan_tasks.connectors.running",
    "goondan_tasks.cli.oauth",
    "goondan_tasks.client.bundles",
    "goondan_tasks.oauth.consent",
    "goondan_web.doors.oauth",
    "workers.oauth",
}


def _writers() -> set[str]:
    """Return the modules in which a method of a ``store`` is called that writes."""
    return {
        source.module
        for source in python_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.Attribute) and node.attr in _WRITES and "store" in ast.unparse(node.value)
    }


@pytest.mark.requirement("oauth.sole-writer")
def test_only_oauth_manager_and_its_parts_write_store() -> None:
    outside = {module for module in _writers() if not module.startswith("goondan_tasks.oauth.")}

    assert _writers() >= {"goondan_tasks.oauth.consent", "goondan_tasks.oauth.manager"}
    assert outside <= _BY_HAND


@pytest.mark.requirement("oauth.store.no-direct-access")
def test_tools_and_extensions_cannot_reach_oauth_store() -> None:
    openers = {
        source.module
        for source in python_sources()
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ImportFrom)
        and {"open_store", "open_manager"} & {alias.name for alias in node.names}
    }

    assert openers == _ROOTS
