"""The older documents' Extensions, in Python, in a worker's parts."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from structlog.testing import capture_logs

from goondan_tasks.contract.messages import ToolCall, ToolCallResult
from goondan_tasks.history import TurnHistory
from tests.unit.workers.v1.gallery import Gallery, gallery
from tests.waiting import wait_until
from workers.testing import run_tool

V1_EXTENSIONS_BUNDLE = Path(__file__).parents[3] / "bundles" / "v1-extensions"


class Weather(BaseHTTPRequestHandler):
    """The weather service of the document's example."""

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        self.send_response(200 if query["city"] == ["Seoul"] else 404)
        self.end_headers()
        self.wfile.write(json.dumps({"celsius": 21, "units": query["units"][0]}).encode())

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def weather_service() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Weather) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def forecaster(tmp_path: Path) -> Iterator[Gallery]:
    with gallery(tmp_path, V1_EXTENSIONS_BUNDLE, agent="forecaster") as running:
        yield running


@pytest.fixture
def astronomer(tmp_path: Path) -> Iterator[Gallery]:
    with gallery(tmp_path, V1_EXTENSIONS_BUNDLE, agent="astronomer") as running:
        yield running


def lines(running: Gallery) -> list[str]:
    """Return what the almanac has written down before it is asked."""
    noted: list[str] = running.call("almanac.read").output["lines"]
    return noted


def said(result: ToolCallResult) -> str:
    assert result.error is not None
    return result.error.message


@pytest.mark.requirement("v1.dynamic-register")
def test_documents_weather_tool_looks_weather_up(
    forecaster: Gallery, monkeypatch: pytest.MonkeyPatch
) -> None:
    with weather_service() as url, capture_logs():
        monkeypatch.setenv("WEATHER_URL", url)
        assert forecaster.call("weather.get", {"city": "Seoul"}).output == {"celsius": 21, "units": "metric"}
        assert said(forecaster.call("weather.get", {"city": "Nowhere"})) == "날씨 API 오류: 404"
        assert "kelvin" in said(forecaster.call("weather.get", {"city": "Seoul", "units": "kelvin"}))


@pytest.mark.requirement("v1.catalog-per-step")
def test_step_tools_may_add_existing_dynamic_tools(forecaster: Gallery) -> None:
    step = forecaster.step()

    catalog = forecaster.steps.require(forecaster.new("weather.get", step)).catalog
    assert catalog.names == ("dome.turn", "dome.jam", "lens__focus", "weather.get")
    weather = catalog.item("weather.get")
    assert weather is not None
    assert (weather.source.type, weather.source.name) == ("extension", "dynamic-catalog")
    assert weather.parameters is not None
    assert weather.parameters["required"] == ["city"]


@pytest.mark.requirement("v1.catalog-per-step", "catalog.per-step")
def test_step_call_reaches_what_step_tools_leaves(astronomer: Gallery) -> None:
    step = astronomer.step(origin={"drop": "lens__focus", "hide": "dome.turn"})

    kept = astronomer.steps.require(astronomer.new("dome.turn", step))
    # what the extension of today takes away is gone, too
    assert kept.catalog.names == ("dome.turn", "almanac.read")
    assert [item.description for item in kept.catalog] == ["Hidden.", None]
    assert said(astronomer.run(astronomer.new("lens__focus", step, {}))) == (
        "Tool 'lens__focus' is not available in the current Tool Catalog."
    )
    assert astronomer.run(astronomer.new("dome.turn", step, {"degrees": 5})).status == "ok"


def test_blocks_of_both_versions_stand_in_step(astronomer: Gallery) -> None:
    assert astronomer.step(index=1).blocks == (
        {"type": "custom.almanac", "data": {"agent": "astronomer", "step": 1}},
        {"type": "custom.shutter"},
    )


def test_step_passes_its_points_in_documents_order(astronomer: Gallery) -> None:
    astronomer.step()
    assert lines(astronomer) == [
        *("step.pre", "step.config", "step.tools", "step.blocks", "step.post "),
        *("toolCall.pre", "toolCall.exec"),
    ]


@pytest.mark.requirement("v1.pipeline-registration", "v1.pipeline-points")
def test_documents_tool_logger_logs_calls(forecaster: Gallery) -> None:
    with capture_logs() as logs:
        forecaster.call("dome.turn", {"degrees": 5})

    told = [line for line in logs if line.get("extension") == "tool-logger"]
    assert (told[0]["event"], told[0]["values"]) == ("Tool 호출: dome.turn", [{"degrees": 5}])
    assert told[1]["event"].startswith("Tool 완료: dome.turn (")


