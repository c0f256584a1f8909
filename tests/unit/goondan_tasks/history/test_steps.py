"""Steps and Turns: their calls, what Redis keeps of them, and what is read back of a long Turn."""

from time import monotonic
from types import SimpleNamespace
from typing import Any

import pytest
from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.contract.calls import Run, identity_of, new_call
from goondan_tasks.contract.catalog import CatalogItem, ToolCatalog, ToolSource
from goondan_tasks.contract.errors import RecordDamagedError, ToolInputValidationError
from goondan_tasks.contract.messages import (
    JsonObject,
    Message,
    ResultMeta,
    ToolCall,
    ToolCallResult,
    wall_clock,
)
from goondan_tasks.contract.model_messages import StepCallResult, message_fault
from goondan_tasks.contract.names import call_identity
from goondan_tasks.history import (
    KeptStep,
    LeftTools,
    ReplyCalls,
    StepCall,
    StepRecord,
    StepStore,
    StepTool,
    TurnCalls,
    TurnHistory,
    digest_of_catalog,
    opening_id,
)
from goondan_tasks.history.history import AT_ONCE, MOST_BYTES

CATALOG = ToolCatalog(
    (CatalogItem(name="legacy.tool.exec", source=ToolSource(type="config", name="legacy")),)
)


def step(index: int) -> StepRecord:
    return StepRecord(
        id=call_identity("coder", "k", "t", f"step-{index}"),
        agent_name="coder",
        instance_key="k",
        turn_id="t",
        trace_id="0" * 32,
        index=index,
        catalog="digest",
    )


def ids(calls: TurnCalls, index: int, *raw: Any) -> list[str]:
    read = calls.of_step(step(index), CATALOG, raw, max_args_bytes=1000)
    return [one.tool_call_id for one in read]


def answer(call: StepCall, output: Any) -> StepCallResult:
    meta = ResultMeta(
        id="id",
        agent_name="coder",
        instance_key="k",
        turn_id="t",
        trace_id="",
        span_id="",
        correlation_id="",
    )
    result = ToolCallResult(
        tool_call_id=call.tool_call_id, tool_name=call.tool_name, status="ok", output=output, meta=meta
    )
    return call.answered(result)


def test_wrapped_union_arguments_are_unwrapped_for_tool() -> None:
    union: JsonObject = {"anyOf": [{"required": ["n"]}, {"required": ["s"]}]}
    item = CatalogItem(name="a.b", parameters=union, source=ToolSource(type="config", name="a"))
    catalog = ToolCatalog((item,))
    [shown] = catalog.to_openai()
    name = shown["function"]["name"]
    raw = [
        {"id": "1", "function": {"name": name, "arguments": '{"arguments": {"n": 1}}'}},
        {"type": "tool_use", "id": "2", "name": name, "input": {"arguments": {"s": "x"}}},
        {"id": "3", "name": "a.b", "args": {"n": 2}},
        {"id": "4", "function": {"name": name, "arguments": '{"arguments": {"n": 1}'}},
    ]

    read = TurnCalls().of_step(step(0), catalog, raw, max_args_bytes=1000)

    assert [one.tool_name for one in read] == ["a.b"] * 4
    assert [one.asked.args for one in read] == [{"n": 1}, {"s": "x"}, {"n": 2}, {}]
    assert read[3].asked.fault


def test_calls_repeating_ids_across_steps_stay_apart() -> None:
    calls = TurnCalls()
    first, other = {"id": "call_1", "name": "a__b"}, {"id": "call_2", "name": "a__b"}
    assert ids(calls, 0, first, other) == ["call_1", "call_2"]
    assert ids(calls, 1, first, first) == ["call_1.step-1", "call_1.step-1.2"]
    assert ids(calls, 2, other) == ["call_2.step-2"]


def test_arbitrary_model_ids_become_unique_within_turn() -> None:
    calls = TurnCalls()
    made_up = ["a", "a", "a.2", "a.2.2", "a.step-1", opening_id(1, 0), opening_id(1, 1), "a.step-1.2"]
    raw = [{"id": one, "name": "a__b"} for one in made_up]
    given = [ids(calls, index, *raw) for index in range(3)]
    unique = {one for step_ids in given for one in step_ids}
    assert len(unique) == 3 * len(made_up)
    assert unique.isdisjoint(opening_id(index, failures) for index in range(3) for failures in range(3))
    assert given == [ids(calls, index, *raw) for index in range(3)]


