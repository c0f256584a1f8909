"""What requests say of the form of an answer, and answers that do not have it."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from starlette.requests import Request

from broker_config import serializer
from goondan_tasks.authoring.tool_api import RequestResult
from goondan_tasks.client.turn_events import AnswerRestarted, TextDelta, TurnEnded, TurnEvent
from goondan_tasks.contract.messages import JsonObject
from goondan_web.doors.openai.completions import Completion
from goondan_web.doors.openai.formats import ANY_TEXT, AnswerFormat
from goondan_web.doors.openai.requests import (
    CompletionAsked,
    ParameterError,
    ResponseAsked,
    asked_of,
    format_of,
)
from goondan_web.doors.openai.response_events import ResponseEvents, ResponseHead

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
MESSAGES = [{"role": "user", "content": "where?"}]


def read(body: JsonObject, model: type[Any]) -> AnswerFormat:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": serializer.encode(body)}

    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": headers, "query_string": b""}
    return format_of(asyncio.run(asked_of(Request(scope, receive), model)))


def completion(response_format: Any) -> AnswerFormat:
    body = {"model": "coder", "messages": MESSAGES, "response_format": response_format}
    return read(body, CompletionAsked)


def response(text: Any) -> AnswerFormat:
    return read({"model": "coder", "input": "where?", "text": text}, ResponseAsked)


def test_schema_of_both_requests_is_that_of_answer() -> None:
    named = {"name": "place", "schema": CITY, "strict": True}
    asked = completion({"type": "json_schema", "json_schema": named})
    also = response({"format": {"type": "json_schema", **named}, "verbosity": "low"})

    assert asked == also
    assert asked.schema == CITY
    assert asked.shown() == {"type": "json_schema", "description": None, **named}


def test_description_is_part_of_schema() -> None:
    named = {"name": "place", "schema": CITY, "description": "where it is"}

    asked = completion({"type": "json_schema", "json_schema": named})
    assert asked.schema == {**CITY, "description": "where it is"}


def test_object_and_text_need_no_schema() -> None:
    assert completion({"type": "json_object"}) == AnswerFormat({"type": "json_object"}, {"type": "object"})
    assert response({"format": {"type": "json_object"}}) == completion({"type": "json_object"})
    assert [completion(none) for none in (None, {"type": "text"})] == [ANY_TEXT, ANY_TEXT]
    assert [response(none) for none in (None, {}, {"format": {"type": "text"}})] == [ANY_TEXT] * 3


@contextmanager
def refused(param: str, match: str) -> Iterator[None]:
    with pytest.raises(ParameterError, match=match) as error:
        yield
    assert (error.value.param, error.value.status, error.value.code) == (param, 400, "E_REQUEST")


BAD: list[tuple[Any, str]] = [
    ("json", "must be an object"),
    ({"type": "grammar", "grammar": "x"}, "'json_object'"),
    ({"type": "json_object", "name": "x"}, "'json_object' has no schema"),
    ({"type": "json_schema", "schema": CITY}, "name is missing"),
    ({"type": "json_schema", "name": "x"}, "schema is missing"),
    ({"type": "json_schema", "name": "a b", "schema": CITY}, "name"),
    ({"type": "json_schema", "name": "x", "schema": []}, "schema"),
    ({"type": "json_schema", "name": "x", "schema": {"type": "thing"}}, r"schema\.type"),
    ({"type": "json_schema", "name": "x", "schema": {"$ref": "http://127.0.0.1/x"}}, "schema"),
    ({"type": "json_schema", "name": "x", "schema": {"enum": ["x" * 300_000]}}, "too large|characters"),
    ({"type": "json_schema", "name": "x", "schema": CITY, "grammar": 1}, "grammar"),
    ({"type": "json_schema", "name": "x", "schema": CITY, "strict": "yes"}, "strict"),
]


@pytest.mark.parametrize(("asked", "match"), BAD)
def test_format_that_cannot_be_kept_is_refused(asked: Any, match: str) -> None:
    with refused("text", match):
        response({"format": asked})
    if isinstance(asked, dict) and asked["type"].startswith("json"):
        asked = {"type": asked["type"], "json_schema": {k: v for k, v in asked.items() if k != "type"}}
    with refused("response_format", match):
        completion(asked)


def answered(answer: Any, schema: JsonObject = CITY) -> list[JsonObject]:
    """Return the events of a Turn whose model wrote drafts before the answer."""
    wire = {"type": "json_schema", "name": "place", "strict": True, "description": None}
    mapper = ResponseEvents(ResponseHead("resp_t", "coder", 7, format=AnswerFormat(wire, schema)))
    result = RequestResult(id="t", event_id="t", target="coder", response=answer, correlation_id="t")
    told: list[TurnEvent] = [
        TextDelta(step=0, text="I look.", answer_id="a0"),
        AnswerRestarted(step=1, answer_id="a1"),
        TextDelta(step=1, text='```json\n{"city": "Seoul"}', answer_id="a1"),
        TurnEnded(result=result),
    ]
    return [*mapper.begun(), *(one for event in told for one in mapper.mapped(event))]


def test_answer_with_schema_is_one_json_text() -> None:
    events = answered({"city": "Seoul"})
    whole = events[-1]["response"]
    chunks = [one for event in events for one in Completion(ResponseHead("resp_t", "coder", 7)).chunks(event)]

    assert [item["content"][0]["text"] for item in whole["output"]] == ['{"city":"Seoul"}']
    assert whole["text"]["format"] == {
        "type": "json_schema",
        "name": "place",
        "strict": True,
        "description": None,
        "schema": CITY,
    }
    pieces = [one["choices"][0]["delta"].get("content", "") for one in chunks]
    assert "".join(pieces) == '{"city":"Seoul"}'


@pytest.mark.parametrize("answer", ["", "Seoul", None, 7])
def test_any_answer_is_json_where_schema_allows(answer: Any) -> None:
    [item] = answered(answer, {})[-1]["response"]["output"]

    assert serializer.decode(item["content"][0]["text"]) == answer


@pytest.mark.parametrize("answer", ["It is in Seoul.", None, {}, {"city": 1}, '{"city": "Seoul"}'])
def test_answer_that_does_not_fit_fails_response(answer: Any) -> None:
    last = answered(answer)[-1]

    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"]["code"] == "E_MODEL_ANSWER"
    assert last["response"]["output"] == []
