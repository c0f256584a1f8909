"""What models say and read, in the shapes of all providers and of the v1 profile (002, appendix A)."""

from typing import Any

import pytest

from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import ToolInputValidationError, ToolNotInCatalogError
from goondan_tasks.contract.messages import (
    JsonObject,
    Message,
    ResultMeta,
    ToolCallError,
    ToolCallResult,
    call_part,
)
from goondan_tasks.contract.model_messages import (
    ModelCall,
    llm_messages,
    message_fault,
    not_in_catalog,
    read_model_call,
    source_fault,
    tool_message,
)

LLM_META = ResultMeta(
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


def llm_result(status: Any, **fields: Any) -> ToolCallResult:
    return ToolCallResult(tool_call_id="c1", tool_name="calc.add", status=status, meta=LLM_META, **fields)


@pytest.mark.requirement("v1.tool-message")
@pytest.mark.parametrize(
    ("came", "output"),
    [
        (llm_result("ok", output={"sum": 3}), {"sum": 3}),
        (llm_result("ok"), None),
        (
            llm_result("pending", handle="b-1", output="soon"),
            {"status": "pending", "handle": "b-1", "output": "soon"},
        ),
        (
            llm_result("error", error=ToolCallError(code="E_X", name="XError", message="no")),
            {"status": "error", "error": {"message": "no", "name": "XError", "code": "E_X"}},
        ),
        (llm_result("error", error=ToolCallError(code="E", name="E", message="no"), output="sorry"), "sorry"),
    ],
)
def test_result_becomes_message_of_role_tool(came: ToolCallResult, output: Any) -> None:
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
def test_reply_reads_same_in_every_provider_format(message: Any, told: Any) -> None:
    assert llm_messages(message) == told


OPENAI = {"id": "c1", "type": "function", "function": {"name": "bash__exec", "arguments": '{"n": 1}'}}
ANTHROPIC = {"type": "tool_use", "id": "c1", "name": "bash__exec", "input": {"n": 1}}
OURS = {"id": "c1", "name": "bash__exec", "args": {"n": 1}}


def model_call(raw: Any) -> ModelCall:
    return read_model_call(raw, max_args_bytes=1000)


def result(**fields: Any) -> ToolCallResult:
    meta = ResultMeta(
        id="id",
        agent_name="coder",
        instance_key="k",
        turn_id="t",
        trace_id="0" * 32,
        span_id="0" * 16,
        correlation_id="t",
        finished_at="2026-02-01T10:00:00.000Z",
    )
    return ToolCallResult(tool_call_id="c1", tool_name="bash__exec", meta=meta, **fields)


class Dumped:
    """As the objects of the providers' packages are."""

    def __init__(self, fields: JsonObject) -> None:
        self._fields = fields

    def model_dump(self) -> JsonObject:
        return self._fields


@pytest.mark.parametrize(
    "raw",
    [
        OPENAI,
        ANTHROPIC,
        OURS,
        {"toolCallId": "c1", "toolName": "bash__exec", "input": {"n": 1}},
        {"type": "tool-call", "toolCallId": "c1", "toolName": "bash__exec", "arguments": {"n": 1}},
        Dumped(OPENAI),
        new_call("coder", "bash__exec", {"n": 1}, {"tool_call_id": "c1"}),
    ],
)
def test_every_shape_of_call_is_read(raw: Any) -> None:
    call = model_call(raw)
    assert (call.id, call.name, call.args, call.fault) == ("c1", "bash__exec", {"n": 1}, None)


def test_call_without_id_gets_one() -> None:
    first, second = model_call(("bash__exec", {})), model_call(("bash__exec", {}))
    assert first.id.startswith("call_")
    assert first.id != second.id


@pytest.mark.parametrize("arguments", ["", "  ", None, "{}", {}])
def test_model_may_leave_arguments_out(arguments: Any) -> None:
    raw = {"id": "c1", "type": "function", "function": {"name": "a__b", "arguments": arguments}}
    assert (model_call(raw).args, model_call(raw).fault) == ({}, None)


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        ({"id": "c", "function": {"name": "a__b", "arguments": '{"n": 1'}}, "not valid JSON"),
        ({"id": "c", "function": {"name": "a__b", "arguments": '{"n": NaN}'}}, "not valid JSON"),
        ({"id": "c", "function": {"name": 7, "arguments": "{}"}}, "name is text"),
        ({"id": "c", "name": "a__b", "args": {"n": float("nan")}}, "not valid JSON"),
        ({"id": "c", "name": "a__\ud800", "args": {}}, "not valid JSON"),
        ({"type": "tool_use", "id": "c", "name": "a__b", "input": {"t": "x" * 1000}}, "at most 1000"),
        ({"id": "c", "name": "goondan__delegate", "args": {}}, "not available in the current Tool Catalog"),
    ],
)
def test_models_mistake_is_fault_and_raises_nothing(raw: Any, said: str) -> None:
    call = model_call(raw)
    assert call.fault is not None
    assert said in call.fault.message
    assert call.args == {}