def test_repeated_request_in_step_yields_same_calls() -> None:
    calls = TurnCalls()
    raw = ({"id": "call_1", "name": "a__b"}, {"id": "call_1", "name": "a__b"})
    assert ids(calls, 0, *raw) == ids(calls, 0, *raw) == ["call_1", "call_1.2"]


def test_name_given_to_provider_resolves_to_tool() -> None:
    given = CATALOG.to_openai()[0]["function"]["name"]
    raw = {"id": "c", "function": {"name": given, "arguments": "{}"}}
    [call] = TurnCalls().of_step(step(0), CATALOG, [raw], max_args_bytes=1000)
    assert (given == "legacy.tool.exec", call.tool_name) == (False, "legacy.tool.exec")


def test_result_keeps_models_id_of_renamed_call() -> None:
    calls = TurnCalls()
    raw = {"id": "call_1", "function": {"name": "a__b", "arguments": "{}"}}
    ids(calls, 0, raw)
    [again] = calls.of_step(step(1), CATALOG, [raw], max_args_bytes=1000)
    told = answer(again, "x")
    assert (told.tool_call_id, told.message["tool_call_id"], told.output) == ("call_1", "call_1", "x")


def calls_in(said: Any, *, most: int = 10_000) -> list[StepCall]:
    return TurnCalls().of_step(step(2), CATALOG, said, max_args_bytes=most)


TEXT = {"type": "text", "text": "I look."}
OPENAI_CALLS = [
    {"id": "c1", "type": "function", "function": {"name": "a__b", "arguments": '{"n": 1}'}},
    {"id": "c2", "type": "function", "function": {"name": "a__c", "arguments": ""}},
]
TOOL_USES = [
    {"type": "tool_use", "id": "c1", "name": "a__b", "input": {"n": 1}},
    {"type": "tool_use", "id": "c2", "name": "a__c", "input": {}},
]
TOOL_CALLS = [
    {"type": "tool-call", "toolCallId": "c1", "toolName": "a__b", "input": {"n": 1}},
    {"type": "tool-call", "toolCallId": "c2", "toolName": "a__c", "input": {}},
]
OURS = {
    "id": "m1",
    "data": {"role": "assistant", "content": [TEXT, *TOOL_CALLS]},
    "metadata": {"tokens": 7},
    "createdAt": "2026-02-01T10:00:00.000Z",
    "source": {"type": "assistant", "stepId": "another"},
}
OPENAI = {"role": "assistant", "content": "I look.", "tool_calls": OPENAI_CALLS}


@pytest.mark.requirement("context.message.holds-the-call", "message.source")
@pytest.mark.parametrize(
    "said",
    [
        OPENAI,
        {"choices": [{"message": OPENAI}]},
        SimpleNamespace(model_dump=lambda: OPENAI),
        {"role": "assistant", "content": [TEXT, *TOOL_USES], "stop_reason": "tool_use"},
        {"role": "assistant", "content": "I look.", "toolCalls": [
            {"id": "c1", "name": "a__b", "arguments": {"n": 1}}, {"id": "c2", "name": "a__c"},
        ]},
        OURS,
        Message.from_wire(OURS),
    ],
)  # fmt: skip
def test_each_call_of_reply_has_whole_model_message(said: Any) -> None:
    first, second = calls_in(said)
    assert (first.asked.id, second.asked.id) == ("c1", "c2")
    assert first.message is not None
    assert first.message == second.message
    assert first.message.data == {"role": "assistant", "content": [TEXT, *TOOL_CALLS]}
    assert first.message.source == {"type": "assistant", "stepId": step(2).id}
    assert [message_fault(first.message, one) for one in ("c1", "c2")] == ["", ""]


def test_goondan_message_keeps_id_metadata_and_time() -> None:
    message = calls_in(OURS)[0].message
    assert message is not None
    assert (message.id, message.metadata, message.created_at) == ("m1", {"tokens": 7}, OURS["createdAt"])


def test_non_call_reply_parts_keep_their_place() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    [call] = calls_in({"role": "assistant", "content": [thought, TOOL_USES[0], TEXT]})
    assert call.message is not None
    assert call.message.data["content"] == [thought, TOOL_CALLS[0], TEXT]


def test_list_of_calls_becomes_one_message() -> None:
    _, second = calls_in(OPENAI_CALLS)
    assert second.message is not None
    assert second.message.data == {"role": "assistant", "content": TOOL_CALLS}


def test_reply_without_calls_has_none() -> None:
    assert calls_in({"role": "assistant", "content": "Done.", "tool_calls": None}) == []


