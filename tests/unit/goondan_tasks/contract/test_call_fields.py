"""The lists of a call's fields, against the model that declares them."""

import json
from pathlib import Path

from pydantic.alias_generators import to_camel

from goondan_tasks.contract.call_fields import (
    META_TEXTS,
    OTHER_FIELDS,
    PLAN_FIELDS,
    TEXTS,
    followed_by,
    template_of,
)
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.messages import ResultMeta, ToolCall, assistant_message
from goondan_tasks.ledger.submission import call_json


def test_each_field_of_call_is_in_one_list() -> None:
    declared = {to_camel(name) for name in ToolCall.model_fields}

    assert declared == PLAN_FIELDS | OTHER_FIELDS
    assert not PLAN_FIELDS & OTHER_FIELDS


def test_texts_of_meta_are_fields_of_result() -> None:
    assert set(META_TEXTS) <= {to_camel(name) for name in ResultMeta.model_fields}


def test_required_call_texts_are_those_of_every_record() -> None:
    required = {to_camel(name) for name, field in ToolCall.model_fields.items() if field.is_required()}

    assert required | {"instanceKey"} == set(TEXTS)


def test_bare_call_is_written_as_its_model_says() -> None:
    call = new_call("coder", "bash__exec", {"a": 1}, {})

    written = json.loads(call_json(call, b'{"a": 1}'))

    assert {**written, "callChain": ()} == {**call.to_wire(), "callChain": ()}
    assert template_of(("a", "b")) == '"a":%s,"b":%s'


def test_full_call_is_written_like_its_model() -> None:
    message = assistant_message("c1", "bash__exec", {"a": None}, "s1", "2026-02-01T10:00:00.000Z")
    names = ("parent_id", "root_id", "parent_span_id", "replay_of", "bundle_ref")
    texts = {name: f"{name} é" for name in names}
    steps = {"step_id": "s1", "model_call_id": "c1", "idempotency_key": "k"}
    moments = dict.fromkeys(("not_before", "deadline"), "2026-02-01T10:00:00.000Z")
    limits = {**moments, "timeout_seconds": 2.5, "waiting": 1, "keep": 60.0, "followed": True}
    traced = {"trace_context": {"baggage": "a=b"}}
    contexts = {
        **traced,
        "auth": {"a": None},
        "origin": {"b": [1]},
        "call_chain": ("a@b",),
        "message": message,
    }
    forged = {"edited": {"by": "ann", "at": "2026-02-01T10:00:00.000Z", "asked": {}}}
    call = new_call("coder", "bash__exec", {"a": 1}, {**texts, **steps, **limits, **contexts, **forged})

    assert {name for name in ToolCall.model_fields if getattr(call, name) is None} == {"edited"}
    assert json.loads(call_json(call, b'{"a": 1}')) == {**call.to_wire(), "callChain": ["a@b"]}


def test_output_goes_to_calls_stream_or_else_turns() -> None:
    made = {"parentId": "turn"}
    assert followed_by({**made, "followed": True, "keep": 60}, "call") == "call"
    assert followed_by({**made, "followed": True}, "call") == "turn"
    assert followed_by(made, "call") is None
    assert followed_by({"followed": True}, "call") is None


def test_every_field_of_call_is_described() -> None:
    page = (Path(__file__).parents[4] / "docs/reference/records.md").read_text("utf-8")

    assert {to_camel(name) for name in ToolCall.model_fields if f"`{to_camel(name)}`" not in page} == set()
