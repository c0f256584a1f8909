"""The door ``openai``: the client of OpenAI asks agents that the test plays, over a real server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest
from pydantic import BaseModel
from redis import Redis

from broker_config import serializer
from broker_config.connections import connect
from goondan_tasks.client import Client
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.testing import LocalStack
from tests.integration.openai_door import (
    BUNDLE,
    CALLED,
    DONE,
    PATIENCE,
    answering,
    received,
    serving,
    tell,
    text,
)


class Place(BaseModel):
    """What an answer is parsed as."""

    city: str
    districts: list[str] = []


SEOUL: JsonObject = {"city": "서울", "districts": ["Mapo"]}
Asking = Callable[..., openai.OpenAI]


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(BUNDLE, workers=0) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(stack: LocalStack) -> Client:
    return stack.client


@pytest.fixture(scope="module")
def redis(stack: LocalStack) -> Iterator[Redis]:
    with connect(stack.redis_url) as redis:
        yield redis


@pytest.fixture(scope="module")
def url(client: Client) -> Iterator[str]:
    with serving(client) as url:
        yield url


@pytest.fixture(scope="module")
def asking(url: str) -> Iterator[Asking]:
    with ExitStack() as clients:

        def of(name: str = "ann", base_url: str = url) -> openai.OpenAI:
            key = f"token-of-{name}-00000"
            return clients.enter_context(openai.OpenAI(api_key=key, base_url=base_url, max_retries=0))

        yield of


def test_models_are_agents_that_token_may_ask(asking: Asking) -> None:
    assert [model.id for model in asking().models.list()] == ["builder"]
    assert {model.id for model in asking("bob").models.list()} > {"builder"}
    assert asking().models.retrieve("builder").owned_by == "goondan"


def test_response_has_answer_and_next_response_continues_instance(
    asking: Asking, client: Client, redis: Redis
) -> None:
    with answering(client, redis) as seen:
        first = asking().responses.create(model="builder", input="build it")
    with answering(client, redis, "Yes.") as again:
        messages: Any = [{"role": "user", "content": [{"type": "input_text", "text": "sure?"}]}]
        second = asking().responses.create(model="builder", input=messages, previous_response_id=first.id)

    assert (first.status, first.output_text) == ("completed", "I build.It is built.")
    assert [item.type for item in first.output] == ["message", "mcp_call", "message"]
    assert [seen[0].input, again[0].input] == ["build it", "sure?"]
    assert second.previous_response_id == first.id
    assert seen[0].instance_key == again[0].instance_key
    assert asking().responses.retrieve(first.id).output == first.output


def test_background_response_is_followed_across_cuts_servers_and_end(
    asking: Asking, client: Client, redis: Redis, url: str
) -> None:
    begun = asking().responses.create(model="builder", input="go", background=True)
    event = received(client)
    assert begun.status == "queued"
    assert asking().responses.retrieve(begun.id).status == "in_progress"
    tell(redis, event, text("I bu"), text("ild."))
    heard: list[Any] = []
    with asking().responses.retrieve(begun.id, stream=True) as stream:
        for one in stream:
            heard.append(one)
            if one.type == "response.output_text.delta":
                break
    with serving(client) as other:
        place = heard[-1].sequence_number
        replica = asking(base_url=other)
        with replica.responses.retrieve(begun.id, stream=True, starting_after=place) as stream:
            heard.append(next(iter(stream)))
    tell(redis, event, CALLED, DONE, text("It ", step=1), text("is built.", step=1))
    client.reply(event, "It is built.")
    rest = asking().responses.retrieve(begun.id, stream=True, starting_after=heard[-1].sequence_number)
    heard += rest

    pieces = [one.delta for one in heard if one.type == "response.output_text.delta"]
    numbers = [one.sequence_number for one in heard]
    assert "".join(pieces) == "I build.It is built."
    assert numbers == sorted(set(numbers))
    assert [one.type for one in heard].count("response.output_item.added") == 3
    assert heard[-1].response.status == "completed"
    whole = list(asking().responses.retrieve(begun.id, stream=True))
    assert whole[-1].sequence_number == numbers[-1]


def test_cancelled_response_is_cancelled_for_all_readers(asking: Asking, client: Client) -> None:
    begun = asking().responses.create(model="builder", input="go", background=True)
    received(client)

    assert asking().responses.cancel(begun.id).status == "cancelled"
    last = list(asking().responses.retrieve(begun.id, stream=True))[-1]
    assert (last.type, asking().responses.retrieve(begun.id).status) == ("response.failed", "cancelled")
    assert asking().responses.cancel(begun.id).status == "cancelled"


def test_streamed_response_is_put_together_by_client(asking: Asking, client: Client, redis: Redis) -> None:
    with answering(client, redis), asking().responses.stream(model="builder", input="go") as stream:
        response = stream.get_final_response()

    assert response.output_text == "I build.It is built."


def test_completion_is_answer_and_streams_all_texts(asking: Asking, client: Client, redis: Redis) -> None:
    messages: Any = [{"role": "system", "content": "x"}, {"role": "user", "content": "build"}]
    with answering(client, redis) as seen:
        whole = asking().chat.completions.create(model="builder", messages=messages, user="chat-1")
    with answering(client, redis) as again:
        header = {"X-Goondan-Instance": "chat-2"}
        chunks = list(
            asking().chat.completions.create(
                model="builder", messages=messages, stream=True, extra_headers=header
            )
        )

    assert whole.choices[0].message.content == "It is built."
    assert (seen[0].input, seen[0].instance_key, again[0].instance_key) == ("build", "chat-1", "chat-2")
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "I build.\n\nIt is built."
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_answer_is_parsed_as_schema_of_request(asking: Asking, client: Client, redis: Redis) -> None:
    messages: Any = [{"role": "user", "content": "where?"}]
    with answering(client, redis, SEOUL) as seen:
        response = asking().responses.parse(model="builder", input="where?", text_format=Place)
    with answering(client, redis, SEOUL) as again:
        completion = asking().chat.completions.parse(
            model="builder", messages=messages, response_format=Place
        )
    with (
        answering(client, redis, SEOUL),
        asking().responses.stream(model="builder", input="where?", text_format=Place) as stream,
    ):
        streamed = stream.get_final_response()

    place = Place.model_validate(SEOUL)
    assert [response.output_parsed, completion.choices[0].message.parsed] == [place, place]
    assert streamed.output_parsed == place
    for event in (seen[0], again[0]):
        assert event.event.output_schema is not None
        assert set(event.event.output_schema["properties"]) == {"city", "districts"}
    assert asking().responses.retrieve(response.id).text == response.text


def test_answer_that_does_not_fit_schema_fails(asking: Asking, client: Client, redis: Redis) -> None:
    messages: Any = [{"role": "user", "content": "where?"}]
    with answering(client, redis, {"town": 1}):
        response = asking().responses.parse(model="builder", input="where?", text_format=Place)
    with answering(client, redis, "no JSON"), pytest.raises(openai.APIError, match="E_MODEL_ANSWER"):
        asking().chat.completions.create(
            model="builder", messages=messages, response_format={"type": "json_object"}
        )

    assert (response.status, response.output_parsed) == ("failed", None)
    assert response.error
    assert response.error.code == "E_MODEL_ANSWER"


def test_failed_agent_fails_completion_with_its_code(asking: Asking, client: Client) -> None:
    def fail_one() -> None:
        client.cancel(received(client).id)

    for stream in (False, True):
        agent = threading.Thread(target=fail_one)
        agent.start()
        messages: Any = [{"role": "user", "content": "x"}]
        with pytest.raises(openai.APIError, match="E_TOOL_CANCELLED"):
            list(asking().chat.completions.create(model="builder", messages=messages, stream=stream))
        agent.join(PATIENCE)


BAD: list[tuple[str, dict[str, Any], int, str | None]] = [
    ("ann", {"model": "clerk"}, 403, None),
    ("bob", {"model": "nobody"}, 404, "model"),
    ("eve", {}, 403, None),
    ("xxx", {}, 401, None),
    ("ann", {"model": 7}, 400, "model"),
    ("ann", {"input": []}, 400, "input"),
    ("ann", {"input": " "}, 400, "input"),
    ("ann", {"input": None}, 400, "input"),
    ("ann", {"input": [{"role": "assistant", "content": "x"}]}, 400, "input"),
    ("ann", {"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, 400, "input"),
    ("ann", {"stream": "yes"}, 400, "stream"),
    ("ann", {"text": {"format": {"type": "grammar"}}}, 400, "text"),
    ("ann", {"text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": 1}}}}, 400, "text"),
    ("ann", {"tools": [{"type": "web_search"}]}, 400, "tools"),
    ("ann", {"prompt": {"id": "pmpt_1"}}, 400, "prompt"),
    ("ann", {"conversation": "conv_1"}, 400, "conversation"),
    ("ann", {"input": [{"role": "user", "content": [{"type": []}]}]}, 400, "input"),
    ("ann", {"previous_response_id": "resp_nothing"}, 404, "previous_response_id"),
    ("ann", {"previous_response_id": "💥"}, 404, "previous_response_id"),
]


@pytest.mark.parametrize(("name", "body", "status", "param"), BAD)
def test_bad_request_is_refused_in_form_of_openai(
    asking: Asking, name: str, body: dict[str, Any], status: int, param: str | None
) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        asking(name).post("/responses", cast_to=object, body={"model": "builder", "input": "x", **body})

    error = refused.value
    assert (error.status_code, error.param) == (status, param)
    assert isinstance(error.body, dict)
    assert set(error.body) == {"message", "type", "code", "param"}


#: what chat programs send beside the messages
OPEN_WEBUI = {
    "stream_options": {"include_usage": True},
    "temperature": 0.7,
    "max_tokens": 500,
    "stop": ["END"],
    "seed": 1,
    "reasoning_effort": "low",
    "logit_bias": {"1": -100},
    "num_ctx": 4096,
}
LIBRE_CHAT = {
    "user": "66e1f0c2a1b2c3d4e5f60718",
    "n": 1,
    "temperature": 1,
    "top_p": 1,
    "presence_penalty": 0,
    "frequency_penalty": 0,
}
HISTORY: list[JsonObject] = [
    {"role": "system", "content": "You are helpful."},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": [{"type": "text", "text": "build it"}]},
]


@pytest.mark.parametrize("more", [OPEN_WEBUI, LIBRE_CHAT], ids=["Open WebUI", "LibreChat"])
def test_program_naming_its_chat_keeps_one_instance(
    url: str, client: Client, redis: Redis, more: JsonObject
) -> None:
    headers = {"Authorization": "Bearer token-of-ann-00000", "X-Goondan-Instance": "2f1c9a64-chat"}
    body = {"model": "builder", "stream": True, "messages": HISTORY, **more}
    with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE) as program:
        [model] = program.get("/models").json()["data"]
        with answering(client, redis) as seen:
            streamed = program.post("/chat/completions", json=body)
        with answering(client, redis, "A title") as again:
            body = {**body, "stream": False, "max_completion_tokens": 1000}
            titled = program.post("/chat/completions", json=body).json()

    events = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line]
    chunks = [serializer.decode(event.encode()) for event in events[:-1]]
    assert (model["id"], model["object"], events[-1]) == ("builder", "model", "[DONE]")
    assert streamed.headers["content-type"].startswith("text/event-stream")
    pieces = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
    assert "".join(pieces) == "I build.\n\nIt is built."
    assert titled["choices"][0]["message"]["content"] == "A title"
    assert [(one.input, one.instance_key) for one in (*seen, *again)] == [("build it", "2f1c9a64-chat")] * 2


@pytest.mark.parametrize(
    ("more", "param", "match"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages", "'image_url'"),
        ({"messages": HISTORY[:3]}, "messages", "must be the user's"),
        ({"functions": [{"name": "f"}]}, "functions", "tools of its bundle"),
        ({"audio": {"voice": "alloy"}}, "audio", "with text"),
        ({"n": 2}, "n", "one answer"),
        ({"user": "{{CHAT_ID}}"}, "user", "placeholder"),
    ],
)
def test_chat_that_no_agent_can_have_is_refused(
    asking: Asking, more: JsonObject, param: str, match: str
) -> None:
    body = {"model": "builder", "messages": HISTORY, **more}
    with pytest.raises(openai.BadRequestError, match=match) as refused:
        asking().post("/chat/completions", cast_to=object, body=body)
    assert refused.value.param == param


@pytest.mark.parametrize("response_id", ["resp_", "resp_x%20y", "resp_" + "a" * 2000, "other", "resp_💥"])
def test_damaged_id_is_not_found(asking: Asking, response_id: str) -> None:
    with pytest.raises(openai.NotFoundError):
        asking().responses.retrieve(response_id)


def test_damaged_number_is_refused(asking: Asking, client: Client) -> None:
    begun = asking().responses.create(model="builder", input="go", background=True)
    for after in ("-1", "1.5", "²", "x", "9" * 30):
        with pytest.raises(openai.BadRequestError):
            asking().get(
                f"/responses/{begun.id}", cast_to=object, options={"params": {"starting_after": after}}
            )
    client.cancel(begun.id.removeprefix("resp_"))


def test_response_belongs_to_token_that_created_it(asking: Asking, client: Client) -> None:
    begun = asking().responses.create(model="builder", input="go", background=True)
    turn = client.start_turn("builder", "of another door")
    asks: list[Callable[[], object]] = [
        lambda: asking("bob").responses.retrieve(begun.id),
        lambda: asking("bob").responses.cancel(begun.id),
        lambda: asking("bob").responses.create(model="builder", input="x", previous_response_id=begun.id),
        lambda: asking().responses.retrieve(f"resp_{turn.id}"),
    ]
    for ask in asks:
        with pytest.raises(openai.NotFoundError):
            ask()
    for one in (begun.id.removeprefix("resp_"), turn.id):
        client.cancel(one)
