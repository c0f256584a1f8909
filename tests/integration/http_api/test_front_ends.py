"""The doors for front ends; the agent ``builder`` is played by the test, its tools have a worker."""

import asyncio
import json
import threading
import uuid
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from pydantic import SecretStr
from redis import Redis
from starlette.testclient import TestClient

from broker_config import serializer
from broker_config.connections import connect
from broker_config.keys import Keys
from goondan_tasks.client import Client, TextDelta, ToolCalled
from goondan_tasks.client.event_receiver import ReceivedEvent
from goondan_tasks.client.turn_events import Told, ToolAnswered
from goondan_tasks.contract.names import call_identity
from goondan_tasks.fleet.http_tokens import auth_of
from goondan_tasks.ledger.record import CallRecord
from goondan_web.application import make_application
from goondan_web.callers import LOCAL
from goondan_web.doors.ag_ui import ag_ui_door
from goondan_web.doors.front_ends.runs import Decision, RunEvent, Runs
from goondan_web.doors.vercel import vercel_door
from tests.waiting import wait_until

PATIENCE = 60.0
KEYS = Keys()
AGENT = "/ag-ui/builder"
CHAT = "/vercel/builder"


@pytest.fixture(scope="module")
def pages(client: Client) -> Iterator[TestClient]:
    doors = [ag_ui_door(client, client.settings), vercel_door(client, client.settings)]
    app = make_application(doors, client.settings, "127.0.0.1")
    with TestClient(app, base_url="http://127.0.0.1") as pages:
        yield pages


@pytest.fixture
def thread() -> str:
    return f"thread-{uuid.uuid4().hex[:8]}"


@pytest.fixture
def redis(client: Client) -> Iterator[Redis]:
    with connect(client.settings.redis_url) as redis:
        yield redis


@pytest.fixture
def asking() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(2) as asking:
        yield asking


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch) -> threading.Semaphore:
    """Return what counts the streams that have begun."""
    followed, follow = threading.Semaphore(0), Runs.turn

    def noted(runs: Runs, turn_id: str) -> AsyncGenerator[RunEvent]:
        followed.release()
        return follow(runs, turn_id)

    monkeypatch.setattr(Runs, "turn", noted)
    return followed


def run_input(thread: str, text: str = "Build it.", **fields: Any) -> dict[str, Any]:
    messages = [{"id": "m-1", "role": "user", "content": text}]
    return {"threadId": thread, "runId": "r-1", "messages": messages, "tools": [], "context": [], **fields}


def chat_input(thread: str, text: str = "Build it.", **fields: Any) -> dict[str, Any]:
    messages = [{"id": "m-1", "role": "user", "parts": [{"type": "text", "text": text}]}]
    return {"id": thread, "messages": messages, "trigger": "submit-message", **fields}


def sent(answer: Any) -> list[dict[str, Any]]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    return [json.loads(line) for line in lines if line != "[DONE]"]


