"""The built-in extension ``logging``."""

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from goondan_tasks.contract.errors import ExtensionInitError
from tests.unit.goondan_tasks.bundle.writing import TOOL, write
from workers.builtin.logging import redacted, redacted_text
from workers.testing import run_tool

AGENT = """\
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { tools: [Tool/echo], extensions: [{ ref: Extension/logging, config: %s }] }
"""
HANDLERS = """\
def run(ctx, input):
    if "fail" in input:
        raise ValueError(input["fail"])
    return input

handlers = {"run": run}
"""


def logged(tmp_path: Path, config: str = "{}", **args: Any) -> list[Any]:
    folder = write(tmp_path, {"goondan.yaml": TOOL + AGENT % config, "echo.py": HANDLERS})
    with capture_logs() as logs:
        run_tool(folder, "coder", "echo__run", args, state_root=tmp_path / "state")
    return [line for line in logs if line.get("extension") == "logging" and "tool" in line]


def test_call_is_logged_at_beginning_and_end(tmp_path: Path) -> None:
    called, completed = logged(tmp_path, password="hunter2")

    assert (called["event"], called["log_level"], called["tool"]) == ("tool.called", "info", "echo__run")
    assert "args" not in called
    assert (completed["event"], completed["status"]) == ("tool.completed", "ok")
    assert completed["duration_ms"] >= 0
    assert called["tool_call_id"] == completed["tool_call_id"]


def test_requested_arguments_are_logged_without_secrets(tmp_path: Path) -> None:
    called, _ = logged(tmp_path, "{ includeToolArgs: true, level: debug }", password="hunter2", city="Seoul")

    assert called["log_level"] == "debug"
    assert called["args"] == {"password": "***", "city": "Seoul"}


def test_failure_is_logged_without_secrets_and_propagates(tmp_path: Path) -> None:
    _, failed = logged(tmp_path, fail="token=abc was refused")

    assert (failed["event"], failed["log_level"], failed["error"]) == ("tool.failed", "warning", "ValueError")
    assert failed["reason"] == "token=*** was refused"


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ("{ level: loud }", "level is one of debug, info, warning, error, not 'loud'"),
        ("{ includeToolArgs: 1 }", "includeToolArgs is true or false, not 1"),
        ("{ includeArgs: true }", "config has no field 'includeArgs'"),
    ],
)
def test_wrong_config_is_refused(tmp_path: Path, config: str, said: str) -> None:
    with pytest.raises(ExtensionInitError) as raised:
        logged(tmp_path, config)

    assert said in raised.value.message


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ({"apiKey": "a", "API_KEY": 1, "api-key": ["a"]}, {"apiKey": "*", "API_KEY": "*", "api-key": "*"}),
        ({"headers": [{"Authorization": "Bearer a"}]}, {"headers": [{"Authorization": "*"}]}),
        ({"max_tokens": 5, "password": None}, {"max_tokens": 5, "password": None}),
        ({"auth": {"user": "a"}, "author": "b"}, {"auth": "*", "author": "b"}),
        ([["client_secret: a"]], [["client_secret: *"]]),
        ((1, 2.5, True, None), [1, 2.5, True, None]),
    ],
)
def test_values_of_secret_looking_keys_are_omitted(value: Any, shown: Any) -> None:
    assert redacted(value) == _starred(shown)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("curl -H 'Authorization: Bearer abcdefgh'", "curl -H 'Authorization: *'"),
        ('{"apiKey": "sk-1", "b": 1}', '{"apiKey": "*", "b": 1}'),
        ("psql postgres://me:pw@host/db", "psql postgres://*@host/db"),
        ("https://host/x?access_key=1&b=2", "https://host/x?access_key=*&b=2"),
        ("bearer 0123456789abc", "bearer *"),
        ("nothing of the kind", "nothing of the kind"),
    ],
)
def test_secrets_in_text_are_left_out(text: str, shown: str) -> None:
    assert redacted_text(text) == _starred(shown)


def test_long_or_deep_value_is_cut() -> None:
    deep: Any = "end"
    for _ in range(50):
        deep = [deep]

    assert len(redacted_text("x" * 5_000)) == 1_001
    assert redacted(list(range(100)))[-1] == "…"
    assert redacted({str(n): n for n in range(60)})["…"] == 10
    assert "end" not in str(redacted(deep))


def _starred(shown: Any) -> Any:
    """Write the mark of what was left out where the table has a star."""
    if isinstance(shown, str):
        return shown.replace("*", "***")
    if isinstance(shown, dict):
        return {key: _starred(value) for key, value in shown.items()}
    return [_starred(value) for value in shown] if isinstance(shown, list) else shown
