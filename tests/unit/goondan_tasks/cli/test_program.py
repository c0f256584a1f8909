"""The program: its commands, what it imports, how it refuses."""

import importlib
import json
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks import cli
from goondan_tasks.cli.program import COMMANDS, GROUPS, SECTIONS, main, with_values
from tests.unit.goondan_tasks.cli.fake_client import FakeClient
from tests.unit.goondan_tasks.cli.invoke import goondan

_COMPLETE = """
import sys
from goondan_tasks.cli.program import main
sys.argv = ["goondan"]
main()
"""
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
    summaries = GROUPS | {name: place.summary for name, place in COMMANDS.items() if " " not in name}
    width = max(map(len, summaries))
    for name, summary in summaries.items():
        assert f"  {name:<{width}}  {summary}\n" in shown.stdout


def test_help_lists_commands_by_sections_and_group_once() -> None:
    shown = goondan("--help").stdout

    sections = {
        title: list(dict.fromkeys(name.partition(" ")[0] for name in commands))
        for title, commands in SECTIONS.items()
    }
    words = [
        line.split()[0] for line in shown.partition("Get started:")[2].splitlines() if line.startswith("  ")
    ]
    assert words == [name for names in sections.values() for name in names]
    assert len(set(words)) == len(words)
    places = [shown.index(f"\n{title}:\n") for title in SECTIONS]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("worker", "coder"), "worker --agent coder"),
        (("worker", "coder", "reviewer"), "worker --agent coder --agent reviewer"),
        (("dead-letters", "list", "coder"), "dead-letters list --agent coder"),
        (("serve", "coder"), "serve --agent coder"),
        (("serve", "ag-ui", "api"), "serve --door ag-ui --door api"),
    ],
)
def test_agent_or_door_argument_gets_option_hint(words: tuple[str, ...], hint: str) -> None:
    refused = goondan(*words)

    assert refused.exit_code == 2
    assert f"s are named by an option: root {hint}" in " ".join(refused.stderr.split())


@pytest.mark.parametrize("words", [("worker", "a/b"), ("changeset", "list", "coder")])
def test_non_agent_or_optionless_command_has_no_hint(words: tuple[str, ...]) -> None:
    assert "--agent" not in goondan(*words).stderr


@pytest.mark.parametrize("group", GROUPS)
def test_help_of_group_lists_its_commands(group: str) -> None:
    shown = goondan(group, "--help")

    assert shown.exit_code == 0
    for name, place in COMMANDS.items():
        if name.startswith(f"{group} "):
            assert f"  {name.partition(' ')[2]} " in shown.stdout
            assert place.summary in shown.stdout


def test_option_of_another_command_of_group_is_refused() -> None:
    refused = goondan("oauth", "grants", "--port", "3")

    assert refused.exit_code == 2
    assert "No such option" in refused.stderr and "--port" in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("call", "coder", "bash__exec", "--detach", "--timeout", "5"),
            "does not go with --detach",
        ),
        (("validate", "--json", "--format", "github"), "--json goes only with"),
        (("oauth", "login", "app", "--subject", "U1", "--instance", "k"), "--instance goes with --agent"),
        (("dev", "a", "--bundle", "b"), "give the bundle either as BUNDLE or with --bundle"),
        (("rollback", "HEAD~1", "--no-wait", "--timeout", "5"), "does not go with --no-wait"),
        (
            ("changeset", "commit", "c1", "--no-wait", "--timeout", "5"),
            "does not go with --no-wait",
        ),
        (("changeset", "activate", "--no-wait", "--timeout", "5"), "does not go with --no-wait"),
    ],
)
def test_options_without_effect_together_are_refused(arguments: tuple[str, ...], said: str) -> None:
    refused = goondan(*arguments)

    assert refused.exit_code == 2
    assert said in " ".join(refused.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("approvals", "--json", "list"),
        ("approvals", "--agent", "coder", "list", "--json"),
        ("approvals", "--agent=coder", "--json", "list"),
        ("instances", "--json"),
        ("instances", "--agent", "coder", "--json"),
    ],
)
def test_options_may_stand_before_command_of_group(arguments: tuple[str, ...], client: FakeClient) -> None:
    client.records = []

    assert goondan(*arguments).document == []


