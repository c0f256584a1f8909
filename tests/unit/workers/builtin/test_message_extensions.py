"""The built-in extensions ``message-window`` and ``message-compaction``, before one request of a Turn."""

import asyncio
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import structlog
from pydantic import ValidationError

from goondan_tasks.authoring.extension_api import ExtensionInfo, StepContext, StepResult
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.contract.errors import ModelContextLengthError, ModelUnavailableError
from goondan_tasks.contract.messages import JsonObject, Message
from workers.builtin import message_compaction, message_window

TURN = "turn-now"


def say(name: str, text: str = "", turn: str = "turn-before") -> Message:
    """Make a user's message."""
    data = {"role": "user", "content": text or name}
    return Message(id=name, data=data, metadata={"turnId": turn}, created_at="", source={"type": "user"})


def answer(name: str, *call_ids: str, text: str = "", usage: JsonObject | None = None) -> Message:
    """Make an answer, which may call tools."""
    calls = [{"type": "tool-call", "toolCallId": one, "toolName": "t__x", "input": {}} for one in call_ids]
    content = [{"type": "text", "text": text or name}, *calls]
    metadata = {} if usage is None else {"usage": usage}
    source = {"type": "assistant", "stepId": "s"}
    data = {"role": "assistant", "content": content}
    return Message(id=name, data=data, metadata=metadata, created_at="", source=source)


def result(name: str, call_id: str, value: Any = "done") -> Message:
    """Make the result of a call."""
    output = {"type": "text" if isinstance(value, str) else "json", "value": value}
    part = {"type": "tool-result", "toolCallId": call_id, "toolName": "t__x", "output": output}
    data = {"role": "tool", "content": [part]}
    source = {"type": "tool", "toolCallId": call_id, "toolName": "t__x"}
    return Message(id=name, data=data, created_at="", source=source)


class Summarizer:
    """A model that is asked for summaries."""

    def __init__(self, *answers: str | Exception) -> None:
        self._answers = list(answers)
        self.requests: list[JsonObject] = []

    async def __call__(self, messages: Sequence[JsonObject], **options: Any) -> str:
        """Return the next answer, or raise it."""
        self.requests.append({"told": messages[0]["content"], **options})
        answered = self._answers.pop(0) if self._answers else "the summary"
        if isinstance(answered, Exception):
            raise answered
        return answered


def step(extension: Any, config: JsonObject, conversation: Conversation | None, ask: Any = None) -> None:
    """Run the extension's middleware around a Step."""
    registered: list[Any] = []
    api: Any = SimpleNamespace(
        extension=ExtensionInfo("short"),
        logger=structlog.get_logger(),
        pipeline=SimpleNamespace(
            register=lambda _point, middleware, _priority: registered.append(middleware)
        ),
    )
    extension.register(api, config)
    context = StepContext(
        "coder", "k", TURN, "", "step-7", 0, [], conversation_state=conversation, _ask_model=ask
    )

    async def core() -> StepResult:
        return StepResult(metadata={"core": True})

    assert asyncio.run(registered[0](context.layer(core))) == StepResult(metadata={"core": True})


def names(conversation: Conversation) -> list[str]:
    return [message.id for message in conversation.next_messages]


NOW = say("now", turn=TURN)
BEFORE = [say("u1"), answer("a1", "c1"), result("r1", "c1"), answer("a2")]
LONG = [say("u1"), answer("a1", "c1", "c2"), result("r1", "c1"), result("r2", "c2"), answer("a2"), NOW]


@pytest.mark.parametrize(
    ("messages", "most", "left"),
    [
        ([*BEFORE, NOW], 5, ["u1", "a1", "r1", "a2", "now"]),
        ([*BEFORE, NOW], 2, ["a2", "now"]),
        ([*BEFORE, NOW], 3, ["a1", "r1", "a2", "now"]),
        (LONG, 3, ["a1", "r1", "r2", "a2", "now"]),
        (LONG, 1, ["now"]),
        ([], 1, []),
        # a model repeats its ids
        ([*BEFORE, NOW, answer("a3", "c1"), result("r3", "c1")], 1, ["now", "a3", "r3"]),
        # a result without a call keeps nothing back
        ([say("u1"), result("r0", "gone"), say("u2"), NOW], 2, ["u2", "now"]),
        # calls that have no results yet
        ([say("u1"), answer("a1", "c1", "c2"), result("r1", "c1"), NOW], 2, ["a1", "r1", "now"]),
    ],
)
def test_window_keeps_last_messages_whole_calls_and_input(
    messages: list[Message], most: int, left: list[str]
) -> None:
    conversation = Conversation(messages)
    step(message_window, {"maxMessages": most}, conversation)
    assert names(conversation) == left