def kinds(events: list[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


def received(client: Client, thread: str) -> ReceivedEvent:
    event = client.receive("builder", thread, timeout=PATIENCE)
    assert event is not None
    return event


def tell(redis: Redis, turn_id: str, *events: Told) -> None:
    """Write to the stream of a Turn as a worker does."""
    entries = serializer.encode([event.to_wire() for event in events])
    assert redis.xadd(KEYS.turn_stream(turn_id), {"entries": entries}, nomkstream=True) is not None


def turn_of(thread: str, run: str = "r-1") -> str:
    return call_identity("builder", thread, f"turn-{run}", run)


def held_call(client: Client, thread: str) -> CallRecord:
    call = client.submit("builder", "vault__look", {}, instance_key=thread, turn_id="turn-r-1")
    wait_until(lambda: client.record(call.id).awaits == "approval", PATIENCE)
    return client.record(call.id)


def interrupted(client: Client, redis: Redis, thread: str, answer: "Future[Any]") -> CallRecord:
    """Play a Turn that ends with a call that waits for an approval."""
    event = received(client, thread)
    record = held_call(client, thread)
    call = {"step": 0, "id": "call_1", "call_id": record.id, "tool": "vault__look"}
    tell(
        redis,
        turn_of(thread),
        ToolCalled(**call, args={}),
        ToolAnswered(**call, status="pending", awaits="approval"),
    )
    client.reply(event, "I wait.")
    answer.result(PATIENCE)
    return record


def test_run_is_streamed_and_turn_has_thread_and_message(
    client: Client, pages: TestClient, redis: Redis, thread: str, asking: ThreadPoolExecutor
) -> None:
    answer = asking.submit(pages.post, AGENT, json=run_input(thread, state={"page": 3}))
    event = received(client, thread)
    tell(redis, turn_of(thread), TextDelta(step=0, text="Built.", answer_id="a"))
    client.reply(event, "Built.")
    events = sent(answer.result(PATIENCE))
    assert (event.input, event.event.id, event.event.metadata["agUi"]) == (
        "Build it.",
        "r-1",
        {"state": {"page": 3}},
    )
    assert [one["delta"] for one in events if "delta" in one] == ["Built."]
    assert (events[0]["type"], events[-1]["outcome"]) == ("RUN_STARTED", {"type": "success"})


def test_repeated_run_is_same_turn(
    client: Client, pages: TestClient, thread: str, asking: ThreadPoolExecutor
) -> None:
    answers = [asking.submit(pages.post, AGENT, json=run_input(thread)) for _ in range(2)]
    client.reply(received(client, thread), "once")
    first, second = (sent(answer.result(PATIENCE)) for answer in answers)
    assert first == second
    assert sent(pages.post(AGENT, json=run_input(thread))) == first
    assert client.receive("builder", thread, timeout=0) is None


def test_another_message_under_same_run_is_conflict(
    client: Client, pages: TestClient, thread: str, asking: ThreadPoolExecutor
) -> None:
    answer = asking.submit(pages.post, AGENT, json=run_input(thread))
    client.reply(received(client, thread), "once")
    answer.result(PATIENCE)
    refused = pages.post(AGENT, json=run_input(thread, "Build another."))
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "E_TOOL_CALL_CONFLICT")


def test_returning_page_gets_events_after_its_place(
    client: Client, pages: TestClient, redis: Redis, thread: str, asking: ThreadPoolExecutor
) -> None:
    answer = asking.submit(pages.post, AGENT, json=run_input(thread))
    event = received(client, thread)
    call = {"step": 0, "id": "call_1", "call_id": "c-1", "tool": "build__run"}
    tell(redis, turn_of(thread), ToolCalled(**call))
    tell(redis, turn_of(thread), ToolAnswered(**call, status="ok", output=1))
    client.reply(event, "Built.")
    whole = answer.result(PATIENCE)
    place = next(line for line in whole.text.splitlines() if line.startswith("id: ")).removeprefix("id: ")
    address = f"{AGENT}/threads/{thread}/runs/r-1"
    rest = sent(pages.get(address, params={"after": place}))
    assert kinds(rest)[:2] == ["RUN_STARTED", "TOOL_CALL_RESULT"]
    assert sent(pages.get(address, headers={"Last-Event-ID": place})) == rest
    assert sent(pages.get(address)) == sent(whole)


def call_for_page(client: Client, redis: Redis, thread: str, turn_id: str, **fields: Any) -> CallRecord:
    """Play a Turn whose call the page has to carry out."""
    event = received(client, thread)
    call = client.submit("builder", "jobs__begin", {}, instance_key=thread, turn_id="turn-r-1", **fields)
    wait_until(lambda: client.record(call.id).awaits == "completion", PATIENCE)
    told = {"step": 0, "id": "call_1", "call_id": call.id, "tool": "jobs__begin"}
    pending = ToolAnswered(**told, status="pending", awaits="completion")
    tell(redis, turn_id, ToolCalled(**told, args={}), pending)
    client.reply(event, "The page does it.")
    return client.record(call.id)


PAGE_TOOL = {"name": "jobs__begin", "description": "Begin a job.", "parameters": {"type": "object"}}


@pytest.mark.parametrize(
    ("said", "status", "seen"),
    [
        ({"content": '{"color": "red"}'}, "ok", {"color": "red"}),
        ({"content": "red, perhaps"}, "ok", "red, perhaps"),
        ({"content": ""}, "ok", ""),
        ({"content": "", "error": "The user has left."}, "error", "The user has left."),
    ],
)
def test_page_carries_out_call_of_agent(
    client: Client,
    pages: TestClient,
    redis: Redis,
    thread: str,
    asking: ThreadPoolExecutor,
    said: dict[str, Any],
    status: str,
    seen: Any,
) -> None:
    answer = asking.submit(pages.post, AGENT, json=run_input(thread, tools=[PAGE_TOOL]))
    record = call_for_page(client, redis, thread, turn_of(thread))
    events = sent(answer.result(PATIENCE))
    assert "TOOL_CALL_RESULT" not in kinds(events)
    assert (events[1]["type"], events[-1]["outcome"]) == ("STEP_STARTED", {"type": "success"})
    result = {"id": "m-3", "role": "tool", "toolCallId": record.id, **said}
    messages = [{"id": "m-2", "role": "assistant", "content": "The page does it."}, result]
    asked = run_input(thread, runId="r-2", messages=messages, tools=[PAGE_TOOL])
    resumed = asking.submit(pages.post, AGENT, json=asked)
    event = received(client, thread)
    assert event.input["status"] == status
    assert (event.input["output"] if status == "ok" else event.input["error"]["message"]) == seen
    client.reply(event, "Thank you.")
    events = sent(resumed.result(PATIENCE))
    assert (events[1]["toolCallId"], events[-1]["result"]) == (record.id, "Thank you.")
    assert sent(pages.post(AGENT, json=asked)) == events  # a repeated result changes nothing


def given_results(thread: str, parts: list[dict[str, Any]]) -> dict[str, Any]:
    return {"id": thread, "messages": [{"id": "m-2", "role": "assistant", "parts": parts}]}


def test_chat_carries_out_call_beside_calls_of_workers(
    client: Client, pages: TestClient, redis: Redis, thread: str, asking: ThreadPoolExecutor
) -> None:
    asked = chat_input(thread)
    asked["messages"][0]["id"] = "r-1"
    answer = asking.submit(pages.post, CHAT, json=asked)
    record = call_for_page(client, redis, thread, turn_of(thread))
    answer.result(PATIENCE)
    other = client.submit("builder", "guarded__look", {}, instance_key=thread)
    other.result(PATIENCE)
    parts = [
        {"type": "dynamic-tool", "state": "output-available", "toolCallId": call_id, "output": {"n": 1}}
        for call_id in (record.id, other.id)
    ]
    given = given_results(thread, parts)
    completed = asking.submit(pages.post, CHAT, json=given)
    client.reply(received(client, thread), "Thank you.")
    chunks = sent(completed.result(PATIENCE))
    assert [(one["toolCallId"], one["output"]) for one in chunks if "output" in one] == [
        (record.id, {"n": 1})
    ]
    assert [one["delta"] for one in chunks if "delta" in one] == ["Thank you."]
    assert sent(pages.post(CHAT, json=given)) == chunks
    refused = pages.post(CHAT, json=given_results(thread, parts[1:]))  # only of a call that never waited
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "E_CALL_NOT_PENDING")


