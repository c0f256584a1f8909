"""``goondan chat`` with a real worker, and a model that says what a script tells it."""

import json
import re
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.client import Client, TextDelta, TurnEnded, TurnProgress
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import PROGRAM, environment, goondan
from tests.integration.terminal import PATIENCE, Terminal
from tests.model_server import Answer, Asked, Call, ModelServer

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Model
metadata: { name: scripted }
spec: { provider: openai-chat, model: scripted-1, baseUrl: "MODEL_URL", apiKey: { value: sk-none } }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { modelConfig: { modelRef: Model/scripted }, tools: [Tool/disk] }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: plain }
spec: { entry: ./plain.py }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: disk }
spec:
  entry: ./disk.py
  exports:
    - { name: list, description: List the disks. }
    - { name: wipe, description: Wipe a disk., requiresApproval: true }
"""
DISK = """\
def wipe(ctx, input):
    return f"wiped {input['disk']}"


handlers = {"list": lambda ctx, input: ["sda"], "wipe": wipe}
"""
PLAIN = """\
import time
from pathlib import Path


def handle(ctx, event):
    ctx.progress(1, 2, "half way")
    while "until" in event.input and not Path(event.input["until"]).exists():
        time.sleep(0.02)
    return {"told": event.input}
"""
#: the answer to what the model was told last, if it begins so
ANSWERS = {
    "hello": Answer("Hello there.", reasoning="a guest"),
    "which disks": Answer("Let me look.", calls=(Call("disk__list"),)),
    '["sda"]': Answer("There is sda."),
    "wipe": Answer(calls=(Call("disk__wipe", {"disk": "sda"}),)),
    '{"status":"pending"': Answer("I wait."),
    # the event toolCall.completed
    '{"event"': Answer("Now I know how it ended."),
    # the stream stands still after its first words
    "talk": Answer("one two three", gate=threading.Event(), gate_after=2),
}


def script(asked: Asked) -> Answer:
    told = asked.said[-1].text
    return next(answer for begin, answer in ANSWERS.items() if told.startswith(begin))


def write_bundle(directory: Path, model: ModelServer) -> None:
    (directory / "goondan.yaml").write_text(BUNDLE.replace("MODEL_URL", model.url), "utf-8")
    (directory / "disk.py").write_text(DISK, "utf-8")
    (directory / "plain.py").write_text(PLAIN, "utf-8")


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer(script) as model:
        yield model


@pytest.fixture(scope="module")
def stack(model: ModelServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    bundle = tmp_path_factory.mktemp("chat")
    write_bundle(bundle, model)
    with LocalStack(bundle) as stack:
        yield stack


@pytest.fixture
def env(stack: LocalStack) -> dict[str, str]:
    settings = environment(redis_url=stack.redis_url, bundle=stack.bundle, state_root=stack.state_root)
    return {**settings, "TERM": "xterm", "COLUMNS": "100"}


@pytest.fixture
def chat(env: dict[str, str]) -> Iterator[Terminal]:
    terminal = Terminal((*PROGRAM, "chat", "coder", "--reasoning"), env)
    terminal.wait_for("> ")
    yield terminal
    terminal.close()


def plain(shown: str) -> str:
    """Return text without what colours it."""
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


def test_chat_shows_text_and_tool_calls_live(chat: Terminal) -> None:
    chat.type("hello\n")
    shown = plain(chat.wait_for("tokens: 10 input, 5 output"))
    assert "a guest\r\nHello there.\r\n" in shown
    chat.wait_for("> ")

    chat.type("which disks are there?\n")
    chat.wait_for("Let me look.\r\n")
    chat.wait_for("ok\x1b[0m  disk__list · ")
    chat.wait_for("There is sda.\r\n")
    chat.wait_for("tokens: 20 input, 10 output")
    chat.wait_for("> ")

    chat.type("/what\n")
    chat.wait_for("There is no command /what")
    chat.wait_for("> ")
    chat.type("/new\n")
    chat.wait_for("instance chat-")
    chat.wait_for("> ")
    chat.type("\x04")
    chat.wait_for("Continue with: goondan chat coder --instance chat-")
    assert chat.process.wait(PATIENCE) == 0


def test_ctrl_c_closes_model_request_not_session(chat: Terminal, model: ModelServer) -> None:
    chat.type("talk\n")
    chat.wait_for("one two")
    asked = model.requests[-1]
    assert not asked.is_given_up.is_set()

    chat.process.send_signal(signal.SIGINT)
    chat.wait_for("cancelled")
    assert asked.is_given_up.wait(PATIENCE)

    chat.wait_for("> ")
    chat.type("hello\n")
    chat.wait_for("Hello there.")


@pytest.mark.parametrize(
    ("decision", "ending"),
    [("y", "ok\x1b[0m  disk__wipe"), ("not today", "E_APPROVAL_DENIED: The call was denied by ")],
)
def test_chat_asks_approval_in_place_and_continues(chat: Terminal, decision: str, ending: str) -> None:
    chat.type("wipe it\n")
    chat.wait_for("waits for an approval")
    chat.wait_for("I wait.")
    chat.wait_for('"disk": "sda"')
    chat.wait_for("Approve? [y/N, or why not] ")

    chat.type(f"{decision}\n")
    chat.wait_for(ending)
    chat.wait_for("Now I know how it ended.")
    chat.wait_for("> ")


def test_piped_chat_writes_only_agents_words_to_stdout(env: dict[str, str]) -> None:
    done = goondan("chat", "coder", "--instance", "piped", env=env, stdin="which disks?\n\n/help\nhello\n")

    assert (done.exit_code, done.stdout) == (0, "Let me look.\nThere is sda.\nHello there.\n")
    assert "ok  disk__list · " in done.stderr

    shown = goondan("instances", "show", "piped", "--messages", env=env).stdout
    assert "Let me look.\ncalls disk__list\n" in shown
    assert 'result disk__list ["sda"]' in shown
    [told] = goondan("instances", "show", "piped", "--messages", "--json", env=env).document
    assert (told["agent"], len(told["messages"])) == ("coder", 6)
    elsewhere = goondan(
        "instances", "show", "piped", "--messages", env={**env, "GOONDAN_STATE_ROOT": "/none"}
    )
    assert elsewhere.exit_code == 1
    assert "not below this machine's state root (/none)" in elsewhere.stderr


def test_programs_get_events_and_errors_as_json_lines(env: dict[str, str]) -> None:
    done = goondan("chat", "plain", "--json", env=env, stdin='{"a": 1}\n-\n/c\n')

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line.get("type") for line in lines] == ["accepted", "end", "accepted", "end", None]
    told = [line["result"]["response"]["told"] for line in lines if line.get("type") == "end"]
    assert told == [{"a": 1}, "-"]
    assert lines[-1]["error"]["code"] == "E_USAGE"


def test_agent_without_thinking_streams_progress_and_end(stack: LocalStack, tmp_path: Path) -> None:
    heard = []
    for event in stack.client.request_stream("plain", {"until": str(tmp_path / "go")}, timeout=PATIENCE):
        heard.append(event.type)
        if isinstance(event, TurnProgress):
            assert (event.progress.done, event.progress.message) == (1, "half way")
            (tmp_path / "go").touch()
    assert heard == ["accepted", "progress", "end"]


def test_terminal_request_streams_and_ends_with_same_answer(env: dict[str, str]) -> None:
    terminal = Terminal((*PROGRAM, "request", "coder", "hello"), env)
    try:
        assert terminal.process.wait(PATIENCE) == 0
        terminal.wait_for("Hello there.\r\n")
        terminal.wait_for("coder · ")
        assert "Hello" not in terminal.shown
    finally:
        terminal.close()

    assert goondan("request", "coder", "hello", env=env).stdout == "Hello there.\n"


def test_two_turns_of_one_instance_are_ordered(stack: LocalStack) -> None:
    heard: list[tuple[int, object]] = []
    is_begun = threading.Event()

    def follow(client: Client, number: int) -> None:
        for event in client.request_stream("coder", "hello", instance_key="ordered", timeout=PATIENCE):
            heard.append((number, event))
            is_begun.set()

    first = threading.Thread(target=follow, args=(stack.client, 1))
    first.start()
    assert is_begun.wait(PATIENCE)
    follow(stack.client, 2)
    first.join(PATIENCE)

    texts = [number for number, event in heard if isinstance(event, TextDelta)]
    ended = [number for number, event in heard if isinstance(event, TurnEnded)]
    assert (texts, ended) == (sorted(texts), [1, 2])
    conversation = stack.client.conversation("coder", "ordered")
    assert [message.data["role"] for message in conversation] == ["user", "assistant"] * 2


def test_turn_that_is_run_again_tells_nothing_twice(tmp_path: Path) -> None:
    answers = {"which": Answer("Let me look.", calls=(Call("disk__list"),)), '["sda"]': ANSWERS["talk"]}
    with ModelServer(lambda asked: answers[asked.said[-1].text]) as model:
        write_bundle(tmp_path, model)
        with LocalStack(tmp_path, ["coder"], workers=0, environment={"GOONDAN_LEASE_SECONDS": "2"}) as stack:
            worker = stack.start_worker()
            heard = []
            for event in stack.client.request_stream("coder", "which", timeout=PATIENCE):
                heard.append(event.type)
                if isinstance(event, TextDelta) and event.step == 1 and worker.poll() is None:
                    worker.kill()
                    worker.wait(PATIENCE)
                    answers['["sda"]'] = Answer("done")
                    stack.start_worker()
            assert isinstance(event, TurnEnded)
            assert event.result.response == "done"

    assert heard == [
        *("accepted", "text", "usage", "tool_call", "tool_result", "text"),
        *("restart", "text", "usage", "end"),
    ]
