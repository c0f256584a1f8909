"""Logging for a while."""

import io
import json
import logging
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import structlog
from structlog.testing import capture_logs

from broker_config.settings import Settings
from goondan_tasks.contract import logs
from goondan_tasks.contract.calls import Run, new_call
from goondan_tasks.contract.log_lines import KeepLine
from goondan_tasks.contract.logs import CallLog, RunningFields, configure_logging, temporary_logging
from goondan_tasks.contract.messages import ToolCallError, ToolCallResult, wall_clock
from goondan_tasks.contract.redaction import KNOWN_SECRETS


@pytest.fixture(autouse=True)
def unconfigured() -> Iterator[None]:
    """Begin and end with what structlog does by itself."""
    structlog.reset_defaults()
    yield
    structlog.reset_defaults()


def fail(secret: str) -> None:
    """Log an error whose frames have local variables."""
    try:
        raise ValueError("no such note")
    except ValueError:
        structlog.get_logger("any").exception("handler failed", tool="notes__add", password=secret)


def test_traceback_on_stderr_omits_local_variables(capsys: pytest.CaptureFixture[str]) -> None:
    with temporary_logging(Settings()):
        fail("hunter2")
        structlog.get_logger("any").debug("more")

    out, err = capsys.readouterr()
    assert out == ""
    assert "handler failed" in err
    assert err.splitlines()[-1] == "ValueError: no such note"
    assert "hunter2" not in err
    assert not structlog.is_configured()


def test_settings_choose_level_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    with temporary_logging(Settings(log_level="debug", log_format="json")):
        structlog.get_logger("any").debug("more", number=5)

    assert '"event": "more"' in capsys.readouterr().err


def test_existing_logging_configuration_stays(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    before = structlog.get_config()

    with temporary_logging(Settings()):
        structlog.get_logger("any").info("seen")

    assert capsys.readouterr() == ('{"event": "seen"}\n', "")
    assert structlog.get_config() == before


def test_logs_can_be_captured_and_leftover_defaults_are_ignored(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capture_logs() as around, temporary_logging(Settings()):
        fail("")
    with temporary_logging(Settings()), capture_logs() as within:
        fail("")
    with temporary_logging(Settings()):
        fail("hunter2")

    out, err = capsys.readouterr()
    assert [event["event"] for event in (*around, *within)] == ["handler failed"] * 2
    assert (out, "hunter2" in err, "handler failed" in err) == ("", False, True)


def test_request_addresses_are_logged_at_no_level() -> None:
    program = """if True:
        import logging
        from broker_config.settings import Settings
        from goondan_tasks.contract.logs import configure_logging
        configure_logging(Settings(log_level="debug"))
        for name in ("httpx2", "httpcore2.http11", "other"):
            logging.getLogger(name).info("POST https://tickets.example/mcp?key=%s", name)
    """
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    [line] = told.stderr.splitlines()
    assert "mcp?key=other" in line


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Settings], io.StringIO]]:
    """Configure logging as a worker does, into a text."""
    # a logger keeps the configuration that it has met first
    monkeypatch.setattr(logs, "logger", structlog.get_logger(logs.__name__))
    root = logging.getLogger()
    handlers, level = root.handlers, root.level

    def configure(
        settings: Settings, running: RunningFields = dict, keep: KeepLine | None = None
    ) -> io.StringIO:
        stream = io.StringIO()
        configure_logging(settings, running, keep)
        root.handlers[0].setStream(stream)  # type: ignore[attr-defined]
        return stream

    yield configure
    root.handlers = handlers
    root.setLevel(level)


def ended(tool: str = "bash__exec", call_id: str = "6f1c") -> ToolCallResult:
    """Return the result of a call."""
    run = Run(call_id, new_call("coder", tool, {}, {}), "w", 1, 1_000, wall_clock)
    return run.ok("done", 2_000)


def not_begun() -> ToolCallResult:
    """Return the result that a middleware has made before any handler began."""
    result = ended()
    return result.model_copy(update={"meta": result.meta.model_copy(update={"duration_ms": None})})


