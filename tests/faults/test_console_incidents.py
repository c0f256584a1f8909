"""The incidents of a night, each found from the overview by links, and acted on, in four clicks."""

import html
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from goondan_tasks.client import PendingCall
from goondan_tasks.contract.errors import AgentUnavailableError
from goondan_tasks.testing import LocalStack
from goondan_web.application import make_application
from goondan_web.doors.console import console_door
from tests.faults.conftest import ENVIRONMENT
from tests.model_server import Answer, Call, ModelServer, in_turn, quota
from tests.waiting import wait_until

pytestmark = [pytest.mark.faults, pytest.mark.long]

PATIENCE = 60
MOST_CLICKS = 4
BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Package
metadata: {{ name: night }}
spec: {{}}
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: {{ name: default }}
spec:
  entryAgent: Agent/keeper
  agents: [Agent/keeper, Agent/doomed, Agent/ping, Agent/pong, Agent/thinker]
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: {{ name: night }}
spec:
  entry: ./night.py
  exports:
    - {{ name: dies, idempotent: true, parameters: {{ type: object }} }}
    - {{ name: waits, maxConcurrency: 1, parameters: {{ type: object }} }}
    - {{ name: wipe, requiresApproval: true, parameters: {{ type: object }} }}
    - name: strict
      parameters: {{ type: object, properties: {{ path: {{ type: string }} }}, required: [path] }}
---
apiVersion: goondan.ai/v1
kind: Model
metadata: {{ name: scripted }}
spec: {{ provider: openai-chat, model: any, baseUrl: "{url}", apiKey: {{ value: none }} }}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: keeper }}
spec: {{ tools: [Tool/night], entry: ./waits.py }}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: doomed }}
spec: {{ tools: [Tool/night] }}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: ping }}
spec: {{ entry: ./asks.py }}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: pong }}
spec: {{ entry: ./asks.py }}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {{ name: thinker }}
spec: {{ modelConfig: {{ modelRef: Model/scripted }}, tools: [Tool/night] }}
"""
FILES = {
    "night.py": """\
import asyncio, os, signal

def dies(ctx, input):
    os.kill(os.getpid(), signal.SIGKILL)

async def waits(ctx, input):
    await asyncio.Event().wait()

def wipe(ctx, input):
    return "wiped"

def strict(ctx, input):
    return input["path"]

handlers = {"dies": dies, "waits": waits, "wipe": wipe, "strict": strict}
""",
    "waits.py": """\
import asyncio

async def handle(ctx, event):
    await asyncio.Event().wait()
""",
    "asks.py": """\
def handle(ctx, event):
    other = "pong" if ctx.agent_name == "ping" else "ping"
    return ctx.runtime.request(other, {"input": "and you?"}).to_wire()
