"""The reply to the event of a Connection: which Turns send one, and what it says."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from broker_config.settings import Settings
from goondan_tasks.authoring.handoff import outside_call
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.messages import AgentEvent, EventSource, ToolCall
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from workers.agents.replies import Replies

FOLDER = Path(__file__).parents[3] / "bundles" / "connectors"
SECRET = "swordfish-opens-the-reply"


class KeptCalls:
    """Handoffs that keep what is submitted."""

    is_ready = True

    def __init__(self) -> None:
        self.calls: list[ToolCall] = []

    def submit_calls(self, calls: Sequence[ToolCall]) -> list[Any]:
        self.calls += calls
        accepted: Future[None] = Future()
        accepted.set_result(None)
        return [SimpleNamespace(accepted=accepted)]


@pytest.fixture(scope="module")
def bundle() -> Bundle:
    return load_bundle(FOLDER)


def replied(bundle: Bundle, answer: Any, *, kind: Any = "connector", **properties: Any) -> list[Any]:
    """Return the arguments of the replies to a Turn that the Connection ``notes`` has begun."""
    event = AgentEvent(
        id="note-1",
        type="note",
        created_at="2026-01-01T00:00:00Z",
        source=EventSource(kind=kind, name="notes"),
        metadata={"connection_name": "notes", "properties": properties},
    )
    call = outside_call(Settings(), "clerk", event, {}, is_request=False)
    kept: Any = KeptCalls()
    run = Run("11111111-2222-3333-4444-555555555555", call, "w1", 1, 0, lambda: 0.0)
    asyncio.run(Replies(bundle, kept, None).send(run, answer))
    return [one.args for one in kept.calls]


def test_answer_goes_back_with_properties_that_tool_takes(bundle: Bundle) -> None:
    assert replied(bundle, "hi", room="12", mood="calm") == [{"room": 12, "text": "hi"}]
    assert replied(bundle, {"a": [1]}) == [{"text": '{"a":[1]}'}]


def test_agent_with_connections_name_gets_no_reply(bundle: Bundle) -> None:
    assert replied(bundle, "hi", kind="agent") == []


@pytest.mark.parametrize("answer", [None, ""])
def test_no_reply_is_sent_without_answer(bundle: Bundle, answer: Any) -> None:
    assert replied(bundle, answer) == []


def test_secrets_are_masked_as_in_result(bundle: Bundle) -> None:
    KNOWN_SECRETS.add(SECRET)
    assert replied(bundle, f"It is {SECRET}.") == [{"text": "It is ***."}]
    assert replied(bundle, {"it": SECRET}) == [{"text": '{"it":"***"}'}]


@pytest.mark.parametrize(
    ("answer", "text"), [("cut \ud83d", "cut \ufffd"), ({"it": "cut \ud83d"}, '{"it":"cut \ufffd"}')]
)
def test_cut_texts_are_sent_as_in_result(bundle: Bundle, answer: Any, text: str) -> None:
    assert replied(bundle, answer) == [{"text": text}]


def test_non_json_answer_does_not_end_turn(bundle: Bundle) -> None:
    assert replied(bundle, {"it": object()}) == []


def test_properties_that_are_no_texts_are_left_out(bundle: Bundle) -> None:
    """Other producers may send events in a Connection's name."""
    assert replied(bundle, "hi", room=["12"]) == [{"text": "hi"}]
