"""``goondan mcp-server``: what keeps it from starting. That it serves is seen with real clients."""

import sys

import pytest

from tests.unit.goondan_tasks.cli.invoke import goondan


def test_without_the_extra_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [name for name in sys.modules if name.startswith("goondan_tasks.mcp_server")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, "mcp.server.context", None)

    done = goondan("mcp-server", "--agent", "coder")

    assert done.exit_code == 3
    assert "pip install 'goondan-workers[mcp]'" in done.stderr


def test_an_address_without_http_is_a_mistake() -> None:
    done = goondan("mcp-server", "--agent", "coder", "--address", "0.0.0.0")

    assert (done.exit_code, "--http" in done.stderr) == (2, True)
