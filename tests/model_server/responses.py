"""OpenAI's responses."""

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

from tests.model_server.chat_completions import parts
from tests.model_server.conversation import Answer, Call, Json, Said
from tests.model_server.failures import Failure

PATH = "/responses"


def said(body: Json) -> list[Said]:
    """Return the conversation; what the model has said at once is one message."""
    messages = [Said("system", body["instructions"])] if body.get("instructions") else []
    given = body["input"]
    for item in [{"role": "user", "content": given}] if isinstance(given, str) else given:
        kind = item.get("type", "message")
        if kind == "function_call_output":
            messages.append(Said("tool", _text(item["output"]), call_id=item["call_id"]))
            continue
        one = _item(kind, item)
        if one.role == "assistant" and messages and messages[-1].role == "assistant":
            before = messages.pop()
            one = Said(
                "assistant",
                before.text + one.text,
                before.calls + one.calls,
                reasoning=before.reasoning + one.reasoning,
            )
        messages.append(one)
    return messages


def _item(kind: str, item: Json) -> Said:
    if kind == "function_call":
        return Said("assistant", calls=(Call.of(item["name"], item["arguments"], item["call_id"]),))
    if kind == "reasoning":
        summary = "".join(part["text"] for part in item["summary"])
        return Said("assistant", reasoning=((summary, item.get("encrypted_content") or ""),))
    role = "system" if item["role"] == "developer" else item["role"]
    text, pictures = parts(item["content"])
    return Said(role, text, pictures=pictures)


def _text(output: Any) -> str:
    return output if isinstance(output, str) else "".join(part.get("text", "") for part in output)


def tools(body: Json) -> list[str]:
    return [tool["name"] for tool in body.get("tools") or ()]


def _items(answer: Answer, number: int) -> Iterator[Json]:
    if answer.reasoning:
        yield {
            "id": f"rs_{number}",
            "type": "reasoning",
            "summary": [{"type": "summary_text", "text": answer.reasoning}],
            "encrypted_content": answer.signature,
        }
    if answer.refusal:
        yield _message(number, {"type": "refusal", "refusal": answer.refusal})
    elif answer.text:
        yield _message(number, {"type": "output_text", "text": answer.text, "annotations": []})
    for index, call in enumerate(answer.calls):
        yield {
            "id": f"fc_{number}_{index}",
            "type": "function_call",
            "call_id": call.id,
            "name": call.name,
            "arguments": call.text,
            "status": "completed",
        }


def _message(number: int, part: Json) -> Json:
    head = {"id": f"msg_{number}", "type": "message", "role": "assistant", "status": "completed"}
    return {**head, "content": [part]}


def whole(answer: Answer, body: Json, number: int) -> Json:
    is_whole, usage = answer.finish == "stop", answer.usage
    reason = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(answer.finish)
    return {
        **_head(body, number, "completed" if is_whole else "incomplete"),
        "output": list(_items(answer, number)),
        "incomplete_details": None if is_whole else {"reason": reason},
        "usage": {
            "input_tokens": usage.input,
            "input_tokens_details": {"cached_tokens": usage.cached},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": usage.reasoning},
            "total_tokens": usage.input + usage.output,
        },
    }


def _head(body: Json, number: int, status: str) -> Json:
    return {
        "id": f"resp_{number}",
        "object": "response",
        "created_at": 1,
        "status": status,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "metadata": {},
        "model": body["model"],
        "output": [],
        "parallel_tool_calls": True,
        "temperature": 1.0,
        "tool_choice": "auto",
        "tools": [],
        "top_p": 1.0,
        "store": body.get("store", True),
    }


def events(answer: Answer, body: Json, number: int) -> Iterator[bytes]:
    numbers = count()

    def event(kind: str, **fields: Any) -> bytes:
        return _event(kind, {"sequence_number": next(numbers), **fields})

    yield event("response.created", response=_head(body, number, "in_progress"))
    for index, item in enumerate(_items(answer, number)):
        place = {"item_id": item["id"], "output_index": index}
        yield event("response.output_item.added", output_index=index, item=_empty(item))
        if item["type"] == "reasoning":
            part = {**place, "summary_index": 0}
            empty = {"type": "summary_text", "text": ""}
            yield event("response.reasoning_summary_part.added", **part, part=empty)
            for piece in answer.pieces(answer.reasoning):
                yield event("response.reasoning_summary_text.delta", **part, delta=piece)
            yield event("response.reasoning_summary_text.done", **part, text=answer.reasoning)
            yield event("response.reasoning_summary_part.done", **part, part=item["summary"][0])
        elif item["type"] == "message":
            part, content = {**place, "content_index": 0}, item["content"][0]
            kind, text = content["type"], answer.refusal or answer.text
            name = "refusal" if kind == "refusal" else "text"
            yield event("response.content_part.added", **part, part={**content, name: ""})
            logs: Json = {} if kind == "refusal" else {"logprobs": []}
            for piece in answer.pieces(text):
                yield event(f"response.{kind}.delta", **part, delta=piece, **logs)
            yield event(f"response.{kind}.done", **part, **{name: text}, **logs)
            yield event("response.content_part.done", **part, part=content)
        else:
            for piece in answer.pieces(item["arguments"]):
                yield event("response.function_call_arguments.delta", **place, delta=piece)
            fields = {"name": item["name"], "arguments": item["arguments"]}
            yield event("response.function_call_arguments.done", **place, **fields)
        yield event("response.output_item.done", output_index=index, item=item)
    response = whole(answer, body, number)
    yield event(f"response.{response['status']}", response=response)


def _empty(item: Json) -> Json:
    """Return an item as it is when its stream begins."""
    empty: Json = {"reasoning": {"summary": [], "encrypted_content": None}, "message": {"content": []}}
    return {**item, **empty.get(item["type"], {"arguments": "", "status": "in_progress"})}


def _event(kind: str, fields: Json) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def error_event(failure: Failure) -> bytes:
    fields = {"code": failure.code or "server_error", "message": failure.message, "param": None}
    return _event("error", {"sequence_number": 99, **fields})