def test_result_for_call_awaiting_approval_is_refused(client: Client, pages: TestClient, thread: str) -> None:
    record = held_call(client, thread)
    result = {"id": "m", "role": "tool", "toolCallId": record.id, "content": "done"}
    answer = pages.post(AGENT, json=run_input(thread, messages=[result]))
    assert (answer.status_code, answer.json()["error"]["code"]) == (409, "E_CALL_NOT_PENDING")
    other = pages.post(AGENT, json=run_input(f"{thread}-other", messages=[result]))
    assert other.status_code == 404
    assert client.record(record.id).awaits == "approval"
    client.cancel(record.id)


def test_approval_interrupts_run_and_next_run_applies_it(
    client: Client, pages: TestClient, redis: Redis, thread: str, asking: ThreadPoolExecutor
) -> None:
    answer = asking.submit(pages.post, AGENT, json=run_input(thread))
    record = interrupted(client, redis, thread, answer)
    [interrupt] = sent(answer.result(PATIENCE))[-1]["outcome"]["interrupts"]
    assert (interrupt["id"], interrupt["metadata"]["tool"]) == (record.id, "vault__look")
    entry = {"interruptId": record.id, "status": "resolved", "payload": {"approved": True}}
    resume = run_input(thread, runId="r-2", messages=[], resume=[entry])
    resumed = asking.submit(pages.post, AGENT, json=resume)
    client.reply(received(client, thread), "It is open.")
    events = sent(resumed.result(PATIENCE))
    assert kinds(events)[:2] == ["RUN_STARTED", "TOOL_CALL_RESULT"]
    assert (events[1]["toolCallId"], events[-1]["result"]) == (record.id, "It is open.")
    assert sent(pages.post(AGENT, json=resume)) == events  # a repeated answer changes nothing
    again = sent(pages.get(f"{AGENT}/threads/{thread}/runs/r-1"))
    assert again[-1]["result"] == "It is open."