def test_calls_omit_message_with_too_large_copies() -> None:
    said = {"role": "assistant", "content": [{"type": "text", "text": "x" * 1000}, *TOOL_USES]}
    assert len(TOOL_USES) > 1
    most = 1000 * len(TOOL_USES)
    assert {call.message for call in calls_in(said, most=most)} == {None}
    assert None not in {call.message and call.message.id for call in calls_in(said, most=3 * most)}


@pytest.mark.parametrize("text", ["x" * 1000, "\ud800"])
def test_calls_omit_oversized_or_non_json_message(text: str) -> None:
    [call] = calls_in(
        {"role": "assistant", "content": [{"type": "text", "text": text}, TOOL_USES[0]]}, most=500
    )
    assert call.message is None
    assert call.asked.fault is None


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ({"role": "user", "content": [TOOL_USES[0]]}, "has the role 'assistant', not 'user'"),
        ({"name": "a__b", "args": {}}, "has the role 'assistant', not None"),
        ({"choices": [{"message": None}]}, "a model's reply"),
        ({"role": "assistant", "content": 7}, "content is text or a list of parts"),
        ({"role": "assistant", "content": ["text"]}, "content is text or a list of parts"),
        ({"role": "assistant", "tool_calls": 5}, "tool_calls"),
        ({**OURS, "source": {"type": "martian"}}, "unknown type 'martian'"),
        ({**OURS, "data": {"role": "tool", "content": []}}, "has the role 'assistant', not 'tool'"),
        ({**OURS, "id": 5}, "The Message is not valid: id: must be text"),
        ("a__b", "a model's reply"),
        (None, "a model's reply"),
        (5, "a model's reply"),
    ],
)
def test_invalid_model_reply_is_refused_with_reason(said: Any, told: str) -> None:
    with pytest.raises(ToolInputValidationError, match=told):
        calls_in(said)


@pytest.mark.requirement("result.tool-call-id")
def test_repeated_call_id_is_kept_beside_unique_id() -> None:
    calls, raw = TurnCalls(), [{"id": "call_1", "name": "a__b"}]
    [first] = calls.of_step(step(0), CATALOG, raw, max_args_bytes=1000)
    [again] = calls.of_step(step(1), CATALOG, raw, max_args_bytes=1000)
    assert (first.tool_call_id, first.model_call_id) == ("call_1", None)
    assert (again.tool_call_id, again.model_call_id) == ("call_1.step-1", "call_1")
    assert again.message is not None
    assert message_fault(again.message, "call_1") == ""


def test_call_with_broken_arguments_is_answered_in_order() -> None:
    raw = [
        {"id": "c1", "function": {"name": "a__b", "arguments": "{}"}},
        {"id": "c2", "function": {"name": "a__b", "arguments": "{"}},
        {"id": "c3", "function": {"name": "a__b", "arguments": "{}"}},
    ]
    calls = TurnCalls().of_step(step(0), CATALOG, raw, max_args_bytes=1000)
    reply = ReplyCalls.of(calls, step(0), help_url="https://h/", correlation_id="t")

    assert reply.submitted() == [calls[0], calls[2]]
    told = reply.answered([answer(calls[0], "first"), answer(calls[2], "third")])

    assert [one.tool_call_id for one in told] == ["c1", "c2", "c3"]
    assert [one.status for one in told] == ["ok", "error", "ok"]
    assert told[1].error is not None
    assert told[1].error.code == "E_TOOL_INVALID_ARGS"
    assert told[1].error.help_url == "https://h/E_TOOL_INVALID_ARGS"
    assert told[1].meta.id == call_identity("coder", "k", "t", "c2")


KEYS = Keys()


def item(name: str) -> CatalogItem:
    return CatalogItem(name=name, source=ToolSource(type="config", name="tool"))


def keep(
    store: StepStore,
    index: int = 0,
    names: tuple[str, ...] = ("a__b",),
    registered: tuple[StepTool, ...] = (),
    unregistered: tuple[str, ...] = (),
) -> StepRecord:
    catalog = serializer.encode([item(name).to_wire() for name in names])
    record = StepRecord(
        id=call_identity("coder", "k", "t", f"step-{index}"),
        agent_name="coder",
        instance_key="k",
        turn_id="t",
        trace_id="0" * 32,
        index=index,
        catalog=digest_of_catalog(catalog),
        blocks=({"type": "custom.note"},),
    )
    left = LeftTools(registered=registered, unregistered=unregistered)
    store.run(store.keeping(record, catalog, message={"role": "user"}, left=left))
    return record