def test_many_steps_displace_neither_input_nor_pins() -> None:
    steps = [m for n in range(20) for m in (answer(f"a{n}", "c"), result(f"r{n}", "c"))]
    pinned = say("rule").model_copy(update={"metadata": {"pinned": True}})
    conversation = Conversation([pinned, say("u1"), NOW, *steps])
    step(message_window, {"maxMessages": 4}, conversation)
    assert names(conversation) == ["rule", "now", "a18", "r18", "a19", "r19"]


@pytest.mark.parametrize("extension", [message_window, message_compaction])
def test_without_conversation_there_is_nothing_to_shorten(extension: Any) -> None:
    step(extension, {"maxTokens": 1} if extension is message_compaction else {}, None)


@pytest.mark.parametrize(
    ("extension", "config"),
    [
        (message_window, {"maxMessages": 0}),
        (message_window, {"max": 3}),
        (message_compaction, {}),
        (message_compaction, {"maxTokens": 10, "keepMessages": 0}),
        (message_compaction, {"maxTokens": 10, "modelRef": ""}),
        (message_compaction, {"maxTokens": "many"}),
    ],
)
def test_config_that_is_not_valid_is_refused(extension: Any, config: JsonObject) -> None:
    with pytest.raises(ValidationError):
        step(extension, config, None)


# --- compaction

TEXT = "x" * 400  # about 100 tokens


