"""The official clients of AG-UI and the AI SDK, and the chat page in a browser, at an agent that thinks."""

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker_config.settings import Settings
from goondan_tasks.cli.addresses import listening_socket
from goondan_tasks.machine.process import url_of
from goondan_tasks.testing import LocalStack
from goondan_web.application import make_application
from goondan_web.doors.ag_ui import ag_ui_door
from goondan_web.doors.vercel import vercel_door
from goondan_web.server import served
from tests.model_server import Answer, Call, ModelServer, in_turn
from tests.node_packages import FOLDERS, node, node_modules

pytestmark = [pytest.mark.faults, pytest.mark.long]

ROOT = Path(__file__).parents[2]
PATIENCE = 120
FIRST = "I will wipe it, and then I will tell you what is left of it."
WIPE = (Call("desk__wipe", {"disk": "sda"}),)


@pytest.fixture(scope="module")
def modules() -> Path:
    return node_modules("front-ends")


@pytest.fixture(scope="module")
def model() -> Iterator[ModelServer]:
    with ModelServer() as server:
        yield server


@pytest.fixture(scope="module")
def page() -> Iterator[str]:
    """Serve the chat page; return its address."""
    handler = functools.partial(
        http.server.SimpleHTTPRequestHandler, directory=str(ROOT / "examples" / "chat-page")
    )
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def url(model: ModelServer, page: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    source = ROOT / "tests" / "bundles" / "thinking"
    bundle = Path(shutil.copytree(source, tmp_path_factory.mktemp("bundle") / "thinking"))
    resources = bundle / "goondan.yaml"
    resources.write_text(resources.read_text("utf-8").replace("http://127.0.0.1:9/v1", model.url), "utf-8")
    settings = Settings.load(http_origins=page)
    with LocalStack(bundle, agents=["student"]) as stack, listening_socket("127.0.0.1", 0) as server:
        doors = [ag_ui_door(stack.client, settings), vercel_door(stack.client, settings)]
        with served(make_application(doors, settings, "127.0.0.1"), server):
            yield url_of(server)


def wiping(**first: Any) -> Any:
    """Return a script in which the model calls what needs an approval, and then hears of it."""
    return in_turn(Answer(FIRST, WIPE, **first), Answer("I wait."), Answer("It is wiped."))


def official(script: str, modules: Path, *arguments: str) -> Any:
    """Run a program in Node, and return what it saw."""
    command = [node(), str(FOLDERS / "front-ends" / script), str(modules), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_official_ag_ui_client_runs_agent_and_approves_call(
    model: ModelServer, url: str, modules: Path
) -> None:
    model.begin(wiping())
    seen = official("ag-ui.mjs", modules, f"{url}/ag-ui/student")
    assert seen["interrupt"]["metadata"]["args"] == {"disk": "sda"}
    assert [kind for kind in seen["types"] if kind.startswith("RUN_")] == ["RUN_STARTED", "RUN_FINISHED"] * 2
    contents = [message.get("content") for message in seen["messages"] if message["role"] != "reasoning"]
    assert contents[0] == "wipe it"
    assert contents[-1] == "It is wiped."
    assert '{"wiped":{"disk":"sda"}}' in contents


def test_ai_sdk_sends_message_and_approves_call(model: ModelServer, url: str, modules: Path) -> None:
    model.begin(wiping())
    seen = official("ai-sdk.mjs", modules, f"{url}/vercel/student")
    assert seen["held"]["input"] == {"disk": "sda"}
    assert seen.get("error") is None
    assert seen["status"] == "ready"
    assert [message["role"] for message in seen["messages"]] == ["user", "assistant"]
    parts = seen["messages"][1]["parts"]
    assert [part["text"] for part in parts if part["type"] == "text"] == [
        FIRST,
        "I wait.",
        "It is wiped.",
    ]
    [call] = [part for part in parts if part["type"] == "dynamic-tool"]
    assert (call["state"], call["output"]) == ("output-available", {"wiped": {"disk": "sda"}})


def beginning() -> Any:
    """Return a script in which the model calls what the page carries out, and then hears of it."""
    call = Call("desk__begin", {})
    return in_turn(Answer("", (call,)), Answer("The page does it."), Answer("It has begun."))


def test_official_ag_ui_client_runs_tool_of_its_page(model: ModelServer, url: str, modules: Path) -> None:
    model.begin(beginning())
    seen = official("ag-ui-tools.mjs", modules, f"{url}/ag-ui/student")
    assert seen["called"] == ["desk__begin"]
    assert seen["messages"][-1]["content"] == "It has begun."
    assert "begun" in str(model.requests[-1])


def test_ai_sdk_carries_out_tool_of_its_page(model: ModelServer, url: str, modules: Path) -> None:
    model.begin(beginning())
    seen = official("ai-sdk-tools.mjs", modules, f"{url}/vercel/student")
    assert (seen["called"], seen.get("error"), seen["status"]) == (["desk__begin"], None, "ready")
    parts = seen["messages"][-1]["parts"]
    assert [part["text"] for part in parts if part["type"] == "text"] == [
        "The page does it.",
        "It has begun.",
    ]
    [call] = [part for part in parts if part["type"] == "dynamic-tool"]
    assert (call["state"], call["output"]) == ("output-available", {"begun": True})


def test_chat_page_survives_outage_and_midway_reload(
    model: ModelServer, url: str, page: str, modules: Path, tmp_path: Path
) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is on PATH")
    gate = threading.Event()
    model.begin(wiping(gate=gate, gate_after=3))
    address = f"{page}/?agent=student&server={url}"
    command = [
        node(),
        str(FOLDERS / "front-ends" / "page.mjs"),
        str(modules),
        browser,
        address,
        str(tmp_path),
    ]
    lines = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None
        for line in user.stdout:
            lines.append(line.strip())
            if line.strip() == "reloaded":
                gate.set()
    gate.set()
    assert lines[:-1] == ["away", "half", "reloaded", "approved"]
    boxes = json.loads(lines[-1])
    assert [kind for kind, _ in boxes] == ["user", "assistant", "tool", "assistant", "assistant"]
    assert [text for kind, text in boxes if kind == "assistant"] == [
        FIRST,
        "I wait.",
        "It is wiped.",
    ]
    assert boxes[2][1] == 'desk__wipe {"disk":"sda"}\n→ {"wiped":{"disk":"sda"}}'
