import base64

import pytest

from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.messages import JsonObject, Message
from workers.thinking.shortening import LEAST_CHARACTERS, WITHDRAWN, exchange, shorten, withdraw

TURN = "turn-now"


def said(name: str, data: JsonObject, turn: str = "turn-before", **metadata: bool) -> Message:
    return Message(
        id=name,
        data=data,
        metadata={"turnId": turn, **metadata},
        created_at="",
        source={"type": "extension", "extensionName": "x"},
    )


def user(name: str, text: str = "hi", turn: str = "turn-before", **metadata: bool) -> Message:
    return said(name, {"role": "user", "content": text}, turn, **metadata)


def asked(name: str, *calls: str, text: str = "", turn: str = "turn-before") -> Message:
    parts = [{"type": "tool-call", "toolCallId": one, "toolName": "t__x", "input": {}} for one in calls]
    return said(name, {"role": "assistant", "content": [{"type": "text", "text": text}, *parts]}, turn)


def result(name: str, call: str, text: str) -> Message:
    output = {"type": "text", "value": text}
    part = {"type": "tool-result", "toolCallId": call, "toolName": "t__x", "output": output}
    return said(name, {"role": "tool", "content": [part]})


def pictured(name: str, call: str) -> Message:
    data = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(90)).decode()
    output = {"type": "content", "value": [{"type": "image", "data": data, "mimeType": "image/png"}]}
    part = {"type": "tool-result", "toolCallId": call, "toolName": "t__x", "output": output}
    return said(name, {"role": "tool", "content": [part]})


def output(message: Message) -> str:
    return str(message.data["content"][0]["output"]["value"])


def kept(conversation: Conversation) -> list[str]:
    return [message.id for message in conversation.next_messages]


def test_long_output_is_cut_and_others_stay() -> None:
    messages = [user("u"), asked("a", "c", "d"), result("r", "c", "x" * 100_000), result("s", "d", "y" * 900)]
    conversation = Conversation(messages)
    assert shorten(conversation, TURN)
    long, short = conversation.next_messages[2:]
    assert 45_000 < len(output(long)) < 51_000
    assert "characters were cut" in output(long)
    assert output(short) == "y" * 900


def test_parallel_outputs_are_cut_to_half_sum() -> None:
    ids = [f"c{number}" for number in range(20)]
    results = [result(f"r-{one}", one, "x" * 10_000) for one in ids]
    conversation = Conversation([user("u", turn=TURN), asked("a", *ids, turn=TURN), *results])
    assert shorten(conversation, TURN)
    lengths = {len(output(message)) for message in conversation.next_messages[2:]}
    assert len(lengths) == 1
    assert 90_000 < 20 * lengths.pop() < 103_000


def test_if_outputs_are_short_oldest_exchanges_go() -> None:
    old = [user("u1", "x" * 400), asked("a1", "c"), result("r1", "c", "x" * 400), asked("b1", text="x" * 400)]
    pinned = user("rule", "x" * 300, pinned=True)
    conversation = Conversation([pinned, *old, user("u2", "y" * 300), asked("a2"), user("now", turn=TURN)])
    assert shorten(conversation, TURN)
    assert kept(conversation) == ["rule", "b1", "u2", "a2", "now"]


def test_turn_input_and_short_outputs_resist_shortening() -> None:
    messages = [user("now", "x" * 100_000, turn=TURN), asked("a", "c", turn=TURN), result("r", "c", "done")]
    conversation = Conversation(messages)
    assert not shorten(conversation, TURN)
    assert conversation.events == []


def test_output_that_is_pinned_is_not_cut() -> None:
    pinned = result("r", "c", "x" * 9_000).model_copy(update={"metadata": {"pinned": True}})
    conversation = Conversation([user("u"), asked("a", "c", "d"), pinned, result("s", "d", "y" * 9_000)])
    assert shorten(conversation, TURN)
    assert [len(output(message)) for message in conversation.next_messages[-2:]] == [9_000, LEAST_CHARACTERS]


def test_repeated_shortening_comes_to_end_with_last_exchange() -> None:
    pairs = [m for n in range(30) for m in (asked(f"a{n}", "c"), result(f"r{n}", "c", "x" * 50_000))]
    conversation = Conversation([user("u"), *pairs])
    rounds = 0
    while shorten(conversation, TURN):
        rounds += 1
        assert rounds < 50
    assert kept(conversation) == ["a29", "r29"]
    assert len(output(conversation.next_messages[1])) < 2 * LEAST_CHARACTERS


def test_images_refused_as_too_long_become_notes() -> None:
    ids = [f"c{number}" for number in range(20)]
    results = [pictured(f"r-{one}", one) for one in ids]
    conversation = Conversation([user("u", turn=TURN), asked("a", *ids, turn=TURN), *results])
    assert shorten(conversation, TURN)
    assert {output(message) for message in conversation.next_messages[2:]} == {"[image/png, 1 KiB]"}


def test_long_calls_of_earlier_turn_are_dropped() -> None:
    call = {"type": "tool-call", "toolCallId": "c", "toolName": "t__x", "input": {"text": "x" * 90_000}}
    long = said("a", {"role": "assistant", "content": [call]})
    conversation = Conversation([user("u"), long, result("r", "c", "done"), user("now", turn=TURN)])
    assert shorten(conversation, TURN)
    assert kept(conversation) == ["now"]


def test_messages_that_were_shortened_can_be_restored() -> None:
    messages = [user("u"), asked("a", "c"), result("r", "c", "x" * 50_000), user("now", turn=TURN)]
    conversation = Conversation(messages)
    assert shorten(conversation, TURN)
    conversation.restore(messages)
    assert conversation.next_messages == messages


@pytest.mark.parametrize("turn", ["turn-before", TURN])
def test_only_earlier_turns_unanswered_outputs_are_withdrawn(turn: str) -> None:
    first = [user("u1"), asked("a1", "c"), result("r1", "c", "old"), asked("b1", text="fine")]
    second = [user("u2"), asked("a2", "d", turn=turn), result("r2", "d", "forbidden"), user("now", turn=TURN)]
    conversation = Conversation([*first, *second])
    changed = withdraw(conversation, TURN)
    outputs = [output(message) for message in conversation.next_messages if message.data["role"] == "tool"]
    assert outputs == ["old", "forbidden" if turn == TURN else WITHDRAWN]
    exchange(conversation, [(new, old) for old, new in changed])
    assert conversation.next_messages == [*first, *second]
