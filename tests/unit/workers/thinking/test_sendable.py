import itertools
from typing import Any

import pytest

from goondan_tasks.contract.messages import JsonObject
from workers.thinking.sendable import GO_ON, INTERRUPTED, NO_TEXT, REMOVED, sendable

HELLO: JsonObject = {"role": "user", "content": "hello"}


def calling(*ids: str, name: str = "t__ping", text: str | None = None) -> JsonObject:
    """Make an answer that calls a tool once for each id."""
    said = [] if text is None else [{"type": "text", "text": text}]
    calls = [{"type": "tool-call", "toolCallId": one, "toolName": name, "input": {}} for one in ids]
    return {"role": "assistant", "content": [*said, *calls]}


def result(call_id: str, value: Any = "done") -> JsonObject:
    output = {"type": "text" if isinstance(value, str) else "json", "value": value}
    part = {"type": "tool-result", "toolCallId": call_id, "toolName": "t__ping", "output": output}
    return {"role": "tool", "content": [part]}


def pairs(messages: list[JsonObject]) -> list[tuple[str, Any]]:
    """Return the id of each call with the output that follows it."""
    found = []
    for asked, told in itertools.pairwise(messages):
        if asked["role"] == "assistant" and told["role"] == "tool":
            ids = [part["toolCallId"] for part in asked["content"] if part["type"] == "tool-call"]
            assert ids == [part["toolCallId"] for part in told["content"]]
            found += [(part["toolCallId"], part["output"]["value"]) for part in told["content"]]
    return found


def test_repeated_call_id_is_sent_renamed() -> None:
    rounds = [(calling("call_1"), result("call_1", f"output {number}")) for number in range(3)]
    sent = sendable([HELLO, *(message for both in rounds for message in both)])
    assert pairs(sent) == [("call_1", "output 0"), ("call_1_2", "output 1"), ("call_1_3", "output 2")]


def test_calls_sharing_id_keep_results_in_order() -> None:
    sent = sendable([HELLO, calling("x", "x"), result("x", "first"), result("x", "second")])
    assert pairs(sent) == [("x", "first"), ("x_2", "second")]


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("functions.ping:0", "functions_ping_0"),
        ("c" * 60, "c" * 40),
        ("", "call"),
        ("call_1|fc_1", "call_1_fc_1"),
        ("toolu_01AbC-9", "toolu_01AbC-9"),
    ],
)
def test_id_some_provider_refuses_is_made_acceptable(given: str, sent: str) -> None:
    assert pairs(sendable([HELLO, calling(given), result(given)])) == [(sent, "done")]


def test_long_ids_with_same_beginning_stay_distinct() -> None:
    ids = [f"{'c' * 50}{number}" for number in range(12)]
    sent = pairs(sendable([HELLO, calling(*ids), *map(result, ids)]))
    assert len({name for name, _ in sent}) == 12
    assert max(len(name) for name, _ in sent) == 40


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("multi_tool_use.parallel", "multi_tool_use_parallel"),
        ("kit echo", "kit_echo"),
        ("", "unknown"),
        ("n" * 65, "n" * 64),
        ("t__ping", "t__ping"),
    ],
)
def test_invented_name_is_sent_without_forbidden_characters(given: str, sent: str) -> None:
    _, asked, told = sendable([HELLO, calling("c", name=given), result("c")])
    assert [part["toolName"] for part in (*asked["content"], *told["content"])] == [sent, sent]


@pytest.mark.parametrize("blank", ["", " ", "\n\n"])
def test_answers_drop_blank_texts_and_others_note_them(blank: str) -> None:
    messages: list[JsonObject] = [
        {"role": "user", "content": blank},
        {"role": "user", "content": [{"type": "text", "text": blank}]},
        {"role": "assistant", "content": blank},
        calling("c", text=blank),
        result("c", blank),
    ]
    first, second, asked, _ = sendable(messages)
    assert (first["content"], second["content"]) == (NO_TEXT, NO_TEXT)
    assert [part["type"] for part in asked["content"]] == ["tool-call"]


def test_blank_reasoning_stays_only_with_provider_data() -> None:
    signed = {"type": "reasoning", "text": "", "providerOptions": {"openai": {"signature": "s"}}}
    said = {"type": "text", "text": "Hi."}
    answer = {"role": "assistant", "content": [{"type": "reasoning", "text": ""}, signed, said]}
    assert sendable([HELLO, answer, HELLO])[1]["content"] == [signed, said]


def test_trailing_reasoning_is_left_out_of_answer() -> None:
    signed = {"type": "reasoning", "text": "Hm.", "providerOptions": {"anthropic": {"signature": "s"}}}
    text = {"type": "text", "text": "Hi."}
    cut = {"role": "assistant", "content": [signed, {"type": "text", "text": " "}]}
    whole = {"role": "assistant", "content": [signed, text, signed]}
    sent = sendable([HELLO, cut, HELLO, whole, HELLO])
    assert [message["role"] for message in sent] == ["user", "user", "assistant", "user"]
    assert sent[2]["content"] == [signed, text]


def test_unpaired_call_is_interrupted_and_unpaired_result_dropped() -> None:
    sent = sendable([HELLO, calling("a", "b"), {"role": "user", "content": "and?"}, result("b"), result("z")])
    assert pairs(sent) == [("a", INTERRUPTED), ("b", "done")]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]


def test_models_message_neither_begins_nor_ends_request() -> None:
    sent = sendable([{"role": "assistant", "content": "one"}, HELLO, {"role": "assistant", "content": "two"}])
    assert (sent[0]["content"], sent[-1]["content"]) == (REMOVED, GO_ON)