def test_completion_is_installable_and_knows_group_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert "--install-completion" in goondan("--help").stdout

    monkeypatch.setenv("_GOONDAN_COMPLETE", "complete_bash")
    monkeypatch.setenv("COMP_WORDS", "goondan oauth gr")
    monkeypatch.setenv("COMP_CWORD", "2")
    done = subprocess.run(
        [sys.executable, "-c", _COMPLETE], capture_output=True, text=True, timeout=60, check=False
    )

    assert done.stdout.split() == ["grants"]


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
    shown = goondan(*name.split(), "--help")

    assert shown.exit_code == 0
    assert "--json" in shown.stdout


def test_package_runs_as_program() -> None:
    command = [sys.executable, "-m", "goondan_tasks", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.startswith("goondan ")


def test_ctrl_c_during_import_prints_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(name: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)

    with pytest.raises(SystemExit) as ended:
        cli.main()

    assert ended.value.code == 130


def test_unknown_command_suggests_intended_command() -> None:
    refused = goondan("valdate")

    assert refused.exit_code == 2
    assert "Did you mean 'validate'?" in refused.stderr


def test_missing_command_shows_help_as_usage_error() -> None:
    refused = goondan()

    assert refused.exit_code == 2
    assert "\nCall tools and agents:\n" in refused.stdout + refused.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["valdate", "--json"],
        ["call", "--json"],
        ["calls", "--limit", "0", "--json"],
        ["call", "a", "b", "{", "--json"],
    ],
)
def test_usage_error_is_one_json_document_with_json(
    arguments: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["goondan", *arguments])

    with pytest.raises(SystemExit) as ended:
        main()

    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert json.loads(captured.out)["error"]["code"] == "E_USAGE"
    assert captured.err == ""


def option(name: str, metavar: str | None) -> Any:
    """Make an option as typer describes it."""
    return SimpleNamespace(param_type_name="option", opts=[name], metavar=metavar)


WATCH, AGENT = option("--watch", "[SECONDS]"), option("--agent", "A")
ARGUMENT = SimpleNamespace(param_type_name="argument", opts=["key"], metavar="[KEY]")


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ("--watch", "--watch="),
        ("--watch 5", "--watch=5"),
        ("--watch=5", "--watch=5"),
        ("--watch -1", "--watch=-1"),
        ("--watch --json", "--watch= --json"),
        ("--agent a --watch 5 --json", "--agent a --watch=5 --json"),
        ("--agent", "--agent"),
        ("-- --watch 5", "-- --watch 5"),
        ("", ""),
    ],
)
def test_option_takes_following_value_or_empty_value(given: str, read: str) -> None:
    assert with_values(given.split(), [WATCH, AGENT]) == read.split()


def test_argument_is_not_value() -> None:
    assert with_values(["--watch", "order-7"], [WATCH, ARGUMENT]) == ["--watch=", "order-7"]
    assert with_values(["order-7", "--watch=5"], [WATCH, ARGUMENT]) == ["order-7", "--watch=5"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("calls", "--status", "runing"),
            "must be one of scheduled, queued, waiting, running, lost, pending, done, dead, ok, error; "
            "'runing' is not. Did you mean running?",
        ),
        (("approvals", "x"), "must be one of list, approve, deny; 'x' is not."),
        (("calls", "--limit", "many"), "'--limit': must be a whole number, not 'many'."),
        (("calls", "--limit", "0"), "must be at least 1, not '0'."),
        (("calls", "--limit", "5000"), "must be at most 1000, not '5000'."),
    ],
)
def test_impossible_value_is_refused_naming_possible_ones(arguments: tuple[str, ...], said: str) -> None:
    done = goondan(*arguments)

    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
