"""Anthropic's messages."""

import json
from collections.abc import Iterator
from typing import Any

from tests.model_server.conversation import Answer, Call, Json, Picture, Said
from tests.model_server.failures import Failure

PATH = "/v1/messages"

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
    529: "overloaded_error",
}
_STOPS = {"stop": "end_turn", "length": "max_tokens", "content_filter": "refusal"}


def said(body: Json) -> list[Said]:
    system = body.get("system")
    text = system if isinstance(system, str) else "".join(part["text"] for part in system or ())
    messages = [Said("system", text)] if text else []
    for message in body["messages"]:
        messages += _message(message)
    return messages


def _message(message: Json) -> Iterator[Said]:
    content = message["content"]
    blocks: list[Json] = [{"type": "text", "text": content}] if isinstance(content, str) else content
    for block in blocks:
        if block["type"] == "tool_result":
            text = _text(block.get("content"))
            yield Said("tool", text, call_id=block["tool_use_id"], is_error=block.get("is_error", False))
    rest = [block for block in blocks if block["type"] != "tool_result"]
    if not rest:
        return
    yield Said(
        message["role"],
        "".join(block["text"] for block in rest if block["type"] == "text"),
        tuple(
            Call(block["name"], block["input"], block["id"]) for block in rest if block["type"] == "tool_use"
        ),
        reasoning=tuple(
            (block["thinking"], block["signature"]) for block in rest if block["type"] == "thinking"
        ),
        pictures=tuple(Picture(_url(block["source"])) for block in rest if "source" in block),
    )


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(one.get("text", "") for one in content or ())


def _url(source: Json) -> str:
    return source["url"] if "url" in source else f"data:{source['media_type']};base64,{source['data']}"


def tools(body: Json) -> list[str]:
    return [tool["name"] for tool in body.get("tools") or ()]


def _blocks(answer: Answer) -> Iterator[Json]:
    if answer.reasoning:
        yield {"type": "thinking", "thinking": answer.reasoning, "signature": answer.signature}
    if answer.text or answer.refusal:
        yield {"type": "text", "text": answer.refusal or answer.text}
    for call in answer.calls:
        # this API has arguments as JSON, but for the pieces of a stream
        given = {"_": call.text} if isinstance(call.arguments, str) else call.arguments
        yield {"type": "tool_use", "id": call.id, "name": call.name, "input": given}


def _stop(answer: Answer) -> str:
    if answer.refusal:
        return "refusal"
    return "tool_use" if answer.calls and answer.finish == "stop" else _STOPS[answer.finish]


def _usage(answer: Answer) -> Json:
    """Return the usage, whose input is without what was cached."""
    usage = answer.usage
    return {
        "input_tokens": usage.input - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.output,
        "output_tokens_details": {"thinking_tokens": usage.reasoning},
    }


def whole(answer: Answer, body: Json, number: int) -> Json:
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "model": body["model"]}
    ending = {"stop_reason": _stop(answer), "stop_sequence": None, "usage": _usage(answer)}
    return {**head, "content": list(_blocks(answer)), **ending}


def events(answer: Answer, body: Json, number: int) -> Iterator[bytes]:
    begun = {**whole(answer, body, number), "content": [], "stop_reason": None}
    begun["usage"] = {**_usage(answer), "output_tokens": 1}
    yield _event("message_start", {"message": begun})
    for index, block in enumerate(_blocks(answer)):
        empty: Json = {
            "thinking": {"thinking": "", "signature": ""},
            "text": {"text": ""},
            "tool_use": {"input": {}},
        }
        yield _event(
            "content_block_start", {"index": index, "content_block": {**block, **empty[block["type"]]}}
        )
        for delta in _deltas(answer, block):
            yield _event("content_block_delta", {"index": index, "delta": delta})
        yield _event("content_block_stop", {"index": index})
    ending = {"stop_reason": _stop(answer), "stop_sequence": None}
    yield _event("message_delta", {"delta": ending, "usage": _usage(answer)})
    yield _event("message_stop", {})


def _deltas(answer: Answer, block: Json) -> Iterator[Json]:
    kind = block["type"]
    if kind == "tool_use":
        [call] = [one for one in answer.calls if one.id == block["id"]]
        for piece in answer.pieces(call.text):
            yield {"type": "input_json_delta", "partial_json": piece}
        return
    name = "thinking" if kind == "thinking" else "text"
    for piece in answer.pieces(block[name]):
        yield {"type": f"{name}_delta", name: piece}
    if kind == "thinking":
        yield {"type": "signature_delta", "signature": block["signature"]}


def _event(kind: str, fields: Json) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def error(failure: Failure) -> Json:
    """Return the document of an error."""
    kind = failure.type or _TYPES.get(failure.status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": failure.message}, "request_id": "req_1"}


def error_event(failure: Failure) -> bytes:
    return b"event: error\ndata: " + json.dumps(error(failure)).encode() + b"\n\n"
