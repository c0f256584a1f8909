"""Extensions in TypeScript and JavaScript in worker processes, with Node and with Bun."""

import os
import re
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.client import Client
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.machine.javascript import find_runtime
from goondan_tasks.testing import LocalStack
from tests.integration.test_extensions import Weather
from tests.waiting import wait_until

JAVASCRIPT_EXTENSIONS_BUNDLE = Path(__file__).parent.parent / "bundles" / "javascript-extensions"
PATIENCE = 60


@dataclass
class ExtensionsStack:
    """A worker that serves the bundle's agents."""

    stack: LocalStack
    notes: Path

    @property
    def client(self) -> Client:
        return self.stack.client

    def log(self) -> str:
        return self.stack.log(self.stack.workers[0])

    def said(self) -> list[str]:
        return self.notes.read_text().splitlines()

    def call(self, tool: str, args: Any = None, **fields: Any) -> ToolCallResult:
        agent = "warden" if "." in tool else "keeper"
        return self.client.call(agent, tool, args or {}, timeout=PATIENCE, **fields)

    def shine(self, note: str | None = None, **fields: Any) -> ToolCallResult:
        return self.call("lamp__shine", {"colour": " red ", **({"note": note} if note else {})}, **fields)

    def pid(self) -> int:
        """Return the process of the extensions."""
        pid: int = self.call("beacon__look").output["pid"]
        return pid


