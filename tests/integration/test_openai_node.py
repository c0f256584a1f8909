"""The official JavaScript client of OpenAI asks an agent that the test plays, at the door ``openai``."""

import json
import subprocess
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from redis import Redis

from broker_config.connections import connect
from goondan_tasks.client import Client
from goondan_tasks.client.event_receiver import ReceivedEvent
from goondan_tasks.testing import LocalStack
from tests.integration.openai_door import BUNDLE, CALLED, DONE, PATIENCE, received, serving, tell, text
from tests.node_packages import FOLDERS, node, node_modules

OVER = "over"
ANSWER = "It is built."
PLACE = {"city": "서울", "districts": ["Mapo"]}


@pytest.fixture(scope="module")
def seen() -> Iterator[Any]:
    """Run the client once, and return what it saw and, as ``asked``, what the agent got."""
    modules = node_modules("openai")
    with LocalStack(BUNDLE, workers=0) as stack, connect(stack.redis_url) as redis:
        asked: list[ReceivedEvent] = []
        agent = threading.Thread(target=play, args=(stack.client, redis, asked))
        agent.start()
        try:
            with serving(stack.client) as url:
                command = [node(), str(FOLDERS / "openai" / "client.mjs"), str(modules), url]
                done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
        finally:
            stack.client.start_turn("builder", OVER)
            agent.join(PATIENCE)
        assert done.returncode == 0, done.stderr
        yield {**json.loads(done.stdout), "asked": asked}


def play(client: Client, redis: Redis, asked: list[ReceivedEvent]) -> None:
    """Answer what the client asks; a Turn that was begun with "wait" ends after one with "go on"."""
    while (event := received(client)).input != OVER:
        asked.append(event)
        if event.input == "wait":
            tell(redis, event, text("I bu"), text("ild."))
        elif event.input == "fail":
            client.cancel(event.id)
        elif event.input == "where?":
            tell(redis, event, text("I look."), CALLED, DONE, text("It is Seoul.", step=1))
            client.reply(event, PLACE)
        else:
            tell(redis, event, text("I "), text("build."), CALLED, DONE, text(ANSWER, step=1))
            client.reply(event, ANSWER)
        if event.input == "go on":
            held = next(one for one in asked if one.input == "wait")
            tell(redis, held, CALLED, DONE, text("It ", step=1), text("is built.", step=1))
            client.reply(held, ANSWER)


def texts(events: list[Any]) -> str:
    return "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")


def test_models_are_listed_and_retrieved(seen: Any) -> None:
    assert seen["models"] == ["builder"]
    assert seen["model"] == {"id": "builder", "object": "model", "created": 0, "owned_by": "goondan"}


def test_completion_is_answer_and_streams_all_texts(seen: Any) -> None:
    [choice] = seen["completion"]["choices"]
    assert (choice["message"]["content"], choice["finish_reason"]) == (ANSWER, "stop")
    assert (seen["asked"][0].input, seen["asked"][0].instance_key) == ("build", "chat-1")
    pieces = [choice["delta"].get("content") for chunk in seen["chunks"] for choice in chunk["choices"]]
    assert "".join(piece or "" for piece in pieces) == f"I build.\n\n{ANSWER}" == seen["streamed"]
    assert seen["chunks"][-1]["choices"] == []
    assert "usage" in seen["chunks"][-1]


def test_next_response_continues_in_same_instance(seen: Any) -> None:
    response, events, final = seen["response"], seen["events"], seen["final"]
    assert (response["status"], response["output_text"]) == ("completed", f"I build.{ANSWER}")
    assert [item["type"] for item in response["output"]] == ["message", "mcp_call", "message"]
    assert texts(events) == f"I build.{ANSWER}"
    assert events[-1]["response"]["previous_response_id"] == response["id"]
    first, second = (one for one in seen["asked"][3:5])
    assert (second.input, second.instance_key) == ("sure?", first.instance_key)
    assert final["output_text"] == f"I build.{ANSWER}"


def test_background_response_gives_each_event_once_after_cut(seen: Any) -> None:
    events = [*seen["before"], *seen["after"]]
    numbers = [event["sequence_number"] for event in events]

    assert seen["begun"] in {"queued", "in_progress"}
    assert seen["before"][-1]["delta"] in {"I bu", "I build."}
    assert texts(events) == f"I build.{ANSWER}"
    assert numbers == sorted(set(numbers))
    assert [event["type"] for event in events].count("response.output_item.added") == 3
    assert events[-1]["response"]["output"] == seen["retrieved"]["output"]
    assert (seen["retrieved"]["status"], seen["stopped"]) == ("completed", "cancelled")


def test_answer_is_parsed_as_schema_of_request(seen: Any) -> None:
    schemas = [one.event.output_schema for one in seen["asked"] if one.input == "where?"]

    assert seen["parsed"] == [PLACE] * 3
    assert [schema["required"] for schema in schemas] == [["city", "districts"]] * 3


@pytest.mark.parametrize(
    ("asked", "name", "status", "param"),
    [
        ("token", "AuthenticationError", 401, None),
        ("scope", "PermissionDeniedError", 403, None),
        ("agent", "NotFoundError", 404, "model"),
        ("input", "BadRequestError", 400, "input"),
        ("tools", "BadRequestError", 400, "tools"),
        ("format", "BadRequestError", 400, "response_format"),
        ("response", "NotFoundError", 404, "response_id"),
        ("foreign", "NotFoundError", 404, "response_id"),
        ("failed", "InternalServerError", 500, None),
        ("cut", "APIError", None, None),
    ],
)
def test_refused_request_is_typed_error(
    seen: Any, asked: str, name: str, status: int | None, param: str | None
) -> None:
    error = seen["refusals"][asked]

    assert error["is"], error
    assert (error["name"], error.get("status"), error["param"]) == (name, status, param)
    assert error["code"].startswith("E_")
    if asked in {"failed", "cut"}:
        assert "E_TOOL_CANCELLED" in error["message"]