@pytest.mark.requirement("v1.pipeline-registration")
def test_documents_tool_logger_tells_of_failures(forecaster: Gallery) -> None:
    with capture_logs() as logs:
        assert said(forecaster.call("dome.jam")) == "it is stuck"
        wait_until(lambda: any(line["event"] == "heard" for line in logs))

    [failed] = [line for line in logs if line["event"] == "Tool 실패: dome.jam"]
    assert isinstance(failed["exc_info"], RuntimeError)
    [heard] = [line for line in logs if line["event"] == "heard"]
    assert heard["values"] == ["dome.jam", "it is stuck"]


@pytest.mark.requirement("v1.exec-context")
def test_documented_debug_extension_prints_what_it_sees(
    forecaster: Gallery, capsys: pytest.CaptureFixture[str]
) -> None:
    step = forecaster.step(index=2)
    with capture_logs():
        forecaster.run(forecaster.new("dome.turn", step, {"degrees": 5}))

    called, completed = capsys.readouterr().out.splitlines()
    seen = {"name": "dome.turn", "arguments": {"degrees": 5}, "turnId": "t1", "stepIndex": 2}
    assert called == f"[Tool] 호출: {seen}"
    assert completed.startswith("[Tool] 완료: {'name': 'dome.turn', 'status': 'ok', 'elapsed': '")


@pytest.mark.requirement("v1.exec-context")
def test_exec_sees_effective_configuration_and_steps_catalog(
    forecaster: Gallery,
) -> None:
    seen: list[Any] = []

    async def look(ctx: Any, next: Any) -> Any:
        seen.append((ctx.effective_config, ctx.tool_catalog, ctx.tool_result))
        result = await next(ctx)
        seen.append((ctx.effective_config, ctx.tool_catalog, ctx.tool_result))
        return result

    forecaster.steps.pipelines.v1.wrap("forecaster", "toolCall.exec", look, extension="look")
    step = forecaster.step()
    with capture_logs():
        forecaster.run(forecaster.new("dome.turn", step, {"degrees": 5}))

    (config, catalog, before), (_, _, after) = seen
    bundle = forecaster.registry.bundle
    assert config.agent == bundle.agents["forecaster"]
    assert config.swarm.spec.policy.max_steps_per_turn == forecaster.steps.terms.most_steps
    declared = {bound.tool.name for bound in bundle.bound_tools("forecaster").values()}
    assert {tool.name for tool in config.tools} == declared
    kept = forecaster.steps.require(forecaster.new("x", step))
    assert [item.name for item in catalog] == list(kept.catalog.names)
    assert "dome.turn" in [item.name for item in catalog]
    assert (before, after.status) == (None, "ok")


@pytest.mark.parametrize("tool", ["dome.turn", "lens__focus"])
def test_older_functions_surround_tools_of_both_versions(astronomer: Gallery, tool: str) -> None:
    assert astronomer.call(tool, {"degrees": 5}).status == "ok"
    before = ["toolCall.pre", "toolCall.exec", "toolCall.post"]
    assert lines(astronomer) == [*before, "toolCall.pre", "toolCall.exec"]


@pytest.mark.parametrize("tool", ["dome.turn", "lens__focus"])
def test_turn_is_read_once_for_functions_and_handler(
    astronomer: Gallery, monkeypatch: pytest.MonkeyPatch, tool: str
) -> None:
    def history(call: ToolCall) -> TurnHistory:
        read.append(call.tool_name)
        return TurnHistory()

    read: list[str] = []
    step = astronomer.step()
    monkeypatch.setattr(astronomer.steps, "history", history)
    assert astronomer.run(astronomer.new(tool, step, {"degrees": 5})).status == "ok"
    assert read == [tool]


def test_current_tool_keeps_context_beside_older_extensions(astronomer: Gallery) -> None:
    assert astronomer.call("lens__focus", {}).output["context"] == "PlainContext"


@pytest.mark.requirement("v1.catalog-item")
def test_older_extension_finds_agents_tools(astronomer: Gallery) -> None:
    output = astronomer.call("almanac.read").output
    assert output["tools"] == ["dome.turn", "dome.jam", "lens__focus", "almanac.read"]
    assert (output["declared"], output["dynamic"]) == ("dome", None)


def test_run_tool_runs_older_extensions(tmp_path: Path) -> None:
    result = run_tool(V1_EXTENSIONS_BUNDLE, "astronomer", "almanac.read", state_root=tmp_path)
    assert result.output["lines"] == ["toolCall.pre", "toolCall.exec"]
