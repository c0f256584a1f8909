"""The program: its commands, what it imports, how it refuses."""

import importlib
import json
import subprocess
import sys

import pytest

from goondan_tasks import cli
from goondan_tasks.cli.commands import COMMANDS
from goondan_tasks.cli.program import main
from tests.unit.goondan_tasks.cli.invoke import goondan

_HELP = """
import sys
from goondan_tasks.cli.program import main
sys.argv = ["goondan", "--help"]
try:
    main()
finally:
    print(sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def test_help_lists_every_command_with_its_summary_uncut() -> None:
    shown = goondan("--help")

    assert shown.exit_code == 0
    width = max(map(len, COMMANDS))
    for name, place in COMMANDS.items():
        assert f"  {name:<{width}}  {place.summary}\n" in shown.stdout


@pytest.mark.parametrize("command", [(), ("call",)])
def test_help_has_its_short_form(command: tuple[str, ...]) -> None:
    assert goondan(*command, "-h") == goondan(*command, "--help")


def test_help_imports_no_command_and_nothing_heavy() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _HELP], capture_output=True, text=True, timeout=60, check=True
    )

    loaded = set(json.loads(done.stderr.replace("'", '"')))
    assert loaded & {"celery", "kombu", "redis", "pydantic", "rich", "structlog", "yaml"} == set()


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_help_and_takes_json(name: str) -> None:
    shown = goondan(name, "--help")

    assert shown.exit_code == 0
    assert "--json" in shown.stdout


@pytest.mark.parametrize("module", ["goondan_tasks", "goondan_tasks.cli"])
def test_the_packages_run_as_programs(module: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", module, "--version"], capture_output=True, text=True, timeout=60, check=True
    )

    assert done.stdout.startswith("goondan ")


def test_ctrl_c_while_the_program_is_imported_is_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)

    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert ended.value.code == 130


def test_an_unknown_command_is_answered_with_the_one_that_was_meant() -> None:
    refused = goondan("valdate")

    assert refused.exit_code == 2
    assert "Did you mean 'validate'?" in refused.stderr


def test_without_a_command_the_help_is_shown_and_the_usage_is_wrong() -> None:
    refused = goondan()

    assert refused.exit_code == 2
    assert "Commands:" in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["valdate", "--json"],
        ["call", "--json"],
        ["calls", "--limit", "0", "--json"],
        ["call", "a", "b", "{", "--json"],
    ],
)
def test_a_usage_error_is_one_json_document_with_json(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["goondan", *arguments])

    with pytest.raises(SystemExit) as ended:
        main()

    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert json.loads(captured.out)["error"]["code"] == "E_USAGE"
    assert captured.err == ""