def test_call_approved_with_other_arguments_is_reported_to_page(
    client: Client, pages: TestClient, redis: Redis, thread: str, asking: ThreadPoolExecutor
) -> None:
    answer = asking.submit(pages.post, AGENT, json=run_input(thread))
    record = interrupted(client, redis, thread, answer)
    [interrupt] = sent(answer.result(PATIENCE))[-1]["outcome"]["interrupts"]
    assert "editedArgs" in interrupt["responseSchema"]["properties"]
    assert interrupt["expiresAt"] > record.call.to_wire().get("notBefore", "2026")
    payload = {"approved": True, "editedArgs": {"door": "back"}}
    entry = {"interruptId": record.id, "status": "resolved", "payload": payload}
    resumed = asking.submit(
        pages.post, AGENT, json=run_input(thread, runId="r-2", messages=[], resume=[entry])
    )
    event = received(client, thread)
    client.reply(event, "It is open.")
    events = sent(resumed.result(PATIENCE))
    assert event.input["edited"]["args"] == {"door": "back"}
    assert kinds(events)[1:3] == ["CUSTOM", "TOOL_CALL_RESULT"]
    assert (events[1]["name"], events[1]["value"]["args"]) == ("goondan.edited", {"door": "back"})


def test_user_of_chat_denies_call(
    client: Client, pages: TestClient, redis: Redis, thread: str, asking: ThreadPoolExecutor
) -> None:
    # the message's id is that of the Turn's event
    asked = chat_input(thread)
    asked["messages"][0]["id"] = "r-1"
    answer = asking.submit(pages.post, CHAT, json=asked)
    record = interrupted(client, redis, thread, answer)
    assert kinds(sent(answer.result(PATIENCE)))[-2:] == ["tool-approval-request", "finish"]
    approval = {"id": record.id, "approved": False, "reason": "not now"}
    part = {"type": "dynamic-tool", "state": "approval-responded", "approval": approval}
    decided = {"id": thread, "messages": [{"id": "m-2", "role": "assistant", "parts": [part]}]}
    denied = asking.submit(pages.post, CHAT, json=decided)
    event = received(client, thread)
    client.reply(event, "Then not.")
    assert "not now" in event.input["error"]["message"]
    chunks = sent(denied.result(PATIENCE))
    assert chunks[0] == {"type": "start"}
    assert chunks[1] == {"type": "tool-output-denied", "toolCallId": record.id}


def test_page_leaving_after_decision_leaves_no_thread(client: Client, thread: str) -> None:
    record = held_call(client, thread)
    decision = Decision(record.id, is_approved=True)

    async def left() -> None:
        events = await Runs(client).decide("builder", thread, [decision], [], LOCAL)
        await anext(events)
        reading = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        while not reading.done():  # as a server does whose client has left
            reading.cancel()
            await asyncio.sleep(0)
        await events.aclose()

    asyncio.run(left())
    wait_until(lambda: not any(one.name == "goondan-run" for one in threading.enumerate()), 30)
    client.reply(received(client, thread), "It is open.")


def test_reloaded_chat_continues_its_open_turn(
    client: Client,
    pages: TestClient,
    thread: str,
    asking: ThreadPoolExecutor,
    followed: threading.Semaphore,
) -> None:
    address = f"{CHAT}/{thread}/stream"
    assert pages.get(address).status_code == 204
    answer = asking.submit(pages.post, CHAT, json=chat_input(thread))
    event = received(client, thread)
    again = asking.submit(pages.get, address)
    assert all(followed.acquire(timeout=PATIENCE) for _ in range(2))
    client.reply(event, "Built.")
    assert sent(again.result(PATIENCE)) == sent(answer.result(PATIENCE))
    assert answer.result().headers["x-vercel-ai-ui-message-stream"] == "v1"
    assert answer.result().text.endswith("data: [DONE]\n\n")
    assert pages.get(address).status_code == 204


