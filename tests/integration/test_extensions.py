"""Extensions in worker processes: middlewares, dynamic tools, events and state."""

import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import PROGRAM, environment, goondan
from tests.waiting import wait_until

EXTENSIONS_BUNDLE = Path(__file__).parent.parent / "bundles" / "extensions"
ORDER = ["second in", "first in", "third in", "third out", "first out", "second out"]


class Weather(BaseHTTPRequestHandler):
    """The weather service of the document's example."""

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        city = parse_qs(address.query).get("city", [""])[0]
        is_known = address.path == "/v1/current" and city == "Seoul"
        self.send_response(200 if is_known else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"city": city, "celsius": 21}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def weather() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Weather) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module")
def extensions_stack(weather: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    stop_file = tmp_path_factory.mktemp("stop") / "said"
    variables = {"WEATHER_URL": weather, "STOP_FILE": str(stop_file)}
    with LocalStack(EXTENSIONS_BUNDLE, environment=variables) as stack:
        yield stack


@pytest.fixture(scope="module")
def client(extensions_stack: LocalStack) -> Client:
    return extensions_stack.client


def framed(client: Client, note: str = "", tool: str = "brush__paint", **args: Any) -> ToolCallResult:
    notes = {"notes": note} if note else {}
    return client.call("framer", tool, {"colour": "red", **notes, **args}, timeout=30)


def code_of(result: ToolCallResult) -> str:
    assert result.error is not None
    return result.error.code


@pytest.mark.requirement(
    "middleware.tool-call-wraps-handler", "middleware.registration", "middleware.next", "middleware.context"
)
@pytest.mark.parametrize("tool", ["brush__paint", "brush__spray"])
def test_layers_wrap_plain_and_async_tools_by_priority(client: Client, tool: str) -> None:
    result = framed(client, tool=tool)

    assert result.output == {"order": ORDER, "got": {"colour": "red"}}
    assert result.tool_name == tool


@pytest.mark.requirement("middleware.args-reach-the-core")
def test_handler_gets_arguments_that_middleware_has_made(client: Client) -> None:
    assert framed(client, "change").output["got"] == {"colour": "green", "coats": 2}


def test_arguments_are_checked_after_last_middleware(client: Client) -> None:
    broken = framed(client, "break")
    assert code_of(broken) == "E_TOOL_INVALID_ARGS"
    assert framed(client, "change", coats="many").status == "ok"  # what came was not valid, what went in is


def test_second_next_is_refused_and_handler_runs_once(client: Client) -> None:
    result = client.call(
        "framer",
        "brush__paint",
        {"colour": "red", "notes": "twice"},
        instance_key="twice",
        tool_call_id="call_twice",
        timeout=20,
    )

    assert code_of(result) == "E_MIDDLEWARE"
    assert result.error is not None
    assert result.error.message == "Middleware frames.asked called next() a second time."
    runs = client.call("framer", "brush__runs", {}, instance_key="twice", timeout=30)
    assert runs.output["got"] == "call_twice\n"


@pytest.mark.requirement("middleware.context")
def test_middleware_may_answer_itself(client: Client) -> None:
    result = framed(client, "answer")

    told = {"answered": "brush__paint", "id": result.tool_call_id}
    assert result.output == {"order": ORDER, "got": told}


@pytest.mark.parametrize("note", ["raise", "raise after"])
def test_error_of_middleware_names_middleware(client: Client, note: str) -> None:
    result = framed(client, note)

    assert result.error is not None
    assert (result.error.code, result.error.name) == ("E_MIDDLEWARE", "MiddlewareError")
    assert result.error.message == "Middleware frames.asked raised KeyError: 'tenant'"


@pytest.mark.parametrize(
    ("note", "said"),
    [
        ("invent", "no result has status 'splendid'"),
        ("set", "Middleware frames.asked raised ValueError: it returned a value that is not JSON"),
        ("forget", "returned nothing, without a result of next()"),
    ],
)
def test_unusable_answer_of_middleware_is_error(client: Client, note: str, said: str) -> None:
    result = framed(client, note)

    assert result.error is not None
    assert result.error.code == "E_MIDDLEWARE"
    assert said in result.error.message


def test_middleware_may_catch_handlers_error(client: Client) -> None:
    assert client.call("framer", "brush__fail", {}, timeout=30).output == {"rescued": "the pot is empty"}


def test_limits_isolation_and_large_outputs_work_inside_middlewares(client: Client) -> None:
    late = client.call("framer", "brush__wait", {}, timeout_seconds=0.5, timeout=30)
    apart = client.call("framer", "brush__apart", {}, timeout=30)
    large = client.call("framer", "brush__large", {"characters": 300_000}, timeout=30)

    assert code_of(late) == "E_TOOL_TIMEOUT"
    assert apart.output["got"] > 1
    assert large.meta.output_file is not None


def test_plain_handler_never_runs_on_event_loop(client: Client) -> None:
    framed, *others = (
        client.call(agent, "brush__where", {}, timeout=30).output for agent in ("framer", "joiner", "walker")
    )

    assert all(name.startswith("goondan-call-") for name in (framed["got"], *others))


def test_hanging_middleware_ends_when_call_is_cancelled(client: Client) -> None:
    call = client.submit("framer", "brush__paint", {"colour": "red", "notes": "hang"})
    wait_until(lambda: call.status() == "running")

    call.cancel()

    assert code_of(call.result(30)) == "E_TOOL_CANCELLED"


def test_plain_handler_inside_middlewares_sees_cancellation(client: Client) -> None:
    call = client.submit("framer", "brush__wait", {}, instance_key="cancelled")
    wait_until(call.progress)  # one that is cancelled before its handler begins is not run

    call.cancel()

    assert code_of(call.result(30)) == "E_TOOL_CANCELLED"

    def left() -> Any:
        return client.call("framer", "brush__left", {}, instance_key="cancelled", timeout=30).output

    wait_until(left)  # the call ends at once, its handler as soon as it looks
    assert left()["got"] == "stopped"


def test_hanging_middleware_ends_at_call_time_limit(client: Client) -> None:
    args = {"colour": "red", "notes": "hang"}
    result = client.call("framer", "brush__paint", args, timeout_seconds=0.3, timeout=30)

    assert code_of(result) == "E_TOOL_TIMEOUT"


def test_plain_middlewares_may_block_and_keep_state(client: Client) -> None:
    for tool in ("brush__paint", "brush__spray"):
        assert client.call("joiner", tool, {"colour": "red"}, timeout=30).output == {"colour": "red"}


@pytest.mark.requirement("dynamic.register")
def test_documents_weather_tool_asks_server(client: Client) -> None:
    found = client.call("painter", "weather__get", {"city": "Seoul"}, timeout=30)
    unknown = client.call("painter", "weather__get", {"city": "Nowhere"}, timeout=30)
    wrong = client.call("painter", "weather__get", {"town": "Seoul"}, timeout=30)

    assert found.output == {"city": "Seoul", "celsius": 21}
    assert unknown.error is not None
    assert (unknown.error.code, unknown.error.message) == ("E_TOOL", "weather API: 404")
    assert code_of(wrong) == "E_TOOL_INVALID_ARGS"


@pytest.mark.requirement("registry.dynamic-tools")
def test_dynamic_tool_stands_in_catalog_that_producers_see(extensions_stack: LocalStack) -> None:
    with Client.connect(extensions_stack.redis_url) as stranger:
        catalogs = [one.catalog("painter") for one in (stranger, extensions_stack.client)]

    for catalog in catalogs:
        names = [item["name"] for item in catalog]
        assert names.index("weather__get") > names.index("brush__apart")
        [item] = [item for item in catalog if item["name"] == "weather__get"]
        assert item["source"] == {"type": "extension", "name": "weather"}


def test_catalog_command_shows_dynamic_tools_only_with_redis(
    extensions_stack: LocalStack,
) -> None:
    words = ("catalog", "painter", "--json")
    shown = goondan(*words, env=environment(bundle=EXTENSIONS_BUNDLE, redis_url=extensions_stack.redis_url))
    declared = goondan(*words, env=environment(bundle=EXTENSIONS_BUNDLE, redis_url="redis://127.0.0.1:1"))

    assert "weather__get" in {item["name"] for item in shown.document}
    assert "weather__get" not in {item["name"] for item in declared.document}
    assert "Tools of the agent's extensions are missing" in declared.stderr


def test_tool_registered_in_call_is_unreachable_without_step(client: Client) -> None:
    def call(tool: str, turn_id: str = "turn-of-the-vine") -> ToolCallResult:
        return client.call("painter", tool, {"name": "vine__climb"}, turn_id=turn_id, timeout=30)

    assert call("memory__grow").output == "registered"
    assert code_of(call("vine__climb")) == "E_TOOL_NOT_IN_CATALOG"
    assert [call("memory__wither", turn).output for turn in ("another", "turn-of-the-vine")] == [False, True]


def test_state_per_instance_is_seen_by_other_workers(extensions_stack: LocalStack) -> None:
    client = extensions_stack.client

    def count(instance: str) -> Any:
        return client.call("painter", "memory__count", {}, instance_key=instance, timeout=30).output

    assert [count("i1"), count("i1"), count("i2")] == [1, 2, 1]
    worker = extensions_stack.start_worker(agents=["painter"])
    [first] = [one for one in extensions_stack.workers if one is not worker]
    extensions_stack.stop_worker(first)
    assert count("i1") == 3
    asked = {"key": "count", "instance": "i1"}
    other = client.call("painter", "memory__recall", asked, instance_key="i3", timeout=30)
    assert other.output == 3
    extensions_stack.start_worker()


def test_listeners_hear_calls_and_failing_listener_disturbs_nobody(client: Client) -> None:
    for tool in ("brush__where", "brush__fail"):
        client.call("painter", tool, {}, instance_key="heard", timeout=30)

    def heard() -> Any:
        return client.call("painter", "ears__list", {}, instance_key="heard", timeout=30).output

    wait_until(lambda: (heard() or [])[:2] == ["brush__where", "brush__fail"])


def test_extensions_hear_that_their_worker_stops(tmp_path: Path) -> None:
    said = tmp_path / "said"
    with LocalStack(EXTENSIONS_BUNDLE, agents=["painter"], environment={"STOP_FILE": str(said)}) as stack:
        assert not said.exists()
        stack.stop_worker(stack.workers[0])

    assert said.read_text() == "stopped"


def test_worker_whose_extension_fails_does_not_start(tmp_path: Path, extensions_stack: LocalStack) -> None:
    shutil.copytree(EXTENSIONS_BUNDLE, tmp_path / "bundle")
    (tmp_path / "bundle/extensions/frames.py").write_text(
        "def register(api):\n    api.pipeline.register('toolcall', print)\n"
    )
    settings = environment(
        bundle=tmp_path / "bundle", redis_url=extensions_stack.redis_url, state_root=tmp_path / "s"
    )

    command = [*PROGRAM, "worker", "--agent", "framer"]
    done = subprocess.run(command, env=settings, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 3
    assert "E_EXT_INIT" in done.stderr
    assert "Extension 'frames' of agent 'framer': register raised ValueError" in done.stderr
    assert "frames.py:2" in done.stderr