@pytest.mark.parametrize("raw", [None, 7, "bash__exec", {}, {"type": "text", "text": "hello"}, ["a", 1, 2]])
def test_value_other_than_tool_call_is_refused(raw: Any) -> None:
    with pytest.raises(ToolInputValidationError, match="A tool call has a name"):
        model_call(raw)


ERROR = ToolCallError(code="E_TOOL", name="ValueError", message="no")


@pytest.mark.parametrize(
    ("outcome", "content"),
    [
        ({"status": "ok", "output": "text as it is"}, "text as it is"),
        ({"status": "ok", "output": {"n": 1}}, '{"n":1}'),
        ({"status": "ok", "output": None}, "null"),
        (
            {"status": "error", "error": ERROR},
            '{"status":"error","error":{"code":"E_TOOL","name":"ValueError","message":"no"}}',
        ),
        ({"status": "pending", "handle": "job-7"}, '{"status":"pending","handle":"job-7"}'),
    ],
)
def test_model_gets_output_or_state_of_call(outcome: JsonObject, content: str) -> None:
    told = model_call(OPENAI).message(result(**outcome))
    assert told == {"role": "tool", "tool_call_id": "c1", "content": content}


def test_anthropic_block_says_whether_result_is_error() -> None:
    told = model_call(ANTHROPIC).message(result(status="ok", output="done"))
    assert told == {"type": "tool_result", "tool_use_id": "c1", "content": "done"}
    assert model_call(ANTHROPIC).message(result(status="error", error=ERROR))["is_error"] is True


@pytest.mark.parametrize(
    "output",
    [
        {"type": "text", "value": "done"},
        {"type": "json", "value": {"n": 1}},
        {"type": "error-text", "value": "no"},
        {"type": "content", "value": [{"type": "text", "text": "done"}]},
    ],
)
def test_output_in_message_form_is_not_rewrapped(output: JsonObject) -> None:
    told = model_call(OURS).message(result(status="ok", output=output))
    assert told["data"]["content"][0]["output"] == output


@pytest.mark.parametrize(
    "output",
    [
        {"type": "text", "value": 5},
        {"type": "json", "value": 1, "more": 2},
        {"type": "animal", "value": "cat"},
        {"type": ["text"], "value": "x"},
        {"type": "json"},
    ],
)
def test_output_only_resembling_message_form_is_wrapped(output: JsonObject) -> None:
    told = model_call(OURS).message(result(status="ok", output=output))
    assert told["data"]["content"][0]["output"] == {"type": "json", "value": output}


@pytest.mark.requirement("middleware.result-to-message", "message.fields", "message.source")
def test_our_own_shape_gets_message_of_role_tool() -> None:
    told = model_call(OURS).message(result(status="ok", output={"n": 1}))
    assert told == {
        "id": "msg-id",
        "data": {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "c1",
                    "toolName": "bash__exec",
                    "output": {"type": "json", "value": {"n": 1}},
                }
            ],
        },
        "metadata": {},
        "createdAt": "2026-02-01T10:00:00.000Z",
        "source": {"type": "tool", "toolCallId": "c1", "toolName": "bash__exec"},
    }


@pytest.mark.requirement("message.source")
@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("user", ()),
        ("assistant", ("stepId",)),
        ("tool", ("toolCallId", "toolName")),
        ("system", ()),
        ("extension", ("extensionName",)),
    ],
)
def test_source_has_fields_of_its_type(kind: str, fields: tuple[str, ...]) -> None:
    source: JsonObject = {"type": kind, **dict.fromkeys(fields, "x")}
    assert source_fault(source) == ""
    for field in fields:
        assert source_fault({**source, field: 5}) == f"its source of the type {kind!r} has no {field}"


@pytest.mark.requirement("message.source", "context.message.holds-the-call")
def test_message_with_call_may_come_from_extension() -> None:
    data = {"role": "assistant", "content": [call_part("c1", "bash__exec", {})]}
    source = {"type": "extension", "extensionName": "planner"}
    message = Message(id="m1", data=data, created_at="2026-02-01T10:00:00.000Z", source=source)
    assert (message_fault(message, "c1"), message_fault(message, "c2")) == (
        "",
        "it does not hold the call 'c2'; it holds: 'c1'",
    )


def test_tool_not_in_catalog_suggests_intended_tool() -> None:
    near, far = (not_in_catalog(name, ["bash__exec", "plan__outline"]) for name in ("bash__exce", "zzz"))

    assert near.message == "Tool 'bash__exce' is not available in the current Tool Catalog."
    assert near.suggestion == f"Did you mean 'bash__exec'? {ToolNotInCatalogError.suggestion}"
    assert far.suggestion == ToolNotInCatalogError.suggestion
