"""Agents that think while their workers are killed and Redis restarts: counted at the model's server and in a
file that the tool writes, so by nothing of ours."""

import json
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.testing import LocalStack
from tests.faults.beside import beside
from tests.faults.conftest import ENVIRONMENT, Say
from tests.faults.crowd import AGENT
from tests.faults.fleet import Fleet, kills
from tests.faults.redis_faults import restart
from tests.faults.sizes import short_and_long
from tests.waiting import wait_until

#: tool calls of a Turn; with the answer it has a Step more
CALLS = 3

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Model
metadata: {{ name: counted }}
spec:
  provider: openai-chat
  model: any
  baseUrl: "http://127.0.0.1:{port}/v1"
  apiKey: {{ value: none }}
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: {{ name: deed }}
spec:
  entry: ./deed.py
  exports:
    - name: do
      parameters: {{ type: object, properties: {{ turn: {{ type: integer }}, step: {{ type: integer }} }} }}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: {agent} }}
spec:
  modelConfig: {{ modelRef: Model/counted }}
  prompts: {{ system: "You are {{{{agentName}}}}." }}
  tools: [Tool/deed]
"""

DEED = """\
import os, time

def do(ctx, input):
    line = f"{{input['turn']}} {{input['step']}} {{time.time()}}\\n".encode()
    file = os.open({log!r}, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(file, line)
    os.close(file)
    time.sleep(0.05)
    return "done"

handlers = {{"do": do}}
"""


@dataclass
class CountedModel:
    """A server of chat completions that asks for :data:`CALLS` tool calls, one a Step, and then answers."""

    seconds: float
    #: when each Step of each Turn was asked for, in seconds since the epoch
    asked: dict[tuple[int, int], list[float]] = field(default_factory=lambda: defaultdict(list))
    #: what was wrong with a history
    faults: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def answer(self, messages: list[dict[str, Any]]) -> dict[str, Any]:
        last = max(place for place, message in enumerate(messages) if message["role"] == "user")
        turn = int(messages[last]["content"].split()[-1])
        step = sum(message["role"] == "tool" for message in messages[last:])
        with self._lock:
            self.asked[turn, step].append(time.time())
            self._check(messages[:last])
        time.sleep(self.seconds)
        if step == CALLS:
            return {"role": "assistant", "content": f"answer {turn}"}
        function = {"name": "deed__do", "arguments": json.dumps({"turn": turn, "step": step})}
        return {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"call_{step}", "type": "function", "function": function}],
        }

    def _check(self, before: list[dict[str, Any]]) -> None:
        """The Turns before are there as wholes: input, calls, results, answer."""
        roles = [message["role"] for message in before if message["role"] != "system"]
        whole = ["user", *["assistant", "tool"] * CALLS, "assistant"]
        if roles != whole * (len(roles) // len(whole)):
            self.faults.append(f"history of {len(before)} messages: {Counter(roles)}")


@pytest.fixture
def model() -> Iterator[tuple[CountedModel, int]]:
    """The server, and its port."""
    model = CountedModel(seconds=0.2)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing."""

        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            message = model.answer(asked["messages"])
            reason = "tool_calls" if message.get("tool_calls") else "stop"
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            choice = {"index": 0, "message": message, "finish_reason": reason}
            body = {"id": "1", "object": "chat.completion", "created": 1, "model": "any", "usage": usage}
            data = json.dumps({**body, "choices": [choice]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

    class Server(ThreadingHTTPServer):
        request_queue_size = 256

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Clients that are killed do not read their answers."""

    with Server(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield model, server.server_port
        server.shutdown()


def deeds(log: Path) -> dict[tuple[int, int], list[float]]:
    """Return when the tool ran, by Turn and Step."""
    runs = defaultdict(list)
    for line in log.read_text("utf-8").splitlines():
        turn, step, at = line.split()
        runs[int(turn), int(step)].append(float(at))
    return runs


@dataclass(frozen=True, slots=True)
class Storm:
    """How many Turns, of how many at once; seconds between deaths, and between restarts of Redis."""

    turns: int
    at_once: int
    kill_every: float
    restart_every: float


STORMS = short_and_long(Storm(18, 9, 1.5, 3.0), Storm(60, 32, 2.0, 8.0), minutes=10)


@pytest.mark.parametrize("storm", STORMS)
def test_turns_survive_worker_deaths_and_redis_restarts(
    storm: Storm, model: tuple[CountedModel, int], tmp_path: Path, chance: random.Random, say: Say
) -> None:
    server, port = model
    log = tmp_path / "deeds.log"
    log.touch()
    (tmp_path / "goondan.yaml").write_text(BUNDLE.format(port=port, agent=AGENT), "utf-8")
    (tmp_path / "deed.py").write_text(DEED.format(log=str(log)), "utf-8")
    with LocalStack(tmp_path, workers=0, environment=ENVIRONMENT) as stack:
        fleet = Fleet(stack, 3)
        wait_until(lambda: len(fleet.consuming) == 3, 60)
        answered: dict[int, float] = {}

        def ask(turn: int) -> Any:
            key = f"instance-{turn % (storm.turns // 3)}"
            answer = stack.client.request(AGENT, f"Turn {turn}", instance_key=key, timeout=300)
            answered[turn] = time.time()
            return answer.response

        def restart_redis(is_over: threading.Event) -> None:
            while not is_over.wait(storm.restart_every):
                restart(stack.redis, 1.0)

        with (
            beside(restart_redis, "restarts", 60),
            kills(fleet, storm.kill_every, chance),
            ThreadPoolExecutor(storm.at_once) as threads,
        ):
            responses = list(threads.map(ask, range(storm.turns)))

    runs = deeds(log)
    steps = [(turn, step) for turn in range(storm.turns) for step in range(CALLS)]
    assert responses == [f"answer {turn}" for turn in range(storm.turns)]
    assert [one for one in steps if len(runs[one]) > 1] == []
    # what a tool call has come of is in the ledger, and so is the answer of a Turn that has ended
    asked_late = [one for one in steps if runs[one] and max(server.asked[one]) > runs[one][0]]
    asked_late += [(turn, CALLS) for turn, at in answered.items() if max(server.asked[turn, CALLS]) > at]
    assert asked_late == []
    assert server.faults == []
    requests = sum(map(len, server.asked.values()))
    lost = sum(not runs[one] for one in steps)
    say(
        [
            f"{storm.turns} Turns, {len(fleet.deaths)} deaths, {requests} requests for "
            f"{storm.turns * (CALLS + 1)} answers, {lost} tool calls whose worker died before they began"
        ]
    )
