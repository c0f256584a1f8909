"""`goondan connectors show` and `copy`."""

import json
from pathlib import Path

import pytest

from goondan_tasks.bundle import load_bundle
from tests.unit.goondan_tasks.cli.invoke import goondan

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: clerk }
---
apiVersion: goondan.ai/v1
kind: Connection
metadata: { name: bot }
spec: { connectorRef: Connector/telegram }
"""


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    (tmp_path / "goondan.yaml").write_text(BUNDLE)
    return tmp_path


def test_list_says_what_each_connector_does() -> None:
    rows = {one["name"]: one["about"] for one in json.loads(goondan("connectors", "show", "--json").stdout)}

    assert {"cli", "cron", "telegram"} <= set(rows)
    assert rows["telegram"] == (
        "Receives the messages that a Telegram bot is sent, by long polling of getUpdates"
    )
    assert all(0 < len(about) < 120 for about in rows.values())


def test_connector_is_shown_with_declaration_and_code() -> None:
    shown = goondan("connectors", "show", "telegram").stdout

    assert "kind: Connector" in shown
    assert "def connect(ctx: ConnectorContext)" in shown


def test_copy_takes_place_of_built_in_connector(bundle: Path) -> None:
    done = goondan("connectors", "copy", "telegram", "--bundle", str(bundle))

    copied = bundle / "connectors" / "telegram.py"
    assert done.exit_code == 0
    assert f"wrote {copied}" in done.stdout
    assert load_bundle(bundle).bound_connector("bot").entry_path == copied


def test_copy_overwrites_nothing(bundle: Path) -> None:
    (bundle / "connectors").mkdir()
    (bundle / "connectors" / "telegram.py").write_text("mine")
    done = goondan("connectors", "copy", "telegram", "--bundle", str(bundle))

    assert done.exit_code == 2
    assert "exists already; nothing was written" in done.stderr
    assert [file.name for file in (bundle / "connectors").iterdir()] == ["telegram.py"]


def test_route_of_built_in_connectors_event_is_shown(bundle: Path) -> None:
    event = (
        '{"name": "telegram_message", "message": {"type": "text", "text": "hi"}, "instanceKey": "telegram:7"}'
    )
    shown = goondan("connectors", "test", "bot", "--event", event, "--bundle", str(bundle))

    assert shown.stdout == "clerk@telegram:7 by no rule: the entry agent\n"


@pytest.mark.parametrize("command", ["show", "copy"])
def test_misspelt_name_is_guessed(bundle: Path, command: str) -> None:
    more = ["--bundle", str(bundle)] if command == "copy" else []
    failed = goondan("connectors", command, "telegramm", *more)

    assert failed.exit_code == 3
    assert "Did you mean 'telegram'?" in failed.stderr
