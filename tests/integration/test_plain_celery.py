"""Messages of programs that are plain Celery, and what is not a message at all."""

import json
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from celery import Celery, Signature, chain, chord, group
from celery.states import READY_STATES
from redis import Redis

from goondan_tasks.client import Client
from goondan_tasks.contract.errors import CallNotFoundError
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests import celery_apps
from tests.integration.conftest import CALLS_BUNDLE
from tests.integration.results import error_of
from tests.waiting import wait_until

PATIENCE = 60


@pytest.fixture
def plain_celery(calls_stack: LocalStack) -> Iterator[Celery]:
    with celery_apps.plain_celery(calls_stack.redis_url) as app:
        yield app


def client_result(client: Client, call_id: str) -> ToolCallResult:
    """Wait for a call that another program has queued: its record stands when a worker has it."""

    def is_known() -> bool:
        try:
            client.record(call_id)
        except CallNotFoundError:
            return False
        return True

    wait_until(is_known)
    return client.pending(call_id).result(PATIENCE)


@pytest.mark.parametrize(
    "args", [{"n": 2**70}, {"__type__": "uuid", "__value__": "x"}, {"text": "😀\x00한글"}]
)
def test_plain_celery_producer_submits_and_reads(plain_celery: Celery, args: dict[str, Any]) -> None:
    call = {"toolName": "echo__strict", "args": {"text": json.dumps(args)}}
    sent = plain_celery.send_task("goondan.tool_call", kwargs={"call": call}, queue="agent.smith")
    result = sent.get(timeout=PATIENCE)
    assert json.loads(result["output"]["text"]) == args
    assert sent.state == "SUCCESS"


@pytest.mark.parametrize("args", [{"n": 2**70}, {"x": {"__type__": "no", "__value__": "x"}}, {"t": "\0😀"}])
def test_odd_json_from_plain_celery_reaches_handler(
    plain_celery: Celery, client: Client, args: dict[str, Any]
) -> None:
    call = {"agentName": "smith", "toolName": "echo__args", "args": args}
    sent = plain_celery.send_task("goondan.tool_call", kwargs={"call": call}, queue="agent.smith")
    assert client_result(client, sent.id).output == args


@pytest.mark.parametrize(
    ("kwargs", "code"),
    [
        ({}, "E_TOOL_INVALID_ARGS"),
        ({"call": None}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"toolName": 5}}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"v": 99, "toolName": "echo__args"}}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"toolName": "echo__args", "args": {"t": "\ud800"}}}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"toolName": "echo__args", "args": {"t": "x" * 2**21}}}, "E_PAYLOAD_TOO_LARGE"),
        ({"call": {}}, "E_TOOL_NOT_IN_CATALOG"),
        ({"call": {"agentName": "apprentice", "toolName": "echo__args"}}, "E_TOOL_INVALID_ARGS"),
        ({"call": {"toolName": "echo__args", "timeoutSeconds": 1e300}}, "E_TOOL_INVALID_ARGS"),
    ],
)
def test_plain_message_that_holds_no_call_is_answered(
    plain_celery: Celery, client: Client, kwargs: dict[str, Any], code: str
) -> None:
    sent = plain_celery.send_task("goondan.tool_call", kwargs=kwargs, queue="agent.smith")
    assert error_of(client_result(client, sent.id))[0] == code