""",
}


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def stack(model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    bundle = tmp_path_factory.mktemp("night")
    for name, text in {**FILES, "goondan.yaml": BUNDLE.format(url=model.url)}.items():
        Path(bundle / name).write_text(text, "utf-8")
    agents = ["keeper", "ping", "pong", "thinker"]
    with LocalStack(bundle, agents, environment=ENVIRONMENT, apart=True) as stack:
        yield stack


@dataclass(slots=True)
class Operator:
    """A person at the console, who follows links and sends forms, and counts them."""

    browser: TestClient
    address: str = "/console"
    text: str = ""
    clicks: int = 0

    def opens(self) -> None:
        """Open the overview."""
        self.address, self.clicks = "/console", 0
        self.text = self._get()

    def _get(self) -> str:
        answer = self.browser.get(self.address)
        assert answer.status_code == 200, answer.text
        return answer.text.partition("<main")[2]

    def follows(self, *words: str) -> None:
        """Follow the first link of the page that has all these words, in its text or its address."""
        for address, shown in re.findall(r'<a [^>]*href="([^"]+)"[^>]*>(.*?)</a>', self.text, re.DOTALL):
            link = html.unescape(f"{address} {re.sub('<[^>]+>', '', shown)}")
            if all(word in link for word in words):
                self.address = html.unescape(address)
                self.clicks += 1
                self.text = self._get()
                return
        raise AssertionError(f"no link with {words} on {self.address}:\n{self.text}")

    def sees(self, text: str) -> None:
        """Look at the page until it has a text."""

        def is_there() -> bool:
            self.text = self._get()
            return text in " ".join(html.unescape(re.sub("<[^>]+>", "", self.text)).split())

        wait_until(is_there, PATIENCE)

    def sends(self, button: str, **fields: str) -> None:
        """Send the first form of the page whose button says this; unfolding it is no click that leads on."""
        for address, inside in re.findall(
            r'<form method="post" action="([^"]+)">(.*?)</form>', self.text, re.DOTALL
        ):
            if button in re.sub("<[^>]+>", "", inside.rpartition("<button")[2]):
                hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]*)"', inside))
                hidden = {name: html.unescape(value) for name, value in hidden.items()}
                answer = self.browser.post(html.unescape(address), data={**hidden, **fields})
                assert answer.status_code == 200, answer.text
                self.clicks += 1
                return
        raise AssertionError(f"no form with {button} on {self.address}")


@pytest.fixture
def operator(stack: LocalStack) -> Iterator[Operator]:
    door = console_door(stack.client, stack.client.settings)
    app = make_application([door], stack.client.settings, "127.0.0.1")
    with TestClient(app, base_url="http://127.0.0.1") as browser:
        yield Operator(browser)


def ended(call: PendingCall) -> str | None:
    """Wait for the end of a call; return the code of its error."""
    error = call.result(PATIENCE, wait_pending=True).error
    return None if error is None else error.code


def runs(stack: LocalStack, call: PendingCall) -> None:
    """Wait until a call has begun: one that has not is queued again if its worker dies."""
    wait_until(
        lambda: (record := stack.client.record(call.id)).status == "running" and record.has_started, PATIENCE
    )


def begun(stack: LocalStack, agent: str, tool: str, **fields: str) -> PendingCall:
    """Submit a call and wait until it runs."""
    call = stack.client.submit(agent, tool, {}, **fields)  # type: ignore[arg-type]
    runs(stack, call)
    return call


def is_over(stack: LocalStack, worker: "subprocess.Popen[bytes]") -> bool:
    """Return whether a worker has died, or the call is a dead letter."""
    return worker.poll() is not None or bool(stack.client.dead_letters("doomed"))


def test_poisoned_call_is_found_and_dropped(stack: LocalStack, operator: Operator) -> None:
    call = stack.client.submit("doomed", "night__dies", {})
    while not stack.client.dead_letters("doomed"):
        try:
            worker = stack.start_worker(["doomed"])
        except AgentUnavailableError:  # it has died of the call before it was seen to be ready
            continue
        wait_until(partial(is_over, stack, worker), PATIENCE)
        if worker.poll() is None:
            stack.stop_worker(worker)
    operator.opens()
    operator.follows("dead-letters")
    operator.follows(call.id)
    operator.sees("E_TOOL_POISONED")
    operator.sends("Drop it")
    assert operator.clicks <= MOST_CLICKS
    assert stack.client.dead_letters("doomed") == []


def test_full_limit_is_found_and_holder_cancelled(stack: LocalStack, operator: Operator) -> None:
    holder = begun(stack, "keeper", "night__waits")
    waiting = stack.client.submit("keeper", "night__waits", {})
    wait_until(lambda: stack.client.record(waiting.id).state == "waiting", PATIENCE)
    operator.opens()
    operator.follows("status=waiting", "agent=keeper")
    operator.follows(waiting.id)
    operator.sees("is limited to 1 at a time; held by")
    operator.follows(holder.id)
    operator.sends("Cancel the call")
    assert operator.clicks <= MOST_CLICKS
    assert ended(holder) == "E_TOOL_CANCELLED"
    runs(stack, waiting)
    waiting.cancel()
    ended(waiting)


def test_dead_worker_is_found_with_lost_call(stack: LocalStack, operator: Operator) -> None:
    extra = stack.start_worker(["doomed"])
    call = begun(stack, "doomed", "night__waits")
    os.kill(extra.pid, signal.SIGKILL)
    extra.wait(PATIENCE)
    assert ended(call) == "E_TOOL_OUTCOME_UNKNOWN"
    operator.opens()
    operator.follows("status=error", "agent=doomed")
    operator.follows(call.id)
    operator.sees("its worker died")
    assert operator.clicks <= MOST_CLICKS


def test_overdue_approval_is_found_and_approved(stack: LocalStack, operator: Operator) -> None:
    call = stack.client.submit("keeper", "night__wipe", {})
    assert call.result(PATIENCE).meta.awaits == "approval"
    operator.opens()
    operator.follows("approvals")
    operator.sends("Approve night__wipe")
    assert operator.clicks <= MOST_CLICKS
    assert call.result(PATIENCE, wait_pending=True).output == "wiped"


def test_model_without_quota_is_found_and_agent_paused(
    stack: LocalStack, operator: Operator, model: ModelServer
) -> None:
    model.begin(in_turn(quota()))
    for number in range(3):
        assert (
            ended(stack.client.start_turn("thinker", "hello", instance_key=f"k{number}")) == "E_MODEL_QUOTA"
        )
    operator.opens()
    operator.follows("status=error", "agent=thinker", "3")
    operator.follows("/calls/")
    operator.sees("E_MODEL_QUOTA")
    operator.address = "/console/queues"  # a link of the rail, on every page
    operator.clicks += 1
    operator.text = operator._get()
    operator.text = operator.text.partition('id="thinker"')[2]
    operator.sends("Pause", reason="the account is empty")
    assert operator.clicks <= MOST_CLICKS
    assert [(one.agent, one.reason) for one in stack.client.paused()] == [("thinker", "the account is empty")]
    stack.client.resume("thinker")


def test_wrong_argument_loop_is_found_and_turn_cancelled(
    stack: LocalStack, operator: Operator, model: ModelServer
) -> None:
    model.begin(lambda asked: Answer("", (Call("night__strict", {"pth": "x"}),)))
    turn = stack.client.start_turn("thinker", "read it", instance_key="loop")

    def fails_again() -> bool:
        failed = stack.client.calls("thinker", 50, tool="night__strict", status="error")
        return len(failed) >= 3 or stack.client.record(turn.id).status == "done"

    wait_until(fails_again, PATIENCE)
    operator.opens()
    operator.follows("tool=night__strict", "status=error")
    operator.follows("/calls/")
    operator.sees("E_TOOL_INVALID_ARGS")
    operator.follows(f"/calls/{turn.id}")
    if stack.client.record(turn.id).status != "done":
        operator.sends("Cancel the call")
    assert operator.clicks <= MOST_CLICKS
    ended(turn)


def test_handoff_cycle_is_found_with_its_path(stack: LocalStack, operator: Operator) -> None:
    turn = stack.client.start_turn("ping", "go")
    ended(turn)
    operator.opens()
    operator.sees("E_HANDOFF_CYCLE")
    operator.follows("status=error", "agent=p")
    operator.follows("/calls/")
    operator.follows("/traces/")
    operator.sees("of ping")
    operator.sees("of pong")
    assert operator.clicks <= MOST_CLICKS


def test_stuck_conversation_is_found_and_blocker_cancelled(stack: LocalStack, operator: Operator) -> None:
    first = stack.client.start_turn("keeper", "one", instance_key="stuck")
    runs(stack, first)
    second = stack.client.start_turn("keeper", "two", instance_key="stuck")
    operator.opens()
    operator.follows("/calls?status=queued", "agent=keeper")
    operator.follows(second.id)
    operator.sees("is before it")
    operator.follows(first.id)
    operator.sends("Cancel the call")
    assert operator.clicks <= MOST_CLICKS
    assert ended(first) is not None
    runs(stack, second)
    second.cancel()
    ended(second)