USER = {"id": "m", "role": "user"}
EDITED_WRONGLY = {"approved": True, "editedArgs": [1]}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"threadId": ""}, "threadId"),
        ({"threadId": 7}, "threadId"),
        ({"runId": None}, "runId"),
        ({"runId": "x" * 300}, "runId"),
        ({"messages": None}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": [{"id": "m", "role": "assistant", "content": "Hi"}]}, "must be the user's"),
        ({"messages": [{**USER, "content": " "}]}, "empty"),
        ({"messages": [{**USER, "content": [{"type": "image", "source": {}}]}]}, "not only text"),
        ({"messages": [{**USER, "content": {"text": "x"}}]}, "not only text"),
        ({"tools": [{"name": "pick", "description": "", "parameters": {}}]}, "has no tool 'pick'"),
        ({"tools": [{"description": "", "parameters": {}}]}, "tools"),
        ({"messages": [{"id": "m", "role": "tool", "content": "7"}]}, "needs a toolCallId"),
        ({"messages": [{"id": "m", "role": "tool", "toolCallId": "c", "content": 7}]}, "not only text"),
        ({"resume": [{"interruptId": "c", "status": "maybe"}]}, "resume"),
        ({"resume": [{"interruptId": "c", "status": "resolved", "payload": "yes"}]}, "resume"),
        ({"resume": [{"interruptId": "c", "status": "resolved", "payload": EDITED_WRONGLY}]}, "resume"),
    ],
)
def test_invalid_run_is_refused_before_stream(
    pages: TestClient, thread: str, change: dict[str, Any], said: str
) -> None:
    answer = pages.post(AGENT, json=run_input(thread) | change)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "E_TOOL_INVALID_ARGS")
    assert said in error["message"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"id": ""}, "id"),
        ({"messages": []}, "messages"),
        ({"messages": [{"id": "m", "role": "assistant", "parts": []}]}, "must be the user's"),
        ({"messages": [{**USER, "parts": [{"type": "file", "url": "data:"}]}]}, "not only text"),
        ({"messages": [{**USER, "parts": "x"}]}, "parts"),
        ({"trigger": "regenerate-message"}, "answer a message again"),
        (
            {"messages": [{"id": "m", "role": "assistant", "parts": [{"state": "approval-responded"}]}]},
            "approved",
        ),
        (
            {"messages": [{"id": "m", "role": "assistant", "parts": [{"state": "output-available"}]}]},
            "needs its toolCallId",
        ),
    ],
)
def test_invalid_chat_is_refused_before_stream(
    pages: TestClient, thread: str, change: dict[str, Any], said: str
) -> None:
    answer = pages.post(CHAT, json=chat_input(thread) | change)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, "E_TOOL_INVALID_ARGS")
    assert said in error["message"]


@pytest.mark.parametrize("address", ["/ag-ui/nobody", "/vercel/nobody"])
def test_unknown_agent_is_not_found(pages: TestClient, thread: str, address: str) -> None:
    body = run_input(thread) | chat_input(thread) | {"messages": [{**USER, "content": "x", "parts": []}]}
    body["messages"][0]["parts"] = [{"type": "text", "text": "x"}]
    answer = pages.post(address, json=body)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "E_AGENT_NOT_FOUND")


def test_unknown_run_is_not_found_and_wrong_place_refused(pages: TestClient, thread: str) -> None:
    address = f"{AGENT}/threads/{thread}/runs/r-1"
    assert pages.get(address).status_code == 404
    assert pages.get(address, params={"after": "yesterday"}).status_code == 400


def test_run_is_shown_to_its_user_alone(
    client: Client, thread: str, asking: ThreadPoolExecutor, followed: threading.Semaphore
) -> None:
    tokens = {
        name: {"token": name, "scopes": ["call:builder", *more], "user": name}
        for name, more in {"ann": (), "bob": (), "lead": ("read",)}.items()
    }
    settings = client.settings.model_copy(update={"http_tokens": SecretStr(json.dumps(tokens))})
    doors = [ag_ui_door(client, settings), vercel_door(client, settings)]
    app = make_application(doors, settings, "127.0.0.1")
    run, chat = f"{AGENT}/threads/{thread}/runs/r-1", f"{CHAT}/{thread}/stream"
    fields: Any = {"instance_key": thread, "event_id": "r-1", "keep": 60, "auth": auth_of("ann")}
    turn = client.start_turn("builder", "Build it.", **fields)

    with TestClient(app, base_url="http://127.0.0.1") as pages:

        def answer(path: str, name: str) -> Any:
            return pages.get(path, headers={"Authorization": f"Bearer {name}"})

        refused = [answer(path, "bob").status_code for path in (run, chat)]
        shown = [asking.submit(answer, chat, name) for name in ("ann", "lead")]
        assert all(followed.acquire(timeout=PATIENCE) for _ in shown)
        client.reply(received(client, thread), "Built.")
        assert refused == [404, 204]
        assert [one.result(PATIENCE).status_code for one in shown] == [200, 200]
        assert [answer(run, name).status_code for name in ("ann", "lead", "bob")] == [200, 200, 404]
    assert turn.id == turn_of(thread)


