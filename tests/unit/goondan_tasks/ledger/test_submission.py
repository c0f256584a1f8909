"""What of a call goes into the ledger."""

import json
from typing import Any

import pytest

from broker_config import serializer
from goondan_tasks.contract.messages import assistant_message
from goondan_tasks.ledger.submission import call_json
from tests.unit.goondan_tasks.ledger.calls import a_call

MESSAGE = assistant_message("call_1", "bash__exec", {"command": None}, "step-1", "2026-01-01T00:00:00.000Z")


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"args": {"null": None, "deep": [{"none": None}], "big": 2**70, "text": '"é\u2028\\'}},
        {"args": {1: "one", "x": [1.5, -0.0, 1e300]}},
        {"args": [None]},
        {"args": "text"},
        {"timeout_seconds": 1.5, "idempotency_key": "k", "call_chain": ("a@b",), "waiting": 0},
        {"auth": {"token": None}, "origin": {"where": ["chat"]}},
        {"message": MESSAGE},
        {"instance_key": '"é\u2028\\', "turn_id": "\x00\n\x7f", "agent_name": ""},
        {"bundle_ref": "r1", "step_id": "s", "deadline": "2026-01-01T00:00:00Z", "model_call_id": "m"},
    ],
)
def test_calls_json_is_that_of_its_wire_form(fields: dict[str, Any]) -> None:
    call = a_call().model_copy(update=fields)

    written = call_json(call, serializer.encode(call.args))

    assert json.loads(written) == json.loads(serializer.encode(call.to_wire()))


@pytest.mark.parametrize(
    "fields",
    [
        {"turn_id": "\ud800"},
        {"turn_id": "\ud800", "step_id": "s"},
        {"auth": {"much": float("nan")}},
        {"origin": {"who": object()}},
    ],
)
def test_call_with_unencodable_field_has_no_json(fields: dict[str, Any]) -> None:
    call = a_call().model_copy(update=fields)

    with pytest.raises(serializer.NotJsonError):
        call_json(call, b"{}")