@pytest.mark.parametrize("body", ["no json", "[" * 50_000, '{"a": NaN}', "7", "[]", "[1,2]", '"text"'])
def test_message_that_cannot_be_read_is_answered(
    client: Client, calls_stack: LocalStack, plain_celery: Celery, body: str
) -> None:
    call_id = f"unreadable-{len(body)}"
    with plain_celery.connection() as connection:
        connection.Producer().publish(
            body,
            routing_key="agent.smith",
            content_type="application/json",
            content_encoding="utf-8",
            headers={"task": "goondan.tool_call", "id": call_id, "lang": "py"},
        )
    code, message = error_of(client_result(client, call_id))
    assert code == "E_TOOL_INVALID_ARGS"
    assert "cannot be read" in message


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"garbage",
        b"[]",
        b"{}",
        b'{"properties": 5, "headers": {}}',
        b'{"body": "", "properties": {"delivery_info": {}, "delivery_tag": "x"}, "headers": {}}',
        b'{"body": "[]", "properties": {"delivery_info": {}}, "headers": {"task": "goondan.tool_call"}}',
        b'{"body": "[]", "properties": {"delivery_info": {}}, "headers": {"task": "no.such", "id": "x"}}',
        b"\xff\xfe",
        b'{"body": "[[],{},{}]", "properties": {"delivery_info": {}}, "content-type": "application/json", '
        b'"content-encoding": "utf-8", "headers": {"task": "goondan.tool_call", "id": "\\ud800"}}',
    ],
)
def test_worker_drops_garbage_in_queue_and_continues(
    client: Client, calls_stack: LocalStack, garbage: bytes
) -> None:
    with Redis.from_url(calls_stack.redis_url) as redis:
        redis.lpush("agent.smith", garbage)
        wait_until(lambda: redis.llen("agent.smith") == 0)
    assert client.call("smith", "echo__args", timeout=PATIENCE).status == "ok"


def test_task_id_reused_for_another_call_makes_dead_letter(plain_celery: Celery, client: Client) -> None:
    for text in ("first", "first", "second"):
        call = {"toolName": "echo__strict", "args": {"text": text}}
        task_id, queue = "taken-call", "agent.smith"
        sent = plain_celery.send_task(
            "goondan.tool_call", kwargs={"call": call}, queue=queue, task_id=task_id
        )
        assert sent.get(timeout=PATIENCE)["output"]["text"] == "first"

    wait_until(lambda: letters_about(client, "smith", "taken-call") != [])
    [reason] = letters_about(client, "smith", "taken-call")
    assert reason.startswith("E_TOOL_CALL_CONFLICT")


def letters_about(client: Client, agent: str, task_id: str) -> list[str]:
    reasons = [str(letter.call.args.get("reason")) for letter in client.dead_letters(agent)]
    return [reason for reason in reasons if task_id in reason]


@pytest.fixture
def polling_celery(plain_celery: Celery, monkeypatch: pytest.MonkeyPatch) -> Celery:
    """An app that does not subscribe to results, which would unsubscribe when they are collected."""
    backend: Any = plain_celery.backend
    monkeypatch.setattr(backend.result_consumer, "consume_from", lambda _: None)
    return plain_celery


def outcome(app: Celery, task_id: str) -> tuple[str, Any]:
    wait_until(lambda: app.backend.get_state(task_id) in READY_STATES)
    return app.backend.get_state(task_id), app.backend.get_result(task_id)


def signature(app: Celery, text: str, **options: Any) -> Signature[Any]:
    call = {"toolName": "echo__strict", "args": {"text": text}}
    return app.signature(
        "goondan.tool_call", kwargs={"call": call}, queue="agent.smith", immutable=True, **options
    )


CANVASES: list[Callable[[Celery, Signature[Any]], Signature[Any]]] = [
    lambda app, body: chord([signature(app, text) for text in "ab"], body),
    lambda app, body: chord([chain(signature(app, "a"), signature(app, "b"))], body),
    lambda app, body: group([signature(app, text) for text in "ab"]) | body,
    lambda app, body: signature(app, "a") | body,
    lambda app, body: signature(app, "a") | signature(app, "b") | body,
    lambda app, body: chord([app.signature("no.such", queue="agent.smith")], body),
]


@pytest.mark.parametrize("make", CANVASES)
def test_celery_follow_up_fails_instead_of_waiting_forever(
    polling_celery: Celery, make: Callable[[Celery, Signature[Any]], Signature[Any]]
) -> None:
    body = polling_celery.signature("elsewhere.note", queue="elsewhere")
    sent = make(polling_celery, body).apply_async()
    state, error = outcome(polling_celery, sent.id)
    reason = str(error)
    assert state == "FAILURE"
    assert "workers of agents do not send" in reason or "no.such" in reason


