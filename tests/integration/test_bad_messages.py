"""Whatever stands in an agent's queues, its worker goes on, and says what it was."""

import base64
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from broker_config.queues import call_queue, events_queue, wake_up_key
from goondan_tasks.contract.errors import NotReplayableError
from goondan_tasks.testing import LocalStack
from tests.celery_apps import plain_celery
from tests.integration.bad_messages import bad_messages
from tests.integration.conftest import CALLS_BUNDLE
from tests.waiting import wait_until

PATIENCE = 60
QUEUES = (call_queue("smith"), events_queue("smith"))


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(CALLS_BUNDLE, agents=["smith"]) as stack:
        yield stack


def push(stack: LocalStack, queue: str, *messages: bytes) -> None:
    """Put messages into a queue, as a producer does that knows its wake-up key."""
    redis = stack.client._redis
    redis.lpush(queue, *messages)
    redis.lpush(wake_up_key(queue), "1")


def sizes() -> list["pytest.ParameterSet"]:
    """Return a sample of the messages, and all of them."""
    return [pytest.param(9, id="short"), pytest.param(1, id="whole", marks=pytest.mark.long)]


@pytest.mark.faults
@pytest.mark.parametrize("step", sizes())
@pytest.mark.parametrize("queue", QUEUES)
def test_no_message_ends_worker_or_its_connection(stack: LocalStack, queue: str, step: int) -> None:
    [worker] = stack.workers
    redis = stack.client._redis
    known = enumerate(bad_messages(queue))
    messages = [one for number, one in known if number % step == 0 or "no.such.task" in one[0]]
    for start in range(0, len(messages), 10):
        some = messages[start : start + 10]
        push(stack, queue, *(data for _, data in some))
        assert stack.client.call("smith", "echo__args", {"n": start}, timeout=PATIENCE).status == "ok", some
        assert worker.poll() is None, [kind for kind, _ in some]
    wait_until(lambda: not redis.exists(queue) and not redis.exists("agent.in-flight"))
    assert stack.log(worker).count("Connected to") == 1
    assert "Traceback" not in stack.log(worker)


@pytest.mark.parametrize("queue", QUEUES)
def test_message_without_call_is_quoted_in_dead_letter(stack: LocalStack, queue: str) -> None:
    client = stack.client
    # a message leaves its queue when its letter is claimed; the letter is written in the next trip
    wait_until(lambda: not client.calls("smith", status="running"))
    client.act_on_all("drop", "smith", newer_than=3_600)
    unknown = {"headers": {"task": "no.such.task", "id": "nobody-knows"}, "properties": {}, "body": None}
    push(stack, queue, b"hello, " + queue.encode(), json.dumps(unknown | {"queue": queue}).encode())
    wait_until(lambda: len(client.dead_letters("smith")) == 2)
    letters = {str(letter.call.args["message"]): letter for letter in client.dead_letters("smith")}
    [text] = [text for text in letters if f"hello, {queue}" in text]
    letter = letters[text]
    assert (letter.call.args["queue"], letter.call.tool_name, letter.status) == (queue, "(no call)", "dead")
    error = client.pending(letter.id).result(PATIENCE).error
    assert error is not None
    assert error.code == "E_TOOL_INVALID_ARGS"
    assert "holds no call: Expecting value" in error.message
    [status] = [status for status in client.queues() if status.agent == "smith"]
    assert status.dead_letters == 2
    with pytest.raises(NotReplayableError, match="holds no call"):
        client.replay(letter.id)
    assert client.act_on_all("replay", "smith").selected == 0
    shown = goondan(stack, "dead-letters", "show", letter.id)
    assert f"hello, {queue}" in str(shown)
    assert len(goondan(stack, "dead-letters", "list", "--agent", "smith")) == 2


def test_producer_of_unknown_task_gets_error(stack: LocalStack) -> None:
    with plain_celery(stack.redis_url) as app:
        app.conf.broker_transport_options = {"priority_steps": [0]}
        with app.connection_for_write() as connection:
            waiting = app.send_task("celery.map", args=["x", []], queue="agent.smith", connection=connection)
            with pytest.raises(Exception, match=r"celery\.map") as raised:
                waiting.get(timeout=PATIENCE)
    assert type(raised.value).__name__ == "NotRegistered"


@pytest.mark.parametrize("header", ["eta", "expires"])
def test_producer_of_call_unreadable_to_celery_gets_error(stack: LocalStack, header: str) -> None:
    body = base64.b64encode(b'[[], {"call": {"toolName": "echo__args"}}, {}]').decode()
    call_id = f"unreadable-{header}"
    headers = {"task": "goondan.tool_call", "id": call_id, header: "zzz"}
    message = {"headers": headers, "properties": {"body_encoding": "base64"}, "body": body}
    types = {"content-type": "application/json", "content-encoding": "utf-8"}
    push(stack, "agent.smith", json.dumps(message | types).encode())
    wait_until(lambda: stack.client._redis.exists(f"celery-task-meta-{call_id}"))
    error = stack.client.pending(call_id).result(PATIENCE).error
    assert error is not None
    assert error.code == "E_TOOL_INVALID_ARGS"


def goondan(stack: LocalStack, *arguments: str) -> Any:
    """Run a command of the command line; return its document."""
    command = [sys.executable, "-m", "goondan_tasks", *arguments, "--json"]
    environment = {**os.environ, "GOONDAN_REDIS_URL": stack.redis_url}
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return json.loads(done.stdout)