@pytest.fixture(scope="module")
def weather() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Weather) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture(scope="module", params=["node", "bun"])
def extensions(
    request: pytest.FixtureRequest, weather: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ExtensionsStack]:
    if find_runtime(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    notes = tmp_path_factory.mktemp(request.param) / "notes"
    notes.touch()
    variables = {
        "GOONDAN_JAVASCRIPT": request.param,
        "GOONDAN_LOG_LEVEL": "debug",
        "WEATHER_URL": weather,
        "NOTES": str(notes),
    }
    with LocalStack(JAVASCRIPT_EXTENSIONS_BUNDLE, environment=variables) as stack:
        yield ExtensionsStack(stack, notes)


def error_of(result: ToolCallResult) -> tuple[str, str]:
    assert result.error is not None
    return result.error.code, result.error.message


# the documents' examples, as they stand there


@pytest.mark.requirement("middleware.registration")
def test_documented_logger_logs_tool_calls(extensions: ExtensionsStack) -> None:
    assert extensions.call("beacon__old").output == "old"

    wait_until(lambda: re.search(r"Tool 완료: beacon__old \(\d+ms\)", extensions.log()))
    assert "Tool 호출: beacon__old {} " in extensions.log()
    assert "extension=tool-logger" in extensions.log()


@pytest.mark.requirement("dynamic.register")
def test_documents_weather_tool_answers_and_fails_like_service(extensions: ExtensionsStack) -> None:
    assert extensions.call("weather__get", {"city": "Seoul"}).output == {"city": "Seoul", "celsius": 21}
    assert error_of(extensions.call("weather__get", {"city": "Atlantis"})) == ("E_TOOL", "날씨 API 오류: 404")
    assert error_of(extensions.call("weather__get", {}))[0] == "E_TOOL_INVALID_ARGS"


@pytest.mark.requirement("v1.dynamic-register")
def test_older_documents_weather_tool_answers(extensions: ExtensionsStack) -> None:
    args = {"city": "Seoul", "units": "metric", "times": 1}

    assert extensions.call("weather.get", args).output == {"city": "Seoul", "celsius": 21, "tune": "low"}


@pytest.mark.requirement("v1.pipeline-points")
def test_older_documents_loggers_report_calls_and_errors(extensions: ExtensionsStack) -> None:
    before = extensions.said().count("once")
    assert extensions.call("bell.ring").output["rang"] == 2
    assert extensions.call("bell.crack").error is not None

    wait_until(lambda: "tool.error bell.crack cracked" in extensions.said())
    for line in (
        r"Tool 호출: bell\.ring",
        r"Tool 완료: bell\.ring \(\d+ms\)",
        r"Tool 실패: bell\.crack",
        r"\[Tool\] 호출: \{\\n +name: 'bell.ring',\\n +arguments: \{ times: 2 \},\\n +turnId: 'turn-",
        r"\[Tool\] 완료: \{ name: 'bell.ring', status: 'ok', elapsed: '\d+ms' \}",
    ):
        wait_until(lambda line=line: re.search(line, extensions.log()), show=lambda line=line: line)  # type: ignore[misc]
    assert extensions.said().count("once") == before + (before == 0)


@pytest.mark.requirement("v1.catalog-per-step")
def test_older_documents_mutator_of_catalog_adds_dynamic_tools(extensions: ExtensionsStack) -> None:
    step = extensions.client.turn("warden", "older").step(timeout=PATIENCE)

    sources = {item.name: (item.source.type, item.source.name) for item in step.catalog}
    assert sources == {
        "bell.ring": ("config", "bell"),
        "bell.crack": ("config", "bell"),
        "weather.get": ("extension", "older-catalog"),
        "tower.look": ("extension", "older-catalog"),
    }
    assert step.blocks == ({"type": "tide", "data": 0},)


# middlewares


@pytest.mark.requirement("middleware.context", "middleware.next", "middleware.tool-call-wraps-handler")
def test_arguments_metadata_and_results_are_changed_on_way(extensions: ExtensionsStack) -> None:
    first, second = (extensions.shine(instance_key="counted").output for _ in range(2))

    told = {"from": "closely", "inner": True}
    shone = {"got": {"colour": "red"}, "instance": "counted", "told": told, "keys": ["calls"]}
    assert (first, second) == ({**shone, "calls": 1}, {**shone, "calls": 2})


@pytest.mark.parametrize(
    ("note", "code", "message"),
    [
        ("throws", "E_MIDDLEWARE", "Middleware beacon.closely raised TypeError: out of order"),
        ("coded", "E_DARK", "dark"),
        ("no file", "E_MIDDLEWARE", "Middleware beacon.closely raised Error: ENOENT"),
        ("twice", "E_MIDDLEWARE", "Middleware beacon.closely called next() a second time."),
        ("a result", "E_TOOL", "no"),
        ("sets", "E_MIDDLEWARE", "Middleware beacon.closely raised TypeError: "),
        ("cycle", "E_MIDDLEWARE", "Middleware beacon.closely raised ToolOutputError: "),
    ],
)
def test_fault_of_middleware_is_error_of_call(
    extensions: ExtensionsStack, note: str, code: str, message: str
) -> None:
    result = extensions.shine(note)

    assert error_of(result)[0] == code
    assert error_of(result)[1].startswith(message)


def test_middleware_may_answer_itself_or_pass_inner_result_on(extensions: ExtensionsStack) -> None:
    assert extensions.shine("alone").output == {"instead": True}
    passed_on = extensions.shine("nothing", instance_key="n").output
    assert passed_on == {"got": {"colour": " red ", "note": "nothing"}, "instance": "n"}


def test_errors_keep_names_codes_and_texts_across_processes(extensions: ExtensionsStack) -> None:
    told = {"name": "ToolError", "code": "E_NO_OIL", "message": "No oil.", "suggestion": "Fill it up."}
    assert extensions.call("lamp__refuse").output == told

    rethrown, reworded = (
        extensions.call("lamp__refuse", {"note": note}).error for note in ("rethrow", "reword")
    )
    assert rethrown is not None
    assert reworded is not None
    assert rethrown.model_dump(exclude={"help_url"}) == told
    assert reworded.model_dump(exclude={"help_url"}) == {**told, "message": "No oil. Ask the harbour."}


def test_event_passes_turn_step_and_tool_call_middlewares(extensions: ExtensionsStack) -> None:
    calls = [{"id": "c1", "name": "lamp__shine", "args": {"colour": "blue"}}]
    answer = extensions.client.request(
        "keeper", {"calls": calls}, instance_key="event", timeout=PATIENCE
    ).response

    assert "lamp__brief" not in answer["tools"]
    assert answer["descriptions"]["lamp__shine"] == "Shines. 3 times."
    assert answer["blocks"] == [{"type": "tide", "data": {"step": 0}}]
    assert answer["results"][0]["got"] == {"colour": "blue"}
    assert answer["metadata"] == {"seen": ["ok"]}
    assert answer["turn"] == {"event": "agent.request", "isDate": True, "has": None}


@pytest.mark.requirement("v1.pipeline-points")
def test_event_passes_all_points_of_older_version(extensions: ExtensionsStack) -> None:
    calls = [{"id": "c1", "name": "bell.ring", "args": {"times": 2}}]
    answer = extensions.client.request(
        "warden", {"calls": calls}, instance_key="event", timeout=PATIENCE
    ).response

    assert answer["points"] == ["turn.pre", "turn.post"]
    assert answer["blocks"] == [{"type": "tide", "data": 0}]
    [rang] = answer["results"]
    assert rang == {"rang": 3, "tune": "low", "points": ["toolCall.pre", "toolCall.post"], "results": True}


def test_older_tool_of_extension_uses_its_api(extensions: ExtensionsStack) -> None:
    looked = [extensions.call("tower.look", instance_key="tower").output["state"] for _ in range(2)]

    assert looked == [{"looked": 1}, {"looked": 2}]


# processes


@pytest.mark.parametrize("note", ["hang", "hang inside"])
def test_killed_host_fails_call_and_next_call_restarts_host(extensions: ExtensionsStack, note: str) -> None:
    before = extensions.pid()
    pending = extensions.client.submit("keeper", "lamp__shine", {"colour": "red", "note": note})
    wait_until(lambda: extensions.said()[-1:] == [f"hangs in {before}"], show=extensions.said)
    os.kill(before, signal.SIGKILL)

    code, message = error_of(pending.result(PATIENCE))
    assert code == "E_MIDDLEWARE"
    assert "did not end. The extension's process was ended by SIGKILL." in message
    assert ("What is further inside of it has run." in message) == (note == "hang inside")
    assert extensions.shine().status == "ok"
    assert extensions.pid() != before


def test_different_registrations_after_restart_are_logged(extensions: ExtensionsStack) -> None:
    differs = extensions.notes.with_name("notes.differs")
    differs.touch()
    os.kill(extensions.pid(), signal.SIGKILL)
    wait_until(lambda: extensions.shine().status == "ok")

    assert extensions.call("beacon__new").output == "new"
    assert "extension.registered_differently" in extensions.log()
    code, message = error_of(extensions.call("beacon__old"))
    assert code == "E_TOOL_NOT_FOUND"
    assert "'beacon' was started again" in message
    differs.unlink()
    os.kill(extensions.pid(), signal.SIGKILL)
    wait_until(lambda: extensions.call("beacon__old").status == "ok")


def test_blocked_host_is_ended_at_calls_limit(extensions: ExtensionsStack) -> None:
    before = extensions.pid()

    assert error_of(extensions.call("lamp__brief", {"note": "spin"}))[0] == "E_TOOL_TIMEOUT"
    wait_until(lambda: extensions.shine().status == "ok")
    assert extensions.pid() != before


def test_cancelled_call_aborts_signal_of_its_middleware(extensions: ExtensionsStack) -> None:
    assert error_of(extensions.call("lamp__brief", {"note": "signal"}))[0] == "E_TOOL_TIMEOUT"

    wait_until(lambda: "aborted: E_TOOL_CANCELLED" in extensions.said())


def test_extension_tool_has_workdir_and_instance_state(
    extensions: ExtensionsStack,
) -> None:
    extensions.shine(instance_key="here")

    looked = extensions.call("beacon__look", instance_key="here").output
    assert {**looked, "pid": 0} == {"pid": 0, "calls": 1, "other": "none", "cwd": True}


def test_listeners_hear_of_calls_and_that_worker_stops(weather: str, tmp_path: Path) -> None:
    if find_runtime() is None:
        pytest.skip("neither Node nor Bun is installed")
    notes = tmp_path / "notes"
    with LocalStack(JAVASCRIPT_EXTENSIONS_BUNDLE, ["keeper"], environment={"NOTES": str(notes)}) as stack:
        ExtensionsStack(stack, notes).shine()

    said = notes.read_text().splitlines()
    assert said[:2] == ["registered beacon of keeper with 3", "flash register"]
    assert "completed lamp__shine ok" in said
    assert set(said[-2:]) == {"worker.stopping", "extension.unloading"}
    assert "never" not in said
