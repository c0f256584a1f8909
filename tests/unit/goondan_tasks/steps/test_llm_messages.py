"""Messages of all ages and providers, as the older documents write them (002, appendix A)."""

from typing import Any

import pytest

from goondan_tasks.messages import ResultMeta, ToolCallError, ToolCallResult
from goondan_tasks.steps.llm_messages import llm_messages, tool_message

META = ResultMeta(
    id="1",
    agent_name="coder",
    instance_key="k",
    turn_id="t",
    trace_id="0" * 32,
    span_id="0" * 16,
    correlation_id="c",
)
CALL = {"id": "c1", "name": "calc.add", "arguments": {"a": 1}}
ASKED = {"role": "assistant", "toolCalls": [CALL]}
ANSWERED = {"role": "tool", "toolCallId": "c1", "toolName": "calc.add", "output": {"sum": 3}}


def result(status: Any, **fields: Any) -> ToolCallResult:
    return ToolCallResult(tool_call_id="c1", tool_name="calc.add", status=status, meta=META, **fields)


@pytest.mark.requirement("v1.tool-message")
@pytest.mark.parametrize(
    ("came", "output"),
    [
        (result("ok", output={"sum": 3}), {"sum": 3}),
        (result("ok"), None),
        (
            result("pending", handle="b-1", output="soon"),
            {"status": "pending", "handle": "b-1", "output": "soon"},
        ),
        (
            result("error", error=ToolCallError(code="E_X", name="XError", message="no")),
            {"status": "error", "error": {"message": "no", "name": "XError", "code": "E_X"}},
        ),
        (result("error", error=ToolCallError(code="E", name="E", message="no"), output="sorry"), "sorry"),
    ],
)
def test_a_result_becomes_a_message_of_the_role_tool(came: ToolCallResult, output: Any) -> None:
    assert tool_message("c1", "calc.add", came) == {**ANSWERED, "output": output}


@pytest.mark.parametrize(
    ("message", "told"),
    [
        ({"role": "user", "content": "hello"}, [{"role": "user", "content": "hello"}]),
        ({"content": "hello"}, [{"role": "user", "content": "hello"}]),
        ({}, [{"role": "user", "content": ""}]),
        (ASKED, [ASKED]),
        (
            {
                "role": "assistant",
                "tool_calls": [{"id": "c1", "function": {"name": "calc.add", "arguments": '{"a": 1}'}}],
            },
            [ASKED],
        ),
        (
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c1", "name": "calc.add", "input": {"a": 1}}],
            },
            [ASKED],
        ),
        (
            {
                "id": "m",
                "data": {
                    "role": "assistant",
                    "content": [
                        {"type": "text", "text": "So: "},
                        {"type": "tool-call", "toolCallId": "c1", "toolName": "calc.add", "input": {"a": 1}},
                    ],
                },
            },
            [{"role": "assistant", "content": "So: ", "toolCalls": [CALL]}],
        ),
        (ANSWERED, [ANSWERED]),
        (
            {"role": "tool", "tool_call_id": "c1", "content": '{"sum": 3}'},
            [{**ANSWERED, "toolName": ""}],
        ),
        (
            {
                "role": "tool",
                "content": [
                    {
                        "type": "tool-result",
                        "toolCallId": "c1",
                        "toolName": "calc.add",
                        "output": {"type": "json", "value": {"sum": 3}},
                    }
                ],
            },
            [ANSWERED],
        ),
        (
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": "plain"},
                    {"type": "text", "text": "go on"},
                ],
            },
            [{**ANSWERED, "toolName": "", "output": "plain"}, {"role": "user", "content": "go on"}],
        ),
        ({"role": "developer", "content": "hello"}, []),
        ({"role": ["user"]}, []),
        (
            {"role": "assistant", "toolCalls": ["?", {"id": 7}], "tool_calls": [{"function": 1}, None]},
            [{"role": "assistant", "toolCalls": [{"id": "", "name": "", "arguments": {}}]}],
        ),
        ({"role": "assistant", "toolCalls": 7, "content": 7}, [{"role": "assistant", "content": ""}]),
    ],
)
def test_what_was_said_reads_the_same_whoever_wrote_it(message: Any, told: Any) -> None:
    assert llm_messages(message) == told