def test_step_is_read_as_it_was_kept(redis: Redis) -> None:
    record = keep(StepStore(redis, KEYS, 60), names=("a__b", "c__d"))
    store = StepStore(redis, KEYS, 60)
    kept = store.read(record.id)
    assert kept is not None
    assert kept.record == record
    assert kept.catalog == ToolCatalog((item("a__b"), item("c__d")))
    assert monotonic() < kept.until <= monotonic() + 60
    assert store.message(record.id) == {"role": "user"}


def test_steps_with_same_tools_share_catalog_and_all_expire(
    redis: Redis,
) -> None:
    store = StepStore(redis, KEYS, 60)
    keep(store, 0)
    keep(store, 1)
    keep(store, 2, names=("c__d",))
    names = [str(name, "utf-8") if isinstance(name, bytes) else name for name in redis.keys("*")]
    assert sum(name.startswith("goondan:catalog:") for name in names) == 2
    assert all(0 < redis.ttl(name) <= 60 for name in names)


@pytest.mark.parametrize(
    "step_id", ["", "step", "0" * 36, call_identity("coder", "k", "t", "step-9"), "x" * 100_000, "\ud800"]
)
def test_unknown_step_is_none(redis: Redis, step_id: str) -> None:
    store = StepStore(redis, KEYS, 60)
    keep(store)
    assert store.read(step_id) is None


def test_step_without_its_catalog_has_expired(redis: Redis) -> None:
    record = keep(StepStore(redis, KEYS, 60))
    redis.delete(KEYS.catalog(record.catalog))
    assert StepStore(redis, KEYS, 60).read(record.id) is None


def test_newly_opened_step_needs_only_its_catalog(redis: Redis) -> None:
    record = keep(StepStore(redis, KEYS, 60))
    redis.delete(KEYS.step(record.id))
    store = StepStore(redis, KEYS, 60)
    opened = store.with_catalog(record)
    assert opened is not None
    assert (opened.record, opened.catalog) == (record, ToolCatalog((item("a__b"),)))
    redis.flushall()
    assert store.with_catalog(record) is not None  # another Step had the same one
    assert StepStore(redis, KEYS, 60).with_catalog(record) is None


def test_steps_read_together_fail_only_where_damaged(redis: Redis) -> None:
    store = StepStore(redis, KEYS, 60)
    first, second = keep(store, 0), keep(store, 1)
    redis.delete(KEYS.step(second.id))
    redis.set(KEYS.step(second.id), "another program's")
    read, damaged, unknown = store.read_all([first.id, second.id, "unknown"])
    assert isinstance(read, KeptStep)
    assert (read.record, type(damaged), unknown) == (first, RecordDamagedError, None)


def test_step_with_thousands_of_fields_is_kept(redis: Redis) -> None:
    store, names = StepStore(redis, KEYS, 60), tuple(f"t{number:05}__x" for number in range(5000))
    record = keep(store, unregistered=names)
    assert list(store.left_by(record.id, call("a")).unregistered) == list(names)


def test_step_of_newer_version_is_refused_with_reason(redis: Redis) -> None:
    store = StepStore(redis, KEYS, 60)
    record = keep(store)
    redis.hset(KEYS.step(record.id), "step", serializer.encode({**record.to_wire(), "v": 2}))
    with pytest.raises(ValueError, match="newer than 1"):
        store.read(record.id)


def test_registrations_of_step_reach_only_its_turn(redis: Redis) -> None:
    store = StepStore(redis, KEYS, 60)
    tool = StepTool(item=item("late__tool"), step_id="first")
    record = keep(store, registered=(tool,), unregistered=("old__tool",))
    store.note_unregistered(record.id, ["older__tool", "old__tool"])
    own = new_call("coder", "goondan__step", {}, {"instance_key": "k", "turn_id": "t"})
    other = new_call("coder", "goondan__step", {}, {"instance_key": "other", "turn_id": "t"})
    left = LeftTools(registered=(tool,), unregistered=("old__tool", "older__tool"))
    assert store.left_by(record.id, own) == left
    assert store.left_by(record.id, other) == LeftTools()
    assert store.left_by("no step", own) == LeftTools()
    assert 0 < redis.ttl(KEYS.step(record.id)) <= 60


def test_registrations_of_step_stay_within_its_revision(redis: Redis) -> None:
    store = StepStore(redis, KEYS, 60)
    record = keep(
        store, registered=(StepTool(item=item("late__tool"), step_id="first"),), unregistered=("old__tool",)
    )
    own = new_call("coder", "goondan__step", {}, {"instance_key": "k", "turn_id": "t"})
    assert len(store.left_by(record.id, own, bundle_ref=record.bundle_ref).registered) == 1
    assert store.left_by(record.id, own, bundle_ref="r2") == LeftTools()


