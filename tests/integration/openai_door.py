"""An agent that tests play behind the door ``openai``, and the server of the door."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from redis import Redis

from broker_config import serializer
from broker_config.keys import Keys
from goondan_tasks.client import AsyncClient, Client, TextDelta, ToolCalled
from goondan_tasks.client.event_receiver import ReceivedEvent
from goondan_tasks.client.turn_events import Told, ToolAnswered
from goondan_tasks.contract.messages import JsonObject
from goondan_web.application import make_application
from goondan_web.doors.api import api_door
from goondan_web.doors.front_ends.pieces import as_text
from goondan_web.doors.openai import openai_door
from goondan_web.server import served

#: its agents have no workers: the test answers
BUNDLE = Path(__file__).parent.parent / "bundles" / "pending"
PATIENCE = 60.0
TOKENS = (
    '{"ann": {"token": "token-of-ann-00000", "scopes": ["call:builder"]},'
    ' "bob": {"token": "token-of-bob-00000", "scopes": ["call:*"]},'
    ' "eve": {"token": "token-of-eve-00000", "scopes": ["read"]}}'
)
CALLED = ToolCalled(step=0, id="call_1", call_id="c-1", tool="jobs__begin", args={"n": 1})
DONE = ToolAnswered(step=0, id="call_1", call_id="c-1", tool="jobs__begin", status="ok", output="built")


@contextmanager
def serving(client: Client) -> Iterator[str]:
    """Serve both doors below /v1, and yield the base URL."""
    settings, own = client.settings.changed(http_tokens=TOKENS), AsyncClient(client)
    doors = [api_door(own, settings), openai_door(own, settings)]
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        served(make_application(doors, settings, "127.0.0.1"), server),
    ):
        yield f"http://127.0.0.1:{server.getsockname()[1]}/v1"


def tell(redis: Redis, event: ReceivedEvent, *events: Told) -> None:
    """Write to the stream of a Turn as a worker does."""
    entries = serializer.encode([one.to_wire() for one in events])
    redis.xadd(Keys().turn_stream(event.id), {"entries": entries}, nomkstream=True)


def text(characters: str, step: int = 0) -> TextDelta:
    return TextDelta(step=step, text=characters, answer_id=f"a{step}")


def received(client: Client) -> ReceivedEvent:
    event = client.receive("builder", timeout=PATIENCE)
    assert event is not None
    return event


@contextmanager
def answering(
    client: Client, redis: Redis, answer: str | JsonObject = "It is built."
) -> Iterator[list[ReceivedEvent]]:
    """Answer one event meanwhile, as an agent that calls a tool; yield the list that gets it."""
    seen: list[ReceivedEvent] = []

    def answer_one() -> None:
        seen.append(event := received(client))
        tell(redis, event, text("I "), text("build."), CALLED, DONE, text(as_text(answer), step=1))
        client.reply(event, answer)

    agent = threading.Thread(target=answer_one)
    agent.start()
    yield seen
    agent.join(PATIENCE)