def test_decision_and_result_together_both_take_effect(
    client: Client, pages: TestClient, thread: str, asking: ThreadPoolExecutor
) -> None:
    held = held_call(client, thread)
    begun = client.submit("builder", "jobs__begin", {}, instance_key=thread)
    wait_until(lambda: client.record(begun.id).awaits == "completion", PATIENCE)
    # as useChat sends them with lastAssistantMessageIsCompleteWithApprovalResponses
    approval = {"id": held.id, "approved": False}
    answered = {"type": "dynamic-tool", "state": "output-available"}
    parts: list[dict[str, Any]] = [
        {**answered, "toolCallId": str(uuid.uuid4()), "output": "that of a call whose record has expired"},
        {"type": "dynamic-tool", "state": "approval-responded", "approval": approval},
        {**answered, "toolCallId": begun.id, "output": {"n": 1}},
        {**answered, "toolCallId": begun.id, "output": {"n": 2}},
    ]
    answer = asking.submit(pages.post, CHAT, json=given_results(thread, parts))
    for _ in range(2):
        event = received(client, thread)
        client.reply(event, f"{event.input['status']}.")
    chunks = sent(answer.result(PATIENCE))
    assert [(one["toolCallId"], one["output"]) for one in chunks if "output" in one] == [(begun.id, {"n": 1})]
    assert [one["toolCallId"] for one in chunks if one["type"] == "tool-output-denied"] == [held.id]
    assert sorted(one["delta"] for one in chunks if "delta" in one) == ["error.", "ok."]


def test_other_users_call_is_neither_decided_nor_shown(client: Client, thread: str) -> None:
    scopes = ["call:builder", "approve"]
    tokens = {name: {"token": name, "scopes": scopes, "user": name} for name in ("ann", "bob")}
    settings = client.settings.model_copy(update={"http_tokens": SecretStr(json.dumps(tokens))})
    app = make_application([ag_ui_door(client, settings)], settings, "127.0.0.1")
    call = client.submit("builder", "vault__look", {}, instance_key=thread, auth=auth_of("ann"))
    wait_until(lambda: client.record(call.id).awaits == "approval", PATIENCE)
    entry = {"interruptId": call.id, "status": "resolved", "payload": True}
    with TestClient(app, base_url="http://127.0.0.1") as pages:
        headers = {"Authorization": "Bearer bob"}
        answer = pages.post(AGENT, json=run_input(thread, messages=[], resume=[entry]), headers=headers)
    assert answer.status_code == 404
    assert client.record(call.id).awaits == "approval"
    client.cancel(call.id)


def test_call_of_another_user_cannot_be_carried_out(client: Client, thread: str) -> None:
    tokens = {name: {"token": name, "scopes": ["call:builder"], "user": name} for name in ("ann", "bob")}
    settings = client.settings.model_copy(update={"http_tokens": SecretStr(json.dumps(tokens))})
    app = make_application([ag_ui_door(client, settings)], settings, "127.0.0.1")
    call = client.submit("builder", "jobs__begin", {}, instance_key=thread, auth=auth_of("ann"))
    wait_until(lambda: client.record(call.id).awaits == "completion", PATIENCE)
    result = {"id": "m", "role": "tool", "toolCallId": call.id, "content": "done"}
    with TestClient(app, base_url="http://127.0.0.1") as pages:
        headers = {"Authorization": "Bearer bob"}
        answer = pages.post(AGENT, json=run_input(thread, messages=[result]), headers=headers)
    assert answer.status_code == 404
    assert client.record(call.id).awaits == "completion"
    client.cancel(call.id)


def test_decision_about_call_of_another_thread_is_refused(
    client: Client, pages: TestClient, thread: str
) -> None:
    record = held_call(client, f"{thread}-other")
    entry = {"interruptId": record.id, "status": "resolved", "payload": True}
    answer = pages.post(AGENT, json=run_input(thread, messages=[], resume=[entry]))
    assert answer.status_code == 404
    assert client.record(record.id).awaits == "approval"
    client.cancel(record.id)  # others list what waits