def test_turn_record_has_steps_messages_and_calls(
    redis: Redis,
) -> None:
    store = StepStore(redis, KEYS, 60)
    first = keep(store, 0)
    store.run(store.noting(first, ["id-1", "id-2"]))
    keep(store, 1)
    entries = store.turn("coder", "k", "t")
    assert [(entry.index, entry.message, entry.call_ids) for entry in entries] == [
        (0, {"role": "user"}, ()),
        (0, None, ("id-1", "id-2")),
        (1, {"role": "user"}, ()),
    ]
    assert store.turn("coder", "k", "another") == []


def test_calls_noted_twice_appear_once_in_turn(redis: Redis) -> None:
    store = StepStore(redis, KEYS, 60)
    step = keep(store, 0)
    for _ in range(2):
        store.run(store.noting(step, ["id-1"]))
    assert [entry.call_ids for entry in store.turn("coder", "k", "t")] == [(), ("id-1",)]


STEP = StepRecord(
    id="s", agent_name="coder", instance_key="k", turn_id="t", trace_id="0" * 32, index=0, catalog="x"
)


def call(call_id: str) -> ToolCall:
    fields = {"turn_id": "t", "instance_key": "k", "tool_call_id": call_id}
    return new_call("coder", "calc.add", {"a": 1}, fields)


def ok(one: ToolCall, output: str) -> JsonObject:
    run = Run(identity_of(one), one, "w1", 1, wall_clock(), wall_clock)
    return run.ok(output, None).to_wire()


def keep_calls(redis: Redis, *calls: ToolCall) -> None:
    for one in calls:
        redis.hset(KEYS.call(identity_of(one)), "call", serializer.encode(one.to_wire()))
    store = StepStore(redis, KEYS, 60)
    store.run(store.noting(STEP, [identity_of(one) for one in calls]))


def test_unknown_turn_has_no_history(redis: Redis) -> None:
    assert StepStore(redis, KEYS, 60).history(call("a")) == TurnHistory([], {})


def test_turn_history_tolerates_unfinished_and_missing_calls(redis: Redis) -> None:
    here, gone = call("a"), call("b")
    keep_calls(redis, here, gone)
    redis.delete(KEYS.call(identity_of(gone)))

    history = StepStore(redis, KEYS, 60).history(here)

    assert [entry.call_ids for entry in history.entries] == [(identity_of(here), identity_of(gone))]
    assert [(past.call, past.result) for past in history.calls.values()] == [(here, None)]


def test_no_more_than_latest_calls_are_read(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("goondan_tasks.history.history.MOST_CALLS", 2)
    calls = [call(name) for name in "abc"]
    keep_calls(redis, calls[0])
    keep_calls(redis, *calls[1:])

    history = StepStore(redis, KEYS, 60).history(calls[0])

    assert {past.call.tool_call_id for past in history.calls.values()} == {"b", "c"}


def test_latest_large_outputs_are_read_to_limit(redis: Redis) -> None:
    calls = [call(name) for name in "abc"]
    keep_calls(redis, *calls)
    for one in calls:
        output = ok(one, "x" * (MOST_BYTES * 2 // 5))
        redis.hset(KEYS.call(identity_of(one)), "result", serializer.encode(output))

    history = StepStore(redis, KEYS, 60).history(calls[0])

    assert {past.call.tool_call_id for past in history.calls.values()} == {"b", "c"}
    assert all(past.result is not None for past in history.calls.values())


def test_long_record_is_read_from_end_in_order(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = [call(str(number)) for number in range(80)]
    for one in calls:
        keep_calls(redis, one)
    ids = [identity_of(one) for one in calls]

    whole = StepStore(redis, KEYS, 60).history(calls[0])
    monkeypatch.setattr("goondan_tasks.history.history.MOST_BYTES", 1_000)
    lately = StepStore(redis, KEYS, 60).history(calls[0])

    assert [call_id for entry in whole.entries for call_id in entry.call_ids] == ids
    assert [call_id for entry in lately.entries for call_id in entry.call_ids] == ids[-AT_ONCE:]
    assert len(whole.calls) == 80


def test_no_script_holds_redis_up(redis: Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("a script")

    keep_calls(redis, call("a"))
    monkeypatch.setattr(redis, "evalsha", refuse)
    monkeypatch.setattr(redis, "eval", refuse)
    assert len(StepStore(redis, KEYS, 60).history(call("a")).calls) == 1