def chat(count: int) -> list[Message]:
    """Make a conversation of so many messages of 100 tokens, which ends with the Turn's input."""
    ways = [(say(f"u{n}", TEXT), answer(f"a{n}", text=TEXT)) for n in range(count // 2)]
    return [*(message for way in ways for message in way), NOW]


def test_below_threshold_nothing_is_asked() -> None:
    conversation, model = Conversation(chat(8)), Summarizer()
    step(message_compaction, {"maxTokens": 1_000}, conversation, model)
    assert (names(conversation)[:2], model.requests) == (["u0", "a0"], [])


def test_above_it_summary_takes_place_of_older_messages() -> None:
    conversation, model = Conversation(chat(12)), Summarizer()
    step(message_compaction, {"maxTokens": 1_000, "keepMessages": 3}, conversation, model)
    assert names(conversation) == ["msg-step-7-summary", "u5", "a5", "now"]
    summary = conversation.next_messages[0]
    text = "Summary of the conversation so far:\n\nthe summary"
    assert summary.data == {"role": "user", "content": text}
    assert summary.source == {"type": "extension", "extensionName": "short"}
    assert summary.metadata == {"summarizes": 10, "upTo": "now"}
    [request] = model.requests
    assert request["told"].startswith(f"user: {TEXT}\n\nassistant: {TEXT}\n\nuser: ")
    assert (request["model_ref"], request["instructions"]) == (None, message_compaction.INSTRUCTIONS)


def test_model_and_instructions_are_configured() -> None:
    model = Summarizer()
    config = {"maxTokens": 1_000, "modelRef": "Model/small", "instructions": "Be brief."}
    step(message_compaction, config, Conversation(chat(30)), model)
    assert model.requests[0]["model_ref"] == "Model/small"
    assert model.requests[0]["instructions"] == "Be brief."


@pytest.mark.parametrize(("used", "is_asked"), [(980, False), (1_020, True)])
def test_token_count_is_last_usage_plus_estimate(used: int, is_asked: bool) -> None:
    usage = {"input": used - 100, "output": 0, "cached": 5}
    last = answer("a9", usage=usage, text=TEXT)
    model = Summarizer()
    conversation = Conversation([*chat(6)[:-1], last, say("u9", TEXT), NOW])
    step(message_compaction, {"maxTokens": 1_000, "keepMessages": 1}, conversation, model)
    assert bool(model.requests) == is_asked


def test_turn_input_stays_before_summary_of_steps() -> None:
    steps = [m for n in range(10) for m in (answer(f"a{n}", "c"), result(f"r{n}", "c", TEXT))]
    conversation = Conversation([say("u0", TEXT), answer("a"), NOW, *steps])
    step(message_compaction, {"maxTokens": 1_000, "keepMessages": 3}, conversation, Summarizer())
    assert names(conversation) == ["now", "msg-step-7-summary", "a8", "r8", "a9", "r9"]


def test_compaction_counts_only_newer_answers_and_resummarizes_summary() -> None:
    conversation = Conversation(chat(12))
    config = {"maxTokens": 1_000, "keepMessages": 2}
    large = {"input": 5_000, "output": 10}
    conversation.emit({"type": "replace", "targetId": "a5", "message": answer("A5", usage=large)})
    step(message_compaction, config, conversation, Summarizer(TEXT))
    assert names(conversation) == ["msg-step-7-summary", "A5", "now"]
    model = Summarizer()
    step(message_compaction, config, conversation, model)
    assert model.requests == []
    for message in (answer("a6", text=TEXT * 2, usage=large), say("u7", TEXT)):
        conversation.append(message)
    step(message_compaction, config, conversation, model)
    assert model.requests[0]["told"].startswith("user: Summary of the conversation so far:")
    assert names(conversation) == ["msg-step-7-summary", "now", "a6", "u7"]


def test_fewer_messages_are_kept_if_large() -> None:
    conversation = Conversation([say("u0", TEXT), answer("a0", text=TEXT * 20), say("u1", TEXT), NOW])
    step(message_compaction, {"maxTokens": 1_000, "keepMessages": 4}, conversation, Summarizer())
    assert names(conversation) == ["msg-step-7-summary", "u1", "now"]


def test_short_history_is_summarized_only_after_refusal() -> None:
    messages = [say("u0"), answer("a0"), NOW, answer("a1", "c"), result("r1", "c", TEXT * 20)]
    conversation, model = Conversation(messages), Summarizer()
    step(message_compaction, {"maxTokens": 1_000, "keepMessages": 2}, conversation, model)
    assert model.requests == []
    conversation.is_too_long = True
    step(message_compaction, {"maxTokens": 1_000_000, "keepMessages": 2}, conversation, model)
    assert names(conversation) == ["msg-step-7-summary", "now", "a1", "r1"]


def test_overlong_history_is_summarized_part_by_part() -> None:
    model = Summarizer(ModelContextLengthError("too long"), "first", "second")
    conversation = Conversation(chat(12))
    step(message_compaction, {"maxTokens": 1_000, "keepMessages": 2}, conversation, model)
    assert conversation.next_messages[0].data["content"].endswith("first\n\nsecond")
    halves = [len(request["told"].split("\n\n")) for request in model.requests]
    assert halves == [11, 5, 6]


@pytest.mark.parametrize("error", [ModelUnavailableError("away"), ModelContextLengthError("too long")])
def test_without_summary_conversation_stays(error: Exception) -> None:
    conversation = Conversation(chat(12))
    step(message_compaction, {"maxTokens": 1_000}, conversation, Summarizer(*[error] * 20))
    assert conversation.events == []


def test_summarizer_gets_calls_and_results_shortened() -> None:
    messages = [
        answer("a0", "c", text="I look."),
        result("r0", "c", {"lines": "y" * 9_000}),
        answer("a1", text="z" * 9_000),
        NOW,
    ]
    model = Summarizer()
    step(message_compaction, {"maxTokens": 1_000, "keepMessages": 1}, Conversation(messages), model)
    first, second, third = model.requests[0]["told"].split("\n\n")
    assert first == "assistant: I look.\n[calls t__x with {}]"
    assert second.startswith('tool: [result of t__x: {"lines":"yyy')
    assert [len(one) for one in (second, third)] == [len("tool: ") + 4_001, len("assistant: ") + 4_001]
