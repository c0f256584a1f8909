"""The key of a Model and the secret of a tool, searched for in everything that their Turns leave behind."""

import logging
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from typing import Any

import pytest
from redis import Redis
from redis.exceptions import RedisError

from goondan_tasks.client import TextDelta
from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan, serving
from tests.model_server import (
    Answer,
    Call,
    Failure,
    ModelServer,
    busy,
    in_stream,
    in_turn,
    malformed,
    status,
    wrong_key,
)
from tests.waiting import wait_until

PATIENCE = 60.0
KEY = "sk-canary-0123456789-of-a-model"
TOKEN = "token-canary-9876543210-of-a-tool"
APIS = {"chat": ("openai-chat", "any"), "responses": ("openai", "gpt-5"), "claude": ("anthropic", "claude-x")}

RESOURCES = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: vault }
spec:
  entry: ./vault.py
  isolation: process
  env: { VAULT_TOKEN: { valueFrom: { env: CANARY_TOKEN } } }
  exports: [{ name: open, parameters: { type: object } }]
"""
THINKER = """\
---
apiVersion: goondan.ai/v1
kind: Model
metadata: { name: NAME }
spec: { provider: PROVIDER, model: MODEL, baseUrl: "URL", apiKey: { valueFrom: { env: CANARY_KEY } } }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: NAME }
spec: { modelConfig: { modelRef: Model/NAME }, tools: [Tool/vault] }
"""
VAULT = """\
import os
import sys

def open(ctx, input):
    ctx.logger.warning("opened", token=os.environ["VAULT_TOKEN"])
    ctx.progress(1, message=os.environ["VAULT_TOKEN"])
    if input.get("fails"):
        raise RuntimeError(f"no such token: {os.environ['VAULT_TOKEN']}")
    return {"token": os.environ["VAULT_TOKEN"], "input": input}

handlers = {"open": open}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[ModelServer]:
    with ModelServer() as running:
        yield running