@pytest.mark.parametrize("option", ["link", "link_error"])
def test_call_with_callbacks_is_refused_with_reason(polling_celery: Celery, option: str) -> None:
    callback = polling_celery.signature("elsewhere.note", queue=f"elsewhere-{option}")
    following = callback.freeze()
    sent = signature(polling_celery, "a", **{option: callback}).apply_async()
    _, result = outcome(polling_celery, sent.id)
    assert (result["status"], result["error"]["code"]) == ("error", "E_TOOL_INVALID_ARGS")
    assert option in result["error"]["message"]
    if option == "link":
        assert "workers of agents do not send" in str(outcome(polling_celery, following.id)[1])
        return
    with polling_celery.connection() as connection:
        queue = connection.SimpleQueue(f"elsewhere-{option}")
        message = queue.get(timeout=PATIENCE)
        message.ack()  # or Kombu opens a connection to put it back, which nobody closes
        queue.close()
    assert message.headers["task"] == "elsewhere.note"


def test_group_of_calls_without_callbacks_runs(polling_celery: Celery) -> None:
    sent = group([signature(polling_celery, text) for text in "abc"]).apply_async()
    results = [outcome(polling_celery, one.id)[1] for one in cast(Any, sent).results]
    assert [result["output"]["text"] for result in results] == ["a", "b", "c"]


def test_countdown_call_is_scheduled_and_begins_on_time(plain_celery: Celery) -> None:
    call = {"toolName": "echo__args", "args": {}}
    eta = datetime.now(UTC) + timedelta(seconds=3)
    sent = plain_celery.send_task("goondan.tool_call", kwargs={"call": call}, queue="agent.smith", eta=eta)

    def scheduled() -> list[str]:
        rows = plain_celery.control.inspect(timeout=PATIENCE, limit=1).scheduled()
        [row] = (rows or {"": []}).values()
        return [one["request"]["id"] for one in row]

    wait_until(lambda: sent.id in scheduled())
    result = sent.get(timeout=PATIENCE)
    assert result["status"] == "ok"
    assert datetime.fromisoformat(result["meta"]["startedAt"]) >= eta


def test_call_that_has_expired_is_not_run(plain_celery: Celery) -> None:
    call = {"toolName": "echo__args", "args": {}}
    past = datetime.now(UTC) - timedelta(seconds=5)
    sent = plain_celery.send_task(
        "goondan.tool_call", kwargs={"call": call}, queue="agent.smith", expires=past
    )
    assert sent.get(timeout=PATIENCE)["error"]["code"] == "E_TOOL_EXPIRED"


def test_call_with_countdown_is_listed_and_cancelled(plain_celery: Celery, client: Client) -> None:
    call = {"toolName": "echo__args", "args": {}}
    sent = plain_celery.send_task(
        "goondan.tool_call", kwargs={"call": call}, queue="agent.smith", countdown=3_600
    )
    wait_until(lambda: sent.id in {one.id for one in client.calls("smith", status="scheduled")})

    client.pending(sent.id).cancel()

    assert sent.get(timeout=PATIENCE)["error"]["code"] == "E_TOOL_CANCELLED"


def test_call_with_countdown_survives_kill_of_its_worker() -> None:
    call = {"toolName": "echo__args", "args": {}}
    with LocalStack(CALLS_BUNDLE, agents=["smith"], environment={"GOONDAN_LEASE_SECONDS": "60"}) as stack:
        [worker] = stack.workers
        with celery_apps.plain_celery(stack.redis_url) as app:
            sent = app.send_task("goondan.tool_call", kwargs={"call": call}, queue="agent.smith", countdown=2)
            wait_until(lambda: bool(stack.client.calls("smith", status="scheduled")))
            worker.kill()
            worker.wait(PATIENCE)
            stack.start_worker()
            assert sent.get(timeout=PATIENCE)["status"] == "ok"