def failed(code: str) -> ToolCallResult:
    """Return the result of a call that has failed."""
    run = Run("6f1c", new_call("coder", "bash__exec", {}, {}), "w", 1, 1_000, wall_clock)
    return run.failed(ToolCallError(code=code, name="ToolError", message="no"), 2_000)


@pytest.mark.parametrize(
    "result", [ended(), failed("E_TOOL"), not_begun()], ids=["ok", "failed", "not begun"]
)
@pytest.mark.parametrize(
    ("log_format", "dev"), [("console", "off"), ("console", "on"), ("json", "off"), ("json", "on")]
)
def test_line_of_call_reads_same_by_template(
    configured: Callable[[Settings], io.StringIO], log_format: str, dev: str, result: ToolCallResult
) -> None:
    settings = Settings.load(log_format=log_format, dev=dev)
    stream = configured(settings)
    CallLog(settings, stream)(result, True)
    CallLog(settings, None)(result, True)
    moment = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z|^\d\d:\d\d:\d\d\b")
    by_template, structured = stream.getvalue().splitlines()
    assert moment.search(by_template)
    assert moment.sub("", by_template) == moment.sub("", structured)


def test_line_beside_dev_shows_only_essentials(
    configured: Callable[[Settings], io.StringIO],
) -> None:
    stream = configured(Settings(dev="on"))
    about = {"call_id": "6f1c2d3e-4a5b", "correlation_id": "c", "trace_id": "t", "worker": "coder-1@host"}
    structlog.get_logger("ours").warning("call.raised", **about, code="E_TOOL")
    logging.getLogger("celery.worker.consumer").info("Connected to redis")
    logging.getLogger("celery.worker.consumer").warning("Connection lost")
    lines = [line.partition(" ")[2] for line in stream.getvalue().splitlines()]
    assert lines == ["[warning] call.raised call_id=6f1c2d3e code=E_TOOL", "[warning] Connection lost"]


@pytest.mark.parametrize(
    ("result", "is_stored", "event"),
    [
        (failed("two\nlines"), True, "call.finished"),
        (ended(), False, "call.superseded"),
        (ended(tool="two\nlines"), True, "call.finished"),
        (ended(call_id="two\nlines"), True, "call.finished"),
    ],
)
def test_other_ends_of_calls_are_structured_lines(
    configured: Callable[[Settings], io.StringIO], result: ToolCallResult, is_stored: bool, event: str
) -> None:
    settings = Settings()
    stream, nowhere = configured(settings), io.StringIO()
    CallLog(settings, nowhere)(result, is_stored)
    assert nowhere.getvalue() == ""
    [line] = stream.getvalue().splitlines()
    assert event in line


def test_line_gets_running_calls_fields_unless_own_or_others(
    configured: Callable[..., io.StringIO],
) -> None:
    stream = configured(Settings(log_format="json"), lambda: {"call_id": "c-1", "tool": "notes__add"})
    ours, plain = structlog.get_logger("ours"), logging.getLogger("plain")
    ours.info("one")
    ours.info("two", tool="notes__list")
    ours.info("three", call_id="c-2")
    plain.info("four")
    plain.info("five", extra={"call_id": "c-2", "other": 1})
    about = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [(line.get("call_id"), line.get("tool"), line.get("other")) for line in about] == [
        ("c-1", "notes__add", None),
        ("c-1", "notes__list", None),
        ("c-2", None, None),
        ("c-1", "notes__add", None),
        ("c-2", None, None),
    ]


def test_another_handler_gets_lines_as_records(
    configured: Callable[..., io.StringIO], caplog: pytest.LogCaptureFixture
) -> None:
    stream = configured(Settings(log_format="json"))
    structlog.get_logger("ours").info("one")
    logging.getLogger().addHandler(caplog.handler)
    structlog.get_logger("ours").info("two", number=2)
    logging.getLogger().removeHandler(caplog.handler)
    structlog.get_logger("ours").info("three")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["one", "two", "three"]
    assert [record.msg["event"] for record in caplog.records if isinstance(record.msg, dict)] == ["two"]


