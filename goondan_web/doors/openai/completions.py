"""Responses as chat completions: texts only, since clients would run calls of tools."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from goondan_tasks.contract.messages import JsonObject
from goondan_web.doors.openai.response_events import COMPLETED, ITEM_ADDED, TEXT_DELTA, ResponseHead


@dataclass(slots=True)
class Completion:
    """Maps the events of one response."""

    head: ResponseHead
    has_usage: bool = False
    _messages: int = 0

    def chunks(self, event: JsonObject) -> Iterator[JsonObject]:
        """Yield the chunks for an event of the response; one that fails has none for its end."""
        if event["type"] == "response.created":
            yield self._chunk({"role": "assistant", "content": ""})
        elif event["type"] == ITEM_ADDED and event["item"]["type"] == "message":
            self._messages += 1
            if self._messages > 1:
                yield self._chunk({"content": "\n\n"})
        elif event["type"] == TEXT_DELTA:
            yield self._chunk({"content": event["delta"]})
        elif event["type"] == COMPLETED:
            yield self._chunk({}, "stop")
            if self.has_usage:
                usage = _usage(event["response"]["usage"])
                yield {**self._frame("chat.completion.chunk"), "choices": [], "usage": usage}

    def whole(self, response: JsonObject) -> JsonObject:
        """Return the completion for a response that is complete; its content is the last message."""
        texts = [item["content"][0]["text"] for item in response["output"] if item["type"] == "message"]
        message = {"role": "assistant", "content": texts[-1] if texts else "", "refusal": None}
        choice = {"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}
        frame = self._frame("chat.completion")
        return {**frame, "choices": [choice], "usage": _usage(response["usage"])}

    def _chunk(self, delta: JsonObject, reason: str | None = None) -> JsonObject:
        choice = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        return {**self._frame("chat.completion.chunk"), "choices": [choice]}

    def _frame(self, kind: str) -> JsonObject:
        return {
            "id": self.head.id.replace("resp_", "chatcmpl-", 1),
            "object": kind,
            "created": self.head.created_at,
            "model": self.head.model,
        }


def _usage(usage: Any) -> JsonObject | None:
    if usage is None:
        return None
    return {
        "prompt_tokens": usage["input_tokens"],
        "prompt_tokens_details": usage["input_tokens_details"],
        "completion_tokens": usage["output_tokens"],
        "completion_tokens_details": usage["output_tokens_details"],
        "total_tokens": usage["total_tokens"],
    }
