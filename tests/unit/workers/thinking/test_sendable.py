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


def test_a_call_id_that_comes_again_is_sent_under_another() -> None:
    rounds = [(calling("call_1"), result("call_1", f"output {number}")) for number in range(3)]
    sent = sendable([HELLO, *(message for both in rounds for message in both)])
    assert pairs(sent) == [("call_1", "output 0"), ("call_1_2", "output 1"), ("call_1_3", "output 2")]


def test_two_calls_of_one_id_in_one_answer_keep_their_results_in_order() -> None:
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
def test_an_id_that_some_provider_refuses_is_sent_as_one_that_all_take(given: str, sent: str) -> None:
    assert pairs(sendable([HELLO, calling(given), result(given)])) == [(sent, "done")]


def test_long_ids_that_begin_alike_stay_apart_in_one_request() -> None:
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
def test_a_name_that_a_model_invented_is_sent_without_forbidden_characters(given: str, sent: str) -> None:
    _, asked, told = sendable([HELLO, calling("c", name=given), result("c")])
    assert [part["toolName"] for part in (*asked["content"], *told["content"])] == [sent, sent]


@pytest.mark.parametrize("blank", ["", " ", "\n\n"])
def test_blank_texts_are_left_out_of_answers_and_named_elsewhere(blank: str) -> None:
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


def test_blank_reasoning_stays_only_with_what_its_provider_added() -> None:
    signed = {"type": "reasoning", "text": "", "providerOptions": {"openai": {"signature": "s"}}}
    said = {"type": "text", "text": "Hi."}
    answer = {"role": "assistant", "content": [{"type": "reasoning", "text": ""}, signed, said]}
    assert sendable([HELLO, answer, HELLO])[1]["content"] == [signed, said]


def test_reasoning_that_nothing_follows_is_left_out_of_an_answer() -> None:
    signed = {"type": "reasoning", "text": "Hm.", "providerOptions": {"anthropic": {"signature": "s"}}}
    text = {"type": "text", "text": "Hi."}
    cut = {"role": "assistant", "content": [signed, {"type": "text", "text": " "}]}
    whole = {"role": "assistant", "content": [signed, text, signed]}
    sent = sendable([HELLO, cut, HELLO, whole, HELLO])
    assert [message["role"] for message in sent] == ["user", "user", "assistant", "user"]
    assert sent[2]["content"] == [signed, text]


def test_a_call_without_result_is_interrupted_and_a_result_without_call_is_left_out() -> None:
    sent = sendable([HELLO, calling("a", "b"), {"role": "user", "content": "and?"}, result("b"), result("z")])
    assert pairs(sent) == [("a", INTERRUPTED), ("b", "done")]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "user"]


def test_a_request_begins_and_ends_with_what_is_not_the_models() -> None:
    sent = sendable([{"role": "assistant", "content": "one"}, HELLO, {"role": "assistant", "content": "two"}])
    assert (sent[0]["content"], sent[-1]["content"]) == (REMOVED, GO_ON)