@pytest.mark.parametrize("form", ["console", "json"])
def test_line_reads_same_directly_or_as_record(
    form: Literal["console", "json"], configured: Callable[..., io.StringIO], caplog: pytest.LogCaptureFixture
) -> None:
    stream = configured(Settings(log_format=form), lambda: {"call_id": "c-1", "agent": "coder"})
    logger = structlog.get_logger("ours").bind(tool="notes__add")

    def log_each() -> list[str]:
        stream.truncate(stream.seek(0))
        logger.debug("not wanted")
        logger.info("one", number=2, none=None, text="two words", password="hunter2")
        logger.warning("about %s", "another", call_id="c-2")
        logger.error("")
        try:
            raise ValueError("no\twind")
        except ValueError:
            logger.exception("failed")
        return [re.sub(r"20\d\d-[-T:.\d]+Z", "now", line) for line in stream.getvalue().splitlines()]

    at_once = log_each()
    logging.getLogger().addHandler(caplog.handler)
    as_records = log_each()
    logging.getLogger().removeHandler(caplog.handler)

    assert len(at_once) >= 4
    assert at_once == as_records


class Unprintable:
    """A value that cannot be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("not shown")


def test_unprintable_value_costs_only_its_line(
    configured: Callable[..., io.StringIO], capsys: pytest.CaptureFixture[str]
) -> None:
    stream = configured(Settings())
    structlog.get_logger("ours").info("one", value=Unprintable())
    structlog.get_logger("ours").info("two")
    assert "two" in stream.getvalue()
    assert "RuntimeError: not shown" in capsys.readouterr().err


def test_call_line_obeys_level_hides_secrets_outlives_stream(
    configured: Callable[[Settings], io.StringIO],
) -> None:
    KNOWN_SECRETS.add("swordfish__open")
    stream = configured(Settings(log_level="info"))
    CallLog(Settings(), stream)(ended(tool="swordfish__open"), True)
    assert "tool=***" in stream.getvalue()
    stream.close()
    CallLog(Settings(), stream)(ended(), True)
    quiet = configured(Settings(log_level="warning"))
    CallLog(Settings(log_level="warning"), quiet)(ended(), True)
    assert quiet.getvalue() == ""


@pytest.mark.parametrize("dev", ["on", "off"])
def test_console_line_escapes_control_characters_and_newlines(
    capsys: pytest.CaptureFixture[str], dev: str
) -> None:
    hostile = "a\x1b[2J\x9b1m\nforged"
    root, handlers = logging.getLogger(), logging.getLogger().handlers
    configure_logging(Settings(dev=dev))
    try:
        structlog.get_logger("any").info(hostile, tool=hostile, agent="coder\x1b", **{hostile: 1})
        logging.getLogger("any").warning(hostile, extra={"tool": hostile})
        fail("hunter2")
    finally:
        root.handlers = handlers

    lines = capsys.readouterr().err.splitlines()
    assert [line for line in lines if line.startswith("forged") or not line.isprintable()] == []
    assert sum("forged" in line for line in lines) == 2
    assert "Traceback (most recent call last):" in lines  # tracebacks keep their lines


@pytest.mark.parametrize(("log_format", "dev"), [("console", "off"), ("console", "on"), ("json", "off")])
def test_lines_are_kept_with_fields_without_secrets(
    configured: Callable[..., io.StringIO], log_format: str, dev: str
) -> None:
    kept: list[dict[str, object]] = []
    settings = Settings.load(log_format=log_format, dev=dev)
    configured(settings, lambda: {"call_id": "6f1c"}, lambda event: kept.append(dict(event)))

    structlog.get_logger("ours").info("by structlog", api_key="sk-1234567890")
    logging.getLogger("theirs").warning("by %s", "logging")
    logging.getLogger("theirs").debug("not logged")

    facts = [(line["event"], line["level"], line["call_id"], line.get("api_key")) for line in kept]
    assert facts == [("by structlog", "info", "6f1c", "***"), ("by logging", "warning", "6f1c", None)]
