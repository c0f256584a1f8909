"""The lines of a worker's log that are about a call can be joined: each says which call, run and trace."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.contract.messages import CallLogFields, ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.waiting import wait_until

LOG_LINES_BUNDLE = Path(__file__).parent.parent / "bundles" / "log-lines"
PATIENCE = 60

Line = dict[str, str]


def read_json(text: str) -> list[Line]:
    """Read the lines of a log of JSON; anything else in it is a mistake."""
    return [{name: str(value) for name, value in json.loads(line).items()} for line in text.splitlines()]


def read_console(text: str) -> list[Line]:
    """Read the lines of a log for people; those of a traceback belong to the line before."""
    lines = [re.match(r"\S+Z \[\w+ *\] (\S+)(.*)", line) for line in text.splitlines()]
    return [
        {**dict(re.findall(r"(\w+)=(\S+)", line[2])), "event": line[1]} for line in lines if line is not None
    ]


def expected(result: ToolCallResult) -> Line:
    fields: dict[str, Any] = CallLogFields.of_result(result)._asdict()
    return {name: str(value) for name, value in fields.items()}


@pytest.mark.parametrize(("log_format", "read"), [("json", read_json), ("console", read_console)])
def test_each_call_line_names_call_run_and_trace(log_format: str, read: Callable[[str], list[Line]]) -> None:
    with LocalStack(LOG_LINES_BUNDLE, concurrency=2, environment={"GOONDAN_LOG_FORMAT": log_format}) as stack:
        lines_of: dict[str, list[Line]] = {}
        results = [
            stack.client.call("host", tool, instance_key="k-1", correlation_id=f"corr-{n}", timeout=PATIENCE)
            for n, tool in enumerate(("say__twice", "apart__plainly", "say__plainly", "say__later"))
        ]
        [worker] = stack.workers

        def have_ended() -> bool:
            for result in results:
                lines_of[result.meta.id] = [
                    line for line in read(stack.log(worker)) if is_about(line, result)
                ]
            return all(any(line["event"] == "call.finished" for line in one) for one in lines_of.values())

        wait_until(have_ended, show=lambda: stack.log(worker))
        stack.redis.process.kill()
        wait_until(lambda: "Redis accepts no commands" in stack.log(worker), show=lambda: stack.log(worker))
        others = [line for line in read(stack.log(worker)) if "call_id" not in line]

    for result in results:
        assert result.status == "ok"
        for line in lines_of[result.meta.id]:
            is_last = result.tool_name != "say__twice" or line["event"] == "call.finished"
            its = expected(result) | ({} if is_last else {"attempt": line.get("attempt", "")})
            assert its.items() <= line.items(), line
    kinds = [[line["event"].partition(" ")[0] for line in lines] for lines in lines_of.values()]
    said = ["said.by-context", "said.by-logging", "said.by-structlog", "said.with-traceback"]
    assert [sorted(one) for one in kinds] == [
        sorted([*said, "call.raised", "call.put_off", *said, "call.finished"]),
        sorted([*said, "call.finished"]),
        sorted([*said, "call.finished"]),
        sorted([*said, *said, "call.finished"]),
    ]
    codes = [line["code"] for line in lines_of[results[0].meta.id] if line["event"] == "call.put_off"]
    assert codes == ["E_TOOL"]
    attempts = {line["attempt"] for line in lines_of[results[0].meta.id]}
    assert attempts == {"1", "2"}
    assert any("takes" in line["event"] or "Redis" in line["event"] for line in others)


def is_about(line: Line, result: ToolCallResult) -> bool:
    """Return whether a line is about a call: it has its id, or the call's handler says so."""
    ids = (line.get("call_id"), line.get("said"), line["event"].rpartition("said=")[2])
    return result.meta.id == ids[0] or result.tool_call_id in ids[1:]