@pytest.fixture(scope="module")
def stack(server: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """A worker that logs everything, spans too."""
    folder, text = tmp_path_factory.mktemp("canary"), RESOURCES
    for name, (provider, model) in APIS.items():
        url = server.root_url if provider == "anthropic" else server.url
        thinker = THINKER.replace("NAME", name).replace("PROVIDER", provider)
        text += thinker.replace("MODEL", model).replace("URL", url)
    (folder / "goondan.yaml").write_text(text, "utf-8")
    (folder / "vault.py").write_text(VAULT, "utf-8")
    settings = {
        "CANARY_KEY": KEY,
        "CANARY_TOKEN": TOKEN,
        "GOONDAN_LOG_LEVEL": "debug",
        "OTEL_TRACES_EXPORTER": "console",
        "OTEL_BSP_SCHEDULE_DELAY": "50",
    }
    with LocalStack(folder, environment=settings) as running:
        yield running


@contextmanager
def monitored(url: str) -> Iterator[list[bytes]]:
    """Yield all that is sent to Redis meanwhile, by whomever."""
    seen: list[bytes] = []
    with Redis.from_url(url) as redis, redis.monitor() as monitor:

        def read() -> None:
            with suppress(RedisError, OSError, ValueError):
                while True:
                    seen.append(monitor.connection.read_response(disable_decoding=True))

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        yield seen
        redis.set("monitor:end", 1)
        wait_until(lambda: any(b"monitor:end" in line for line in seen), PATIENCE)
        redis.delete("monitor:end")


def kept(redis: Any) -> Iterator[bytes]:
    """Yield each key, and its value."""
    for key in redis.scan_iter("*", count=1_000):
        yield key
        match redis.type(key):
            case b"string":
                yield redis.get(key) or b""
            case b"hash":
                yield repr(redis.hgetall(key)).encode()
            case b"list":
                yield repr(redis.lrange(key, 0, -1)).encode()
            case b"set":
                yield repr(redis.smembers(key)).encode()
            case b"zset":
                yield repr(redis.zrange(key, 0, -1)).encode()
            case b"stream":
                yield repr(redis.xrange(key)).encode()
            case b"none":  # it has expired
                pass
            case kind:
                pytest.fail(f"no test reads {kind!r}")


def told(stack: LocalStack, agent: str, instance: str) -> str:
    """Follow a Turn; return all that was told, and the text as a reader puts it together."""
    events: list[object] = []
    text = ""
    try:
        for event in stack.client.request_stream(agent, "hello", instance_key=instance, timeout=PATIENCE):
            events.append(event)
            text += event.text if isinstance(event, TextDelta) else ""
    except HandoffError as error:
        events.append(error)
        return f"{events!r} {text} {error.message} {error.code}"
    return f"{events!r} {text}"


def failures() -> dict[str, tuple[Answer | Failure, ...]]:
    """Return the answers of Turns that fail, or do at first, and say the key; by what is told in the end."""
    again = replace(busy("0"), message=f"Too many requests of {KEY}.")
    return {
        "What is ***?": (status(400, f"What is {KEY}?"),),
        "after 429": (again, Answer("after 429")),
        "after 503": (status(503, f"{KEY} is served later.", retry_after="0"), Answer("after 503")),
        "after a page": (malformed(f"<html>{KEY}</html>".encode()), Answer("after a page")),
        "after half": (in_stream(status(500, f"Lost {KEY}."), Answer(f"It is {KEY}.")), Answer("after half")),
        "E_MODEL_REFUSED": (Answer("", refusal=f"I do not use {KEY}."),),
        "E_MODEL_ANSWER": (Answer(calls=(Call("vault__open", f'{{"key": "{KEY}'),)),),
    }


@pytest.mark.timeout(300)
def test_no_secret_is_written_or_shown_anywhere(
    stack: LocalStack, server: ModelServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    shown: list[str] = []
    with monitored(stack.redis_url) as sent:
        for agent in APIS:
            calls = (
                Call("vault__open", {"fails": False, "key": KEY}, "call_1"),
                Call("vault__open", {"fails": True}, "call_2"),
            )
            # slowly, so that pieces of the key are told apart
            slow = Answer(f"The key is {KEY}, you know.", piece=3, pace=0.05, reasoning=f"Is it {KEY}?")
            server.begin(in_turn(Answer(f"I try {KEY}.", calls), slow))
            shown.append(told(stack, agent, f"well-{agent}"))
            assert "you know." in shown[-1]
            server.begin(in_turn(wrong_key(KEY)))
            shown.append(told(stack, agent, f"well-{agent}"))
            assert "E_MODEL_AUTH" in shown[-1]
        for ending, answers in failures().items():
            server.begin(in_turn(*answers))
            shown.append(told(stack, "chat", "failing"))
            assert ending in shown[-1]
        shown.append(cancelled(stack, server))
        server.begin(in_turn(Answer(f"It is {KEY}.")))
        shown += commands(stack)
    assert any(b"goondan__model" in line for line in sent)
    files = {path: path.read_bytes() for path in stack.state_root.parent.rglob("*") if path.is_file()}
    assert any(b"after 429" in text for path, text in files.items() if "messages" in path.parts)
    assert b"E_MODEL_AUTH" in stack.log(stack.workers[0]).encode()
    places = {
        "sent to Redis": sent,
        "Redis": kept(stack.client._redis),
        "the client's log": [caplog.text.encode()],
        "shown": [text.encode() for text in shown],
        **{str(path): [text] for path, text in files.items()},
    }
    found = [
        (place, around(text, secret))
        for place, texts in places.items()
        for text in texts
        for secret in (KEY.encode(), TOKEN.encode())
        if secret in text
    ]
    assert found == []


def around(text: bytes, secret: bytes) -> bytes:
    place = text.find(secret)
    return text[max(0, place - 200) : place + 80]


def cancelled(stack: LocalStack, server: ModelServer) -> str:
    """Leave a Turn in the middle of its answer; return what was told until then."""
    answer = Answer(f"It is {KEY}. " * 3, piece=5, gate=threading.Event(), gate_after=20)
    server.begin(in_turn(answer))
    events = []
    follow = stack.client.request_stream("chat", "hello", instance_key="left", timeout=PATIENCE)
    with closing(follow) as stream:
        for event in stream:
            events.append(event)
            if isinstance(event, TextDelta):
                break
    wait_until(lambda: server.requests[0].is_given_up.is_set(), PATIENCE)
    return repr(events)


def commands(stack: LocalStack) -> list[str]:
    """Return what the command line shows of all these Turns."""
    env = environment(redis_url=stack.redis_url, state_root=stack.state_root, log_level="debug")
    env |= {"GOONDAN_BUNDLE": str(stack.bundle)}
    traces = goondan("traces", "--json", env=env).document
    calls = goondan("calls", "--json", env=env).document
    failed = next(one["id"] for one in calls if one["code"] == "E_MODEL_REFUSED")
    lines = [
        ("chat", "chat"),
        ("instances", "show", "failing", "--messages"),
        ("trace", traces[-1]["correlationId"]),
        ("show", failed),
        ("result", failed),
    ]
    outputs = [goondan(*line, env=env, stdin="hello\n") for line in lines]
    shown = [f"{done.stdout}\n{done.stderr}" for done in outputs]
    shown += [repr(stack.client.trace(one["correlationId"]).nodes) for one in traces]
    shown += [repr(stack.client.pending(call["id"]).result(0)) for call in calls]
    with serving("metrics", env=env) as metrics:
        text = urllib.request.urlopen(metrics.url, timeout=PATIENCE).read().decode()  # noqa: S310
    assert "goondan_model_tokens_total" in text
    return [*shown, text, repr(calls), repr(traces)]
