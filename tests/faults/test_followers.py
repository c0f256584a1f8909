"""Followers of kept Turns: cut again and again, left alone by who asked, and with workers that are killed."""

import threading
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.client import (
    AnswerRestarted,
    Client,
    FollowedEvent,
    TextDelta,
    ToolAnswered,
    ToolCalled,
    TurnEnded,
)
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import ENVIRONMENT, Say
from tests.model_server import Answer, Asked, Call, ModelServer
from tests.waiting import wait_until

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Model
metadata: { name: scripted }
spec: { provider: openai-chat, model: scripted-1, baseUrl: "MODEL_URL", apiKey: { value: sk-none } }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: disk }
spec: { entry: ./disk.py, exports: [{ name: list }] }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { modelConfig: { modelRef: Model/scripted }, tools: [Tool/disk] }
"""
DISK = 'handlers = {"list": lambda ctx, input: ["sda"]}\n'
FIRST = "I look at the disks. " * 12
SECOND = "There is one disk, and it is fine. " * 20
CUTS = 50

pytestmark = pytest.mark.long


def script(asked: Asked) -> Answer:
    if asked.said[-1].role == "tool":
        return Answer(SECOND, piece=4, pace=0.02)
    return Answer(FIRST, calls=(Call("disk__list"),), piece=4, pace=0.02)


@pytest.fixture
def model() -> Iterator[ModelServer]:
    with ModelServer(script) as model:
        yield model


@pytest.fixture
def stack(model: ModelServer, tmp_path: Path) -> Iterator[LocalStack]:
    (tmp_path / "goondan.yaml").write_text(BUNDLE.replace("MODEL_URL", model.url), "utf-8")
    (tmp_path / "disk.py").write_text(DISK, "utf-8")
    with LocalStack(tmp_path, environment=ENVIRONMENT) as stack:
        yield stack


def asked(stack: LocalStack) -> str:
    """Ask for a Turn with a client that leaves at once, and return its id."""
    with Client.connect(stack.redis_url, bundle=stack.bundle) as client:
        return client.request("coder", "Which disks?", is_async=True, keep=600).id


def said(events: Iterable[FollowedEvent]) -> tuple[dict[int, str], list[tuple[str, str]]]:
    """Return the text of each Step as a person reads it in the end, and the calls and results in order."""
    texts: dict[int, str] = {}
    calls: list[tuple[str, str]] = []
    for one in events:
        match one.event:
            case AnswerRestarted():
                texts[one.event.step] = ""
            case TextDelta():
                texts[one.event.step] = texts.get(one.event.step, "") + one.event.text
            case ToolCalled() | ToolAnswered():
                calls.append((one.event.type, one.event.call_id))
    return texts, calls


def wire(events: Iterable[FollowedEvent]) -> list[dict[str, Any]]:
    return [one.event.to_wire() for one in events]


def cut_follower(client: Client, turn_id: str) -> tuple[list[FollowedEvent], int]:
    """Follow a Turn with one follower for each few events; return all events, and the number of cuts."""
    heard: list[FollowedEvent] = []
    cuts = 0
    while not heard or not isinstance(heard[-1].event, TurnEnded):
        with closing(client.follow(turn_id, heard[-1].cursor if heard else None)) as events:
            for _ in range(1 + cuts % 3):
                heard.append(next(events))
                if isinstance(heard[-1].event, TurnEnded):
                    return heard, cuts
        cuts += 1
    return heard, cuts


def test_follower_cut_fifty_times_misses_and_repeats_nothing(stack: LocalStack, say: Say) -> None:
    turn_id = asked(stack)
    uncut: list[FollowedEvent] = []
    following = threading.Thread(target=lambda: uncut.extend(stack.client.follow(turn_id)))
    following.start()
    heard, cuts = cut_follower(stack.client, turn_id)
    following.join()
    late = list(stack.client.follow(turn_id))

    say([f"{len(heard)} events, {cuts} cuts"])
    assert cuts >= CUTS
    assert said(heard) == said(uncut) == said(late)
    assert said(heard)[0] == {0: FIRST, 1: SECOND}
    assert wire(heard[-1:]) == wire(uncut[-1:])
    assert len({one.cursor for one in uncut[:-1]}) == len(uncut) - 1


def test_answer_of_killed_worker_starts_again(stack: LocalStack) -> None:
    turn_id = asked(stack)
    heard: list[FollowedEvent] = []
    following = threading.Thread(target=lambda: heard.extend(stack.client.follow(turn_id)))
    following.start()
    wait_until(lambda: any(isinstance(one.event, TextDelta) and one.event.step == 1 for one in heard))
    [worker] = stack.workers
    worker.kill()
    worker.wait()
    stack.start_worker()
    following.join()

    assert said(heard)[0] == {0: FIRST, 1: SECOND}
    assert any(isinstance(one.event, AnswerRestarted) for one in heard)
    assert len(set(said(heard)[1])) == len(said(heard)[1]) == 2
    assert isinstance(heard[-1].event, TurnEnded)
    assert heard[-1].event.error is None
    assert said(stack.client.follow(turn_id)) == said(heard)
