"""What the model has said, while functions change the call that it asked for."""

from goondan_tasks.contract.calls import new_call
from goondan_tasks.history import TurnHistory
from workers.v1.conversions import v1_call
from workers.v1.views import V1Conversation


def test_models_message_survives_in_place_argument_changes() -> None:
    call = new_call("coder", "counter.add", {"n": 1, "by": [1]}, {"tool_call_id": "c1"})
    conversation = V1Conversation(TurnHistory(), call)
    said, asked, [pending] = conversation.llm_result(), v1_call(call), conversation.pending_calls()

    asked.arguments["n"] = 2
    pending.arguments["by"].append(2)

    assert said is not None
    assert said.message["toolCalls"] == [
        {"id": "c1", "name": "counter.add", "arguments": {"n": 1, "by": [1]}}
    ]
