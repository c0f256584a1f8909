import asyncio
import base64
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import certifi
import pytest

from goondan_tasks.bundle.resources import ModelResource
from goondan_tasks.contract.errors import ConfigError, ModelAnswerError, ModelError
from goondan_tasks.contract.messages import JsonObject
from tests.model_server import (
    Answer,
    Call,
    Failure,
    ModelServer,
    Picture,
    Said,
    Usage,
    busy,
    cut,
    in_stream,
    in_turn,
    malformed,
    quota,
    silent,
    status,
    too_long,
    unknown_model,
    wrong_key,
)
from tests.model_server.failures import TOO_LONG
from tests.waiting import wait_until
from workers.thinking.model_request import ModelAnswer, ModelRequest
from workers.thinking.providers import ModelProvider, OnDelta

KEY = "sk-canary-of-the-providers-tests"
PROVIDERS = {
    "chat_completions": ("openai-chat", "any-model"),
    "responses": ("openai", "gpt-5"),
    "anthropic": ("anthropic", "claude-sonnet-5-5"),
}
STREAMS = (False, True)

RUN = {
    "type": "function",
    "function": {
        "name": "bash__exec",
        "description": "Run a command.",
        "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
    },
}
TWO_CALLS = (
    Call("bash__exec", {"command": "ls"}, "call_1"),
    Call("bash__exec", {"command": "pwd"}, "call_2"),
)
ANSWER = Answer(
    "Let me look.", TWO_CALLS, reasoning="They want a list.", usage=Usage(100, 50, cached=40, reasoning=20)
)
HELLO: JsonObject = {"role": "user", "content": "hello"}


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(autouse=True, scope="module")
def few_authorities(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Trust one certificate: to read all of them takes each client 20 ms, and the server has none."""
    end = "-----END CERTIFICATE-----\n"
    first = Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end
    file = tmp_path_factory.mktemp("certificates") / "one.pem"
    file.write_text(first, encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SSL_CERT_FILE", str(file))
        yield


@pytest.fixture(params=PROVIDERS)
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def provider(server: ModelServer, api: str, **spec: Any) -> ModelProvider:
    named, model = PROVIDERS[api]
    url = server.root_url if api == "anthropic" else server.url
    given = {"provider": named, "model": model, "baseUrl": url, "apiKey": {"value": KEY}, **spec}
    return made({name: value for name, value in given.items() if value is not None})


def made(spec: JsonObject) -> ModelProvider:
    metadata = {"apiVersion": "goondan.ai/v1", "kind": "Model", "metadata": {"name": "bright"}}
    return ModelProvider(ModelResource.model_validate({**metadata, "spec": spec}))


def request(*messages: JsonObject, **fields: Any) -> ModelRequest:
    return ModelRequest("Be kind.", messages or (HELLO,), **{"tools": (RUN,), **fields})


def ask(asked: ModelProvider, request: ModelRequest, *, is_stream: bool = False) -> ModelAnswer:
    return asyncio.run(answered(asked, request, (lambda _kind, _text: None) if is_stream else None))


async def answered(asked: ModelProvider, request: ModelRequest, on_delta: OnDelta | None) -> ModelAnswer:
    try:
        return await asked.ask(request, on_delta)
    finally:
        await asked.close()


def plain(content: Any) -> list[JsonObject]:
    return [{name: value for name, value in part.items() if name != "providerOptions"} for part in content]


def result(call_id: str, value: Any, kind: str = "text") -> JsonObject:
    output = {"type": kind, "value": value}
    part = {"type": "tool-result", "toolCallId": call_id, "toolName": "bash__exec", "output": output}
    return {"role": "tool", "content": [part]}


@pytest.mark.parametrize("is_stream", STREAMS)
def test_every_api_gives_same_message(server: ModelServer, api: str, is_stream: bool) -> None:
    server.begin(in_turn(ANSWER))
    # without maxTokens a request to Anthropic is always a stream: it may take long
    answer = ask(provider(server, api), request(params={"maxTokens": 500}), is_stream=is_stream)
    assert plain(answer.content) == [
        {"type": "reasoning", "text": "They want a list."},
        {"type": "text", "text": "Let me look."},
        {"type": "tool-call", "toolCallId": "call_1", "toolName": "bash__exec", "input": {"command": "ls"}},
        {"type": "tool-call", "toolCallId": "call_2", "toolName": "bash__exec", "input": {"command": "pwd"}},
    ]
    assert answer.usage == {"input": 100, "output": 50, "cached": 40, "reasoning": 20}
    assert answer.finish_reason == "tool_call"
    assert answer.model == PROVIDERS[api][1]
    [asked] = server.requests
    assert (asked.api, asked.is_stream, asked.tools) == (api, is_stream, ["bash__exec"])
    assert asked.said == [Said("system", "Be kind."), Said("user", "hello")]


def test_calls_with_same_id_get_different_ids(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer("", tuple(Call("bash__exec", {"n": n}, "call_1") for n in range(3)))))
    answer = ask(provider(server, api), request(params={"maxTokens": 500}))
    calls = [(part["toolCallId"], part["input"]) for part in answer.content]
    assert calls == [("call_1", {"n": 0}), ("call_1_2", {"n": 1}), ("call_1_3", {"n": 2})]


@pytest.mark.parametrize("is_stream", STREAMS)
def test_answer_that_is_too_long_is_error(
    server: ModelServer, api: str, is_stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MOST_BYTES", "MOST_STREAM_BYTES"):
        monkeypatch.setattr(f"workers.thinking.providers.{name}", 10_000)
    server.begin(in_turn(Answer("x" * 1_000_000, piece=1_000)))
    with pytest.raises(ModelAnswerError, match="more than 10,000 bytes"):
        ask(provider(server, api), request(params={"maxTokens": 500}), is_stream=is_stream)


def test_tool_is_shown_with_schema_it_has(server: ModelServer, api: str) -> None:
    free = {"type": "function", "function": {"name": "free__form", "parameters": {"type": "object"}}}
    server.begin(in_turn(Answer("ok")))
    ask(provider(server, api), request(tools=(RUN, free)))
    assert "additionalProperties" not in json.dumps(server.requests[0].body["tools"])


def test_stream_tells_each_piece(server: ModelServer, api: str) -> None:
    server.begin(in_turn(ANSWER))
    pieces: list[tuple[str, str]] = []
    asyncio.run(answered(provider(server, api), request(), lambda kind, text: pieces.append((kind, text))))
    assert len(pieces) > 2
    for kind, whole in (("reasoning", "They want a list."), ("text", "Let me look.")):
        assert "".join(text for one, text in pieces if one == kind) == whole


@pytest.mark.parametrize("is_stream", STREAMS)
def test_answer_goes_back_with_its_reasoning(server: ModelServer, api: str, is_stream: bool) -> None:
    server.begin(in_turn(ANSWER, Answer("Done.")))
    asked = provider(server, api)
    answer = ask(asked, request(), is_stream=is_stream)
    # it has been in the ledger and in a file
    message = json.loads(json.dumps(ModelAnswer.from_wire(answer.to_wire()).message))
    final = ask(asked, request(HELLO, message, result("call_1", "a b"), result("call_2", "/work")))
    assert final.text == "Done."
    said = server.requests[1].said[2:]
    signature = "" if api == "chat_completions" else ANSWER.signature
    assert said == [
        Said("assistant", "Let me look.", TWO_CALLS, reasoning=(("They want a list.", signature),)),
        Said("tool", "a b", call_id="call_1"),
        Said("tool", "/work", call_id="call_2"),
    ]


def test_ids_of_another_server_are_not_sent(server: ModelServer) -> None:
    server.begin(in_turn(ANSWER, Answer("Done.")))
    message = ask(provider(server, "responses"), request()).message
    ask(provider(server, "responses"), request(HELLO, message))
    with ModelServer() as other:
        ask(provider(other, "responses"), request(HELLO, message))
        sent = [server.requests[1].body["input"], other.requests[0].body["input"]]
    assert [item["id"] for item in sent[0] if "id" in item] == ["rs_0", "msg_0", "fc_0_0", "fc_0_1"]
    # encrypted reasoning needs no server that remembers it
    assert [item["id"] for item in sent[1] if "id" in item] == ["rs_0"]


@pytest.mark.parametrize("is_stream", STREAMS)
@pytest.mark.parametrize(
    ("api", "refusal"),
    [
        ("anthropic", status(400, "messages.1.content.0: Invalid `signature` in `thinking` block")),
        ("responses", status(400, "The encrypted content gAAA could not be verified.")),
        ("responses", status(404, "Item with id 'rs_0' not found.")),
    ],
)
def test_reasoning_refused_by_provider_is_left_out(
    server: ModelServer, api: str, refusal: Failure, is_stream: bool
) -> None:
    server.begin(in_turn(ANSWER))
    asked = provider(server, api)
    message = ask(asked, request()).message
    server.begin(lambda one: refusal if any(said.reasoning for said in one.said) else Answer("Done."))
    given = request(HELLO, message, result("call_1", "a b"), result("call_2", "/work"))
    assert ask(asked, given, is_stream=is_stream).text == "Done."
    sent = server.requests[1]
    assert Said("assistant", "Let me look.", TWO_CALLS) in sent.said
    # OpenAI would miss the reasoning before an item of which it knows the id
    assert not [item for item in sent.body.get("input", ()) if "id" in item]


def test_request_refused_without_reasoning_is_not_repeated(server: ModelServer, api: str) -> None:
    server.begin(in_turn(status(400, "thinking.budget_tokens must be at least 1024")))
    with pytest.raises(ModelError, match="budget_tokens"):
        ask(provider(server, api), request())
    assert server.count == 1


@pytest.mark.parametrize(("first", "then"), [(a, b) for a in PROVIDERS for b in PROVIDERS if a != b])
def test_conversation_goes_on_with_another_api(server: ModelServer, first: str, then: str) -> None:
    server.begin(in_turn(ANSWER, Answer("Done.")))
    message = ask(provider(server, first), request()).message
    answer = ask(
        provider(server, then), request(HELLO, message, result("call_1", "a"), result("call_2", "b"))
    )
    assert answer.text == "Done."
    assistant = [said for said in server.requests[1].said if said.calls]
    assert [said.calls for said in assistant] == [TWO_CALLS]


def test_call_without_result_is_shown_as_interrupted(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer("ok")))
    calls = ModelAnswer(content=(part("call_1"), part("call_2")), usage={}).message
    # the result comes after a message, and another has lost its call
    late = (HELLO, calls, {"role": "user", "content": "and?"}, result("call_2", "b"), result("call_0", "x"))
    ask(provider(server, api), request(*late))
    tools = [said for said in server.requests[0].said if said.role == "tool"]
    assert [(said.call_id, said.text) for said in tools] == [
        ("call_1", "The call was interrupted."),
        ("call_2", "b"),
    ]
    roles = [said.role for said in server.requests[0].said]
    assert roles == ["system", "user", "assistant", "tool", "tool", "user"]


def part(call_id: str, given: Any = None) -> JsonObject:
    named = {"type": "tool-call", "toolCallId": call_id, "toolName": "bash__exec"}
    return {**named, "input": {} if given is None else given}


def test_error_of_tool_is_sent_as_error(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer("ok")))
    calls = ModelAnswer(content=(part("call_1"),), usage={}).message
    error = {"code": "E_TOOL", "message": "no such file"}
    ask(provider(server, api), request(HELLO, calls, result("call_1", error, "error-json")))
    told = server.requests[0].said[-1]
    assert "no such file" in told.text
    assert told.is_error is (api == "anthropic")


@pytest.mark.parametrize("given", ['{"command": "l', "[1, 2]", "7"])
def test_non_object_arguments_go_back_as_text(server: ModelServer, api: str, given: str) -> None:
    server.begin(in_turn(Answer(calls=(Call("bash__exec", given),)), Answer("ok")))
    answer = ask(provider(server, api), request(), is_stream=True)
    [call] = plain(answer.content)
    assert call.pop("fault").startswith("The arguments of this call are not a JSON object: ")
    assert call == part("call_1", given)
    ask(provider(server, api), request(HELLO, answer.message, result("call_1", "not JSON", "error-text")))
    [back] = next(said for said in server.requests[1].said if said.calls).calls
    # some servers read the arguments of the history as JSON
    assert given in json.dumps(back.arguments) or back.arguments == {"INVALID_JSON": given}
    assert not isinstance(back.arguments, str)


def test_call_without_arguments_has_none(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer(calls=(Call("bash__exec", ""),))))
    answer = ask(provider(server, api), request(), is_stream=True)
    assert plain(answer.content) == [part("call_1", {})]


def test_images_are_sent(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer("ok")))
    content = [
        {"type": "text", "text": "what is this?"},
        {"type": "image", "image": "https://example.com/a.png"},
        {"type": "image", "image": "AAAA", "mediaType": "image/png"},
        {"type": "image", "image": "data:image/gif;base64,BBBB"},
    ]
    ask(provider(server, api), request({"role": "user", "content": content}))
    said = server.requests[0].said[-1]
    assert said.text == "what is this?"
    assert said.pictures == (
        Picture("https://example.com/a.png"),
        Picture("data:image/png;base64,AAAA"),
        Picture("data:image/gif;base64,BBBB"),
    )


PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(300)).decode()


def with_image() -> ModelRequest:
    """Return a request after a call whose tool has returned a text and an image."""
    image = {"type": "image", "data": PNG, "mimeType": "image/png"}
    output = {"type": "json", "value": {"content": [{"type": "text", "text": "the page"}, image]}}
    result = {"type": "tool-result", "toolCallId": "c1", "toolName": "bash__exec", "output": output}
    call = {"type": "tool-call", "toolCallId": "c1", "toolName": "bash__exec", "input": {}}
    asked: JsonObject = {"role": "assistant", "content": [call]}
    return request(HELLO, asked, {"role": "tool", "content": [result]})


def test_image_of_tool_is_image_to_model(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer("ok")))
    ask(provider(server, api), with_image())
    [asked] = server.requests
    assert json.dumps(asked.body).count(PNG) == 1
    assert "the page" in next(one.text for one in asked.said if one.role == "tool")
    assert not [one for one in asked.said if PNG in one.text]


def test_model_without_images_gets_description_of_image(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer("ok")))
    ask(provider(server, api, images=False), with_image())
    [asked] = server.requests
    assert PNG not in json.dumps(asked.body)
    assert next(one.text for one in asked.said if one.role == "tool") == "the page\n[image/png, 1 KiB]"


def test_document_is_sent(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer("ok")))
    file = {"type": "file", "data": "JVBERg==", "mediaType": "application/pdf"}
    ask(provider(server, api), request({"role": "user", "content": [file]}))
    assert server.requests[0].said[-1].pictures == (Picture("data:application/pdf;base64,JVBERg=="),)


def test_system_message_in_between_is_sent(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer("ok")))
    told = {"role": "system", "content": [{"type": "text", "text": "Summary: they greeted."}]}
    ask(provider(server, api), request(told, HELLO))
    assert "Summary: they greeted." in "".join(said.text for said in server.requests[0].said)


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "image", "image": 7}]},
        {"role": "user", "content": ["text"]},
        {"role": "user", "content": [{"type": "image", "image": "data:nothing"}]},
        {"role": "assistant", "content": [{"type": "tool-call", "toolName": "x"}]},
        {"role": "assistant", "content": [{"type": "custom", "providerOptions": {"x": {"part_kind": "y"}}}]},
        {"role": "tool", "content": [{}]},
    ],
)
def test_message_that_is_none_is_refused(server: ModelServer, message: JsonObject) -> None:
    server.begin(in_turn(Answer("ok")))
    with pytest.raises(ModelError, match="a message that cannot be sent") as caught:
        ask(provider(server, "chat_completions"), request(message))
    assert caught.value.suggestion.startswith("Fix the message in the conversation's file")
    assert server.count == 0


def test_parameters_come_from_model_then_agent(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer("ok")))
    asked = provider(server, api, options={"maxTokens": 900, "extraBody": {"priority": 3}})
    ask(asked, request(params={"maxTokens": 77, "parallelToolCalls": False}))
    body = server.requests[0].body
    named = {"chat_completions": "max_completion_tokens", "responses": "max_output_tokens"}
    assert body[named.get(api, "max_tokens")] == 77
    assert body["priority"] == 3
    serial = body["tool_choice"]["disable_parallel_tool_use"] if api == "anthropic" else None
    assert (serial, body.get("parallel_tool_calls")) == ((True, None) if serial else (None, False))


def test_parameters_of_one_provider_are_sent(server: ModelServer) -> None:
    server.begin(in_turn(Answer("ok")))
    ask(provider(server, "responses"), request(params={"openaiReasoningEffort": "high"}))
    thinking = {"type": "adaptive"}
    ask(provider(server, "anthropic"), request(params={"anthropicThinking": thinking, "maxTokens": 9_000}))
    assert server.requests[0].body["reasoning"]["effort"] == "high"
    assert server.requests[1].body["thinking"] == thinking


SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


def test_output_schema_goes_into_each_apis_field(server: ModelServer, api: str) -> None:
    server.begin(in_turn(Answer('{"city": "Seoul"}')))
    answer = ask(provider(server, api), request(output_schema=SCHEMA))
    assert answer.text == '{"city": "Seoul"}'
    body = server.requests[0].body
    place = {"chat_completions": "response_format", "responses": "text"}.get(api, "output_config")
    assert '"city"' in json.dumps(body[place])


@pytest.mark.parametrize("schema", [{"type": "array"}, {"type": ["object", "null"]}, {"enum": [1, 2]}])
def test_non_object_schema_is_not_sent_in_field(server: ModelServer, api: str, schema: JsonObject) -> None:
    server.begin(in_turn(Answer("[]")))
    ask(provider(server, api), request(output_schema=schema))
    assert not {"response_format", "text", "output_config", "output_format"} & server.requests[0].body.keys()


def test_without_schema_field_only_instructions_have_schema(server: ModelServer) -> None:
    server.begin(in_turn(Answer('{"city": "Seoul"}')))
    spec = {"provider": "zai", "model": "glm-5.3", "baseUrl": server.url}
    ask(made(spec), request(output_schema=SCHEMA))
    assert "city" not in json.dumps(server.requests[0].body)


FAILURES: dict[str, tuple[Failure, str]] = {
    "wrong key": (wrong_key(KEY), "E_MODEL_AUTH"),
    "forbidden": (status(403, "Your region is not supported."), "E_MODEL_AUTH"),
    "unknown model": (unknown_model("any-model"), "E_MODEL_NOT_FOUND"),
    "wrong path": (status(404, "Not Found"), "E_MODEL_NOT_FOUND"),
    "busy": (busy(), "E_MODEL_RATE_LIMIT"),
    "quota": (quota(), "E_MODEL_QUOTA"),
    "request timeout": (status(408), "E_MODEL_UNAVAILABLE"),
    "conflict": (status(409), "E_MODEL_UNAVAILABLE"),
    "500": (status(500), "E_MODEL_UNAVAILABLE"),
    "502": (replace(status(502), body=b"<html>Bad Gateway</html>"), "E_MODEL_UNAVAILABLE"),
    "503": (status(503), "E_MODEL_UNAVAILABLE"),
    "529": (status(529, "Overloaded"), "E_MODEL_UNAVAILABLE"),
    "bad parameter": (status(400, "temperature must be below 2"), "E_MODEL"),
    "never": (silent(), "E_MODEL_UNAVAILABLE"),
    "cut before": (cut(), "E_MODEL_UNAVAILABLE"),
    "cut in between": (cut(ANSWER, after=3), "E_MODEL_UNAVAILABLE"),
    "half a document": (malformed(), "E_MODEL_UNAVAILABLE"),
    "a page": (malformed(b"<html>hello</html>"), "E_MODEL_UNAVAILABLE"),
    "nothing of an answer": (malformed(b"{}"), "E_MODEL_UNAVAILABLE"),
    "null": (malformed(b"null"), "E_MODEL_UNAVAILABLE"),
    "a list": (malformed(b"[1]"), "E_MODEL_UNAVAILABLE"),
    "overloaded in between": (in_stream(status(529, "Overloaded"), ANSWER), "E_MODEL_UNAVAILABLE"),
    "busy in between": (in_stream(busy(), ANSWER), "E_MODEL_RATE_LIMIT"),
    **{f"too long, {whose}": (too_long(whose), "E_MODEL_CONTEXT_LENGTH") for whose in TOO_LONG},
}


@pytest.mark.parametrize("is_stream", STREAMS)
@pytest.mark.parametrize("name", FAILURES)
def test_each_failure_has_its_code(server: ModelServer, api: str, name: str, is_stream: bool) -> None:
    failure, code = FAILURES[name]
    server.begin(in_turn(failure))
    seconds = 0.3 if failure.is_silent else 30
    with pytest.raises(ModelError) as raised:
        ask(provider(server, api, timeoutSeconds=seconds), request(), is_stream=is_stream)
    assert raised.value.code == code
    assert raised.value.message.startswith("Model 'bright'")
    assert KEY not in raised.value.message
    if failure.message and failure.body is None and KEY not in failure.message:
        assert failure.message in raised.value.message
    # the SDKs' own retries are off
    assert server.count == 1


DEEP = b"[" * 10_000 + b"]" * 10_000


def chat(message: bytes = b'{"role": "assistant", "content": "hi"}', usage: bytes = b"null") -> bytes:
    choice = b'{"index": 0, "message": %b, "finish_reason": "stop"}' % message
    head = b'"id": "x", "object": "chat.completion", "created": 1, "model": "m"'
    return b'{%b, "choices": [%b], "usage": %b}' % (head, choice, usage)


def calling(args: bytes) -> bytes:
    call = b'{"id": "c", "type": "function", "function": {"name": "run", "arguments": %b}}' % args
    return chat(b'{"role": "assistant", "content": null, "tool_calls": [%b]}' % call)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"\x00\xff",
        b'{"choices": []}',
        b'{"choices": %b}' % DEEP,
        chat(DEEP),
        chat(b'{"role": "assistant", "content": "\xff"}'),
        chat(b'{"role": "assistant", "content": NaN}'),
        chat(
            b'{"role": "assistant", "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "x"}}]}'
        ),
    ],
)
def test_body_that_is_no_answer_is_reported(server: ModelServer, body: bytes) -> None:
    server.begin(in_turn(malformed(body)))
    with pytest.raises(ModelError) as raised:
        ask(provider(server, "chat_completions"), request())
    assert raised.value.code == "E_MODEL_UNAVAILABLE"


@pytest.mark.parametrize("is_stream", STREAMS)
@pytest.mark.parametrize(
    ("usage", "counted"),
    [
        (b'{"prompt_tokens": -5, "completion_tokens": 7, "total_tokens": 2}', (0, 7)),
        (b'{"prompt_tokens": 1%b, "completion_tokens": 7, "total_tokens": 7}' % (b"0" * 30), (0, 7)),
        (b'{"prompt_tokens": "12", "completion_tokens": "many", "total_tokens": true}', (12, 0)),
        (b'{"prompt_tokens": 12.0, "completion_tokens": NaN, "total_tokens": 1e400}', (12, 0)),
        (b'{"prompt_tokens": 12, "completion_tokens": null}', (12, 0)),
        (b'{"prompt_tokens": [12], "completion_tokens": {"a": 7}, "total_tokens": 7}', (0, 0)),
        (b'{"prompt_tokens": 3, "completion_tokens": 7, "completion_tokens_details": "x"}', (3, 7)),
        (b'"many"', (0, 0)),
        (b"[12]", (0, 0)),
    ],
)
def test_answer_is_read_whatever_its_usage_says(
    server: ModelServer, usage: bytes, counted: tuple[int, int], is_stream: bool
) -> None:
    chunk = b'{"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [%b]%b}'
    choice = b'{"index": 0, "delta": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}'
    chunks = [chunk % (choice, b""), chunk % (b"", b', "usage": %b' % usage), b"[DONE]"]
    body = b"".join(b"data: %b\n\n" % one for one in chunks) if is_stream else chat(usage=usage)
    server.begin(in_turn(malformed(body)))
    answer = ask(provider(server, "chat_completions"), request(), is_stream=is_stream)
    assert answer.text == "hi"
    assert answer.usage == {"input": counted[0], "output": counted[1], "cached": 0, "reasoning": 0}


@pytest.mark.parametrize("is_stream", STREAMS)
def test_impossible_token_counts_are_ignored(server: ModelServer, api: str, is_stream: bool) -> None:
    server.begin(in_turn(Answer("hi", usage=Usage(10**30, 7, reasoning=10**30))))
    answer = ask(provider(server, api), request(), is_stream=is_stream)
    assert answer.usage == {"input": 0, "output": 7, "cached": 0, "reasoning": 0}


def test_key_returned_as_model_name_is_hidden(server: ModelServer) -> None:
    body = chat().replace(b'"model": "m"', b'"model": "any-%b"' % KEY.encode())
    server.begin(in_turn(malformed(body)))
    assert ask(provider(server, "chat_completions"), request()).model == "any-***"


def test_halves_of_characters_are_put_together_or_marked(server: ModelServer) -> None:
    content = b'{"role": "assistant", "content": "\\ud83e\\udd8a \\ud800"}'
    server.begin(in_turn(malformed(chat(content)), malformed(calling(b'"{\\"a\\": \\"\\ud800\\"}"'))))
    fox = provider(server, "chat_completions")
    assert ask(fox, request()).text == "\U0001f98a \ufffd"
    [call] = ask(fox, request()).content
    assert call["input"] == {"a": "\ufffd"}


def test_non_text_streamed_arguments_are_no_object(server: ModelServer) -> None:
    function = {"name": "run", "arguments": 5}
    delta = {"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": function}]}
    choice = {"index": 0, "delta": delta, "finish_reason": "tool_calls"}
    chunk = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}
    server.begin(in_turn(malformed(f"data: {json.dumps(chunk)}\n\ndata: [DONE]\n\n".encode())))
    [call] = ask(provider(server, "chat_completions"), request(), is_stream=True).content
    assert call["input"] == "5"


def test_stream_that_ends_early_is_no_answer(server: ModelServer, api: str) -> None:
    server.begin(in_turn(cut(ANSWER, after=6, is_clean=True)))
    with pytest.raises(ModelError, match="the stream ended before its answer did") as raised:
        ask(provider(server, api), request(), is_stream=True)
    assert raised.value.code == "E_MODEL_UNAVAILABLE"


@pytest.mark.parametrize(
    ("given", "least", "most"),
    [("7", 7, 7), ("Wed, 21 Oct 2099 07:28:00 GMT", 10**8, 10**10), ("soon", 0, 0), (None, 0, 0)],
)
@pytest.mark.parametrize("code", [429, 503, 529])
def test_wait_that_provider_asks_for_is_kept(
    server: ModelServer, api: str, code: int, given: str | None, least: float, most: float
) -> None:
    server.begin(in_turn(status(code, retry_after=given)))
    with pytest.raises(ModelError) as raised:
        ask(provider(server, api), request())
    assert least <= raised.value.retry_after <= most


@pytest.mark.parametrize("is_stream", STREAMS)
@pytest.mark.parametrize(
    ("answer", "finish", "text"),
    [
        (Answer("half of it", finish="length"), "length", "half of it"),
        (Answer(""), "stop", ""),
        (Answer("", refusal="I cannot help with that."), "content_filter", "I cannot help with that."),
        (Answer("some", finish="content_filter"), "content_filter", "some"),
    ],
)
def test_why_answer_ends_is_known(
    server: ModelServer, api: str, answer: Answer, finish: str, text: str, is_stream: bool
) -> None:
    server.begin(in_turn(answer))
    told = ask(provider(server, api), request(), is_stream=is_stream)
    assert (told.finish_reason, told.text) == (finish, text)


@pytest.mark.parametrize("is_stream", STREAMS)
def test_cancelled_request_is_closed(server: ModelServer, api: str, is_stream: bool) -> None:
    answer = silent() if not is_stream else cut(replace(ANSWER, pace=60), after=9)
    server.begin(in_turn(answer))

    async def cancel() -> None:
        on_delta = (lambda _kind, _text: None) if is_stream else None
        task = asyncio.create_task(answered(provider(server, api), request(), on_delta))
        await asyncio.to_thread(wait_until, lambda: server.count)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    wait_until(server.requests[0].is_given_up.is_set)


def test_self_hosted_server_gets_no_environment_key(
    server: ModelServer, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("ANTHROPIC_API_KEY", KEY)
    server.begin(in_turn(Answer("ok")))
    ask(provider(server, api, apiKey=None), request())
    assert KEY not in str(server.requests[0].headers)


def test_models_key_is_sent(server: ModelServer, api: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_THE_TEST", KEY)
    server.begin(in_turn(Answer("ok")))
    ask(provider(server, api, apiKey={"valueFrom": {"env": "KEY_OF_THE_TEST"}}), request())
    assert server.requests[0].headers["authorization"] == f"Bearer {KEY}"


def test_key_of_environment_is_hidden_too(server: ModelServer, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "sk-another-canary-of-these-tests"
    monkeypatch.setenv("OPENAI_API_KEY", key)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    server.begin(in_turn(wrong_key(key)))
    with pytest.raises(ModelError) as raised:
        ask(made({"provider": "openai-chat", "model": "any"}), request())
    assert key in server.requests[0].headers["authorization"]
    assert "***" in raised.value.message
    assert key not in raised.value.message


@pytest.mark.parametrize("named", ["openai", "anthropic"])
def test_model_without_key_is_not_asked(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ModelError, match="'bright' has no apiKey") as raised:
        ask(made({"provider": named, "model": "any"}), request())
    assert raised.value.code == "E_MODEL_AUTH"
    with pytest.raises(ModelError, match="None of the environment variables NOT_SET") as raised:
        ask(made({"provider": named, "model": "any", "apiKey": {"valueFrom": {"env": "NOT_SET"}}}), request())
    assert raised.value.code == "E_MODEL_AUTH"


def test_unknown_provider_is_named() -> None:
    with pytest.raises(ModelError, match="'bright' cannot be used: Unknown provider: opnai"):
        ask(made({"provider": "opnai", "model": "any"}), request())


def test_provider_without_package_says_what_to_install() -> None:
    with pytest.raises(ConfigError, match="needs a package that is not installed") as raised:
        ask(made({"provider": "cohere", "model": "any", "apiKey": {"value": KEY}}), request())
    assert raised.value.suggestion == "pip install 'pydantic-ai-slim[cohere]'"


def test_base_url_for_provider_without_one_is_refused() -> None:
    spec = {"provider": "deepseek", "model": "any", "baseUrl": "http://127.0.0.1:1", "apiKey": {"value": KEY}}
    with pytest.raises(ModelError, match="the provider 'deepseek' takes no baseUrl"):
        ask(made(spec), request())


def test_unreachable_server_is_reported_with_reason() -> None:
    spec = {"provider": "openai-chat", "model": "any", "baseUrl": "http://127.0.0.1:1/v1"}
    with pytest.raises(ModelError, match=r"Connection error\. .+") as raised:
        ask(made(spec), request())
    assert raised.value.code == "E_MODEL_UNAVAILABLE"


def test_unacceptable_answer_is_sent_back_made_valid(server: ModelServer, api: str) -> None:
    call = Call("multi_tool_use.parallel", {"n": 1}, "functions.x:0")
    server.begin(in_turn(Answer("\n", (call,)), Answer("ok")))
    answer = ask(provider(server, api), request(params={"maxTokens": 500}))
    again = (HELLO, answer.message, result("functions.x:0", ""), answer.message, result("functions.x:0", "b"))
    ask(provider(server, api), request(*again))
    said = server.requests[1].said
    calls = [call for one in said for call in one.calls]
    assert [(one.name, one.id) for one in calls] == [
        ("multi_tool_use_parallel", "functions_x_0"),
        ("multi_tool_use_parallel", "functions_x_0_2"),
    ]
    told = [(one.call_id, one.text) for one in said if one.role == "tool"]
    assert told == [("functions_x_0", "(no output)"), ("functions_x_0_2", "b")]
    assert not any(one.text and one.text.isspace() for one in said)


CALLS: dict[str, tuple[bytes, Any]] = {
    "null": (b"null", {}),
    "the text null": (b'"null"', {}),
    "an object": (b'{"command": "ls"}', {"command": "ls"}),
    "text in text": (b'"\\"{\\\\\\"command\\\\\\": \\\\\\"ls\\\\\\"}\\""', {"command": "ls"}),
    "blank": (b'" "', {}),
}


@pytest.mark.parametrize("name", CALLS)
def test_arguments_are_read_in_every_written_form(server: ModelServer, name: str) -> None:
    written, read = CALLS[name]
    server.begin(in_turn(malformed(calling(written))))
    [call] = ask(provider(server, "chat_completions"), request()).content
    assert (call["input"], "fault" in call, server.count) == (read, False, 1)


@pytest.mark.parametrize("name", ["arguments", "id", "type", "name"])
def test_call_missing_one_field_is_still_read(server: ModelServer, name: str) -> None:
    function = {"name": "run", "arguments": '{"n": 1}'}
    call: JsonObject = {"id": "c", "type": "function", "function": function}
    del (call if name in call else function)[name]
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    server.begin(in_turn(malformed(chat(json.dumps(message).encode()))))
    [read] = ask(provider(server, "chat_completions"), request()).content
    assert read["toolName"] == ("" if name == "name" else "run")
    assert read["input"] == ({} if name == "arguments" else {"n": 1})
    assert read["toolCallId"] == "c" or (name == "id" and read["toolCallId"].startswith("call_"))


@pytest.mark.parametrize(
    ("number", "reason"), [("1e999", "inf"), ("9" * 4_250, "digits"), ("9" * 5_000, "digits")]
)
def test_unrepresentable_number_is_fault_of_its_call(
    server: ModelServer, api: str, number: str, reason: str
) -> None:
    text = f'{{"n": {number}}}'
    server.begin(in_turn(Answer(calls=(Call("bash__exec", text),))))
    answer = ask(provider(server, api), request(), is_stream=True)
    [call] = answer.content
    assert (call["input"], reason in call["fault"]) == (text, True)
    server.begin(in_turn(Answer("ok")))
    ask(provider(server, api), request(HELLO, answer.message))
    [back] = next(said for said in server.requests[0].said if said.calls).calls
    assert back.arguments == {"INVALID_JSON": text}


def test_unstreamed_answer_with_overlong_number_is_not_retried(server: ModelServer) -> None:
    server.begin(in_turn(malformed(b'{"content": %b}' % (b"9" * 5_000))))
    with pytest.raises(ModelAnswerError, match="cannot be read"):
        ask(provider(server, "anthropic"), request(params={"maxTokens": 500}))


@pytest.mark.parametrize("is_stream", STREAMS)
@pytest.mark.parametrize("given", ["", '{"command": "l'])
def test_arguments_cut_at_token_limit_are_reported(
    server: ModelServer, api: str, is_stream: bool, given: str
) -> None:
    server.begin(in_turn(Answer("Well.", (Call("bash__exec", given),), finish="length")))
    answer = ask(provider(server, api), request(), is_stream=is_stream)
    [call] = [part for part in answer.content if part["type"] == "tool-call"]
    assert answer.finish_reason == "length"
    assert "cut at maxTokens" in call["fault"]


def test_whole_calls_of_cut_answer_are_kept(server: ModelServer) -> None:
    server.begin(in_turn(Answer("", TWO_CALLS, finish="length")))
    answer = ask(provider(server, "chat_completions"), request())
    assert ["fault" in part for part in answer.content] == [False, False]


def piece(index: int | None, given_id: str | None, name: str | None, args: Any) -> JsonObject:
    """Make a piece of a streamed call."""
    function = {"name": name, "arguments": args}
    return {"index": index, "id": given_id, "type": "function", "function": function}


PIECES: dict[str, tuple[list[JsonObject], list[tuple[str, Any]]]] = {
    "one index": ([piece(0, "a", "f", "{}"), piece(0, "b", "f", "{}")], [("f", {}), ("f", {})]),
    "one index and no ids": (
        [piece(0, None, "f", '{"n": 1}'), piece(0, "", "g", '{"n": 2}')],
        [("f", {"n": 1}), ("g", {"n": 2})],
    ),
    "no index": (
        [piece(None, "a", "f", '{"n":'), piece(None, None, None, "1}"), piece(None, "b", "f", "{}")],
        [("f", {"n": 1}), ("f", {})],
    ),
    "the name in each": (
        [
            piece(0, "a", "f", '{"n":'),
            piece(0, "a", "f", "1}"),
            piece(0, "b", "f", "{"),
            piece(0, "b", "f", "}"),
        ],
        [("f", {"n": 1}), ("f", {})],
    ),
    "the name without the id in each": (
        [piece(0, "a", "f", '{"n":'), piece(0, None, "f", "1}")],
        [("f", {"n": 1})],
    ),
    "pieces of two calls mixed": (
        [
            piece(0, "a", "f", '{"n":'),
            piece(0, "b", "g", '{"n":'),
            piece(0, "a", None, "1}"),
            piece(0, "b", "g", "2}"),
        ],
        [("f", {"n": 1}), ("g", {"n": 2})],
    ),
    "a name in pieces": (
        [piece(0, "a", "f", ""), piece(0, None, "g", ""), piece(0, None, None, "{}")],
        [("fg", {})],
    ),
    "another id in each": ([piece(0, "a", "f", '{"n":'), piece(0, "b", None, "1}")], [("f", {"n": 1})]),
    "an object": ([piece(0, "a", "f", {"n": 1})], [("f", {"n": 1})]),
    "null": ([piece(0, "a", "f", None)], [("f", {})]),
}


@pytest.mark.parametrize("name", PIECES)
def test_streamed_call_pieces_join_whatever_their_numbering(server: ModelServer, name: str) -> None:
    pieces, calls = PIECES[name]
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    deltas: list[JsonObject] = [*({"tool_calls": [one]} for one in pieces), {}]
    chunks = [
        {**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None if delta else "tool_calls"}]}
        for delta in deltas
    ]
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    server.begin(in_turn(malformed(body.encode())))
    content = ask(provider(server, "chat_completions"), request(), is_stream=True).content
    assert [(call["toolName"], call["input"]) for call in content] == calls


def test_encrypted_reasoning_without_id_goes_back_as_reasoning(server: ModelServer) -> None:
    options = {"openai": {"signature": "secret", "provider_name": "openai"}}
    reasoning = {"type": "reasoning", "text": "", "providerOptions": options}
    answer = ModelAnswer(
        content=(reasoning, {"type": "text", "text": "Hi."}),
        usage={},
        provider_options={"openai": {"provider_name": "openai", "canonical_system": "openai"}},
    )
    server.begin(in_turn(Answer("ok")))
    ask(provider(server, "responses"), request(HELLO, answer.message, HELLO))
    sent = server.requests[0].body["input"]
    assert [item.get("encrypted_content") for item in sent if item.get("type") == "reasoning"] == ["secret"]
    assert "<think>" not in json.dumps(sent)
