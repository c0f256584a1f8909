"""Text from calls, workers and tools that tries to control the terminal or to forge lines."""

import json

import pytest
from rich.table import Table
from rich.text import Text

from broker_config import serializer
from goondan_tasks.cli.output import Answer, Screen, error_text, make_table
from goondan_tasks.contract.messages import ToolCallError
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, FakeClient, queue_status, record, result, worker
from tests.unit.goondan_tasks.cli.invoke import goondan

#: erases the screen and writes another line
HOSTILE = "E_X\x1b[2J\x9b1m\r\nok  all is well\u202e"


@pytest.fixture
def hostile(client: FakeClient) -> FakeClient:
    """Let a call and its worker have hostile texts wherever there are any."""
    error = ToolCallError(code=HOSTILE, name=HOSTILE, message=HOSTILE, suggestion=HOSTILE, help_url=HOSTILE)
    ended = result("error", error=error.to_wire())
    call = record().call.model_copy(
        update={"tool_name": HOSTILE, "instance_key": HOSTILE, "correlation_id": HOSTILE}
    )
    fields = {"call": call, "worker": HOSTILE, "outcome": "error", "attempt": 2, "claimed_at": 1}
    stored = serializer.encode(ended.to_wire())
    client.answer = ended
    client.records = [record("done", **fields, finished_at=2, result=stored)]
    client.worker_records = [worker(HOSTILE)]
    client.queue_rows = [queue_status("coder", lost=1, lost_with=(HOSTILE,), lost_seconds=1.0)]
    return client


@pytest.mark.parametrize(
    "command", [f"show {CALL_ID}", f"result {CALL_ID}", "calls", "agents", "queues", "dead-letters list"]
)
def test_hostile_text_reaches_terminal_only_as_escapes(hostile: FakeClient, command: str) -> None:
    done = goondan(*command.split())

    shown = done.stdout + done.stderr
    assert shown
    assert [char for char in shown if not (char.isprintable() or char == "\n")] == []


@pytest.mark.parametrize("command", [f"show {CALL_ID}", f"result {CALL_ID}", "calls", "agents", "queues"])
def test_hostile_text_in_json_is_escaped_losslessly(hostile: FakeClient, command: str) -> None:
    shown = goondan(*command.split(), "--json").stdout

    assert [char for char in shown if not (char.isprintable() or char == "\n")] == []
    texts = repr(json.loads(shown))
    assert repr(HOSTILE)[1:-1] in texts


@pytest.mark.parametrize("command", [f"show {CALL_ID}", "calls", "queues"])
def test_newline_in_name_or_code_forges_no_line(hostile: FakeClient, command: str) -> None:
    known = hostile.records[0]
    plain = result("error", error={"code": HOSTILE, "name": "X", "message": "m"})
    ended = {"outcome": "error", "finished_at": 2, "result": serializer.encode(plain.to_wire())}
    hostile.records = [record("done", call=known.call, worker=HOSTILE, **ended)]

    lines = goondan(*command.split()).stdout.splitlines()

    assert lines
    assert [line for line in lines if line.startswith("ok  all is well")] == []


@pytest.mark.parametrize(
    "content",
    [
        HOSTILE,
        Text(HOSTILE),
        make_table(["name"], [[Text(HOSTILE, style="red")], [HOSTILE]]),
        error_text(HOSTILE, HOSTILE, HOSTILE, HOSTILE),
        Answer(None, Text(HOSTILE), (HOSTILE,)).drawn(),
    ],
    ids=["text", "styled", "table", "error", "drawn"],
)
def test_screen_escapes_whatever_it_shows(content: str | Text | Table) -> None:
    screen = Screen()
    with screen.capture() as shown:
        screen.print(content)

    assert "\\x1b[2J" in shown.get()
    assert [char for char in shown.get() if not (char.isprintable() or char == "\n")] == []
