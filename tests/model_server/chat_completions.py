"""OpenAI's chat completions, as vLLM, Ollama and others speak them too."""

import json
from collections.abc import Iterator
from typing import Any

from tests.model_server.conversation import Answer, Call, Json, Picture, Said
from tests.model_server.failures import Failure

PATH = "/chat/completions"
DONE = b"data: [DONE]\n\n"


def said(body: Json) -> list[Said]:
    return [_message(message) for message in body["messages"]]


def _message(message: Json) -> Said:
    role, content = message["role"], message.get("content")
    text, pictures = parts(content)
    calls = tuple(
        Call.of(one["function"]["name"], one["function"]["arguments"], one["id"])
        for one in message.get("tool_calls") or ()
    )
    reasoning = message.get("reasoning_content") or message.get("reasoning")
    return Said(
        "system" if role == "developer" else role,
        text,
        calls,
        message.get("tool_call_id", ""),
        reasoning=((reasoning, ""),) if reasoning else (),
        pictures=pictures,
    )


def parts(content: Any) -> tuple[str, tuple[Picture, ...]]:
    """Return the text and the pictures of a message's content, as OpenAI's two APIs write it."""
    if not isinstance(content, list):
        return content or "", ()
    texts, pictures = [], []
    for part in content:
        if "image_url" in part:
            image = part["image_url"]
            pictures.append(Picture(image["url"] if isinstance(image, dict) else image))
        elif "file" in part:
            pictures.append(Picture(part["file"].get("file_data", "")))
        elif "file_data" in part or "file_url" in part:
            pictures.append(Picture(part.get("file_data") or part["file_url"]))
        else:
            texts.append(part.get("text") or part.get("refusal") or "")
    return "".join(texts), tuple(pictures)


def tools(body: Json) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools") or ()]


def _finish(answer: Answer) -> str:
    return "tool_calls" if answer.calls and answer.finish == "stop" else answer.finish


def _usage(answer: Answer) -> Json:
    usage = answer.usage
    return {
        "prompt_tokens": usage.input,
        "completion_tokens": usage.output,
        "total_tokens": usage.input + usage.output,
        "prompt_tokens_details": {"cached_tokens": usage.cached},
        "completion_tokens_details": {"reasoning_tokens": usage.reasoning},
    }


def whole(answer: Answer, body: Json, number: int) -> Json:
    message: Json = {"role": "assistant", "content": answer.text or None}
    if answer.reasoning:
        message["reasoning_content"] = answer.reasoning
    if answer.refusal:
        message["refusal"] = answer.refusal
    if answer.calls:
        message["tool_calls"] = [_call(call) for call in answer.calls]
    choice = {"index": 0, "message": message, "finish_reason": _finish(answer)}
    head = {"id": f"chatcmpl-{number}", "created": 1, "model": body["model"]}
    return {**head, "object": "chat.completion", "choices": [choice], "usage": _usage(answer)}


def _call(call: Call) -> Json:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.text}}


def events(answer: Answer, body: Json, number: int) -> Iterator[bytes]:
    head = {"id": f"chatcmpl-{number}", "object": "chat.completion.chunk", "created": 1}

    def chunk(delta: Json, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "finish_reason": finish}
        return _event({**head, "model": body["model"], "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""})
    for name, text in (
        ("reasoning_content", answer.reasoning),
        ("content", answer.text),
        ("refusal", answer.refusal),
    ):
        for piece in answer.pieces(text):
            yield chunk({name: piece})
    for index, call in enumerate(answer.calls):
        named = {"index": index, "id": call.id, "type": "function"}
        yield chunk({"tool_calls": [{**named, "function": {"name": call.name, "arguments": ""}}]})
        for piece in answer.pieces(call.text):
            yield chunk({"tool_calls": [{"index": index, "function": {"arguments": piece}}]})
    yield chunk({}, _finish(answer))
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _event({**head, "model": body["model"], "choices": [], "usage": _usage(answer)})
    yield DONE


def _event(document: Json) -> bytes:
    return b"data: " + json.dumps(document).encode() + b"\n\n"


def error(failure: Failure) -> Json:
    """Return the document of an error."""
    kind = failure.type or "server_error"
    if kind in ("authentication_error", "not_found_error"):
        kind = "invalid_request_error"
    return {"error": {"message": failure.message, "type": kind, "param": None, "code": failure.code}}


def error_event(failure: Failure) -> bytes:
    return _event(error(failure))
