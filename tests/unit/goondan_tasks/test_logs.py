"""Logging for a while."""

import subprocess
import sys
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import capture_logs

from broker_config.settings import Settings
from goondan_tasks.logs import logging_for_a_while


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


def test_a_traceback_has_no_local_variables_and_goes_to_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_for_a_while(Settings()):
        fail("hunter2")
        structlog.get_logger("any").debug("more")

    out, err = capsys.readouterr()
    assert out == ""
    assert "handler failed" in err
    assert err.splitlines()[-1] == "ValueError: no such note"
    assert "hunter2" not in err
    assert not structlog.is_configured()


def test_settings_choose_level_and_format(capsys: pytest.CaptureFixture[str]) -> None:
    with logging_for_a_while(Settings(log_level="debug", log_format="json")):
        structlog.get_logger("any").debug("more", number=5)

    assert '"event": "more"' in capsys.readouterr().err


def test_what_the_program_has_configured_stays(capsys: pytest.CaptureFixture[str]) -> None:
    structlog.configure(processors=[structlog.processors.JSONRenderer()])
    before = structlog.get_config()

    with logging_for_a_while(Settings()):
        structlog.get_logger("any").info("seen")

    assert capsys.readouterr() == ('{"event": "seen"}\n', "")
    assert structlog.get_config() == before


def test_logs_can_be_captured_within_and_defaults_that_a_capture_left_are_nobodys_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with capture_logs() as around, logging_for_a_while(Settings()):
        fail("")
    with logging_for_a_while(Settings()), capture_logs() as within:
        fail("")
    with logging_for_a_while(Settings()):
        fail("hunter2")

    out, err = capsys.readouterr()
    assert [event["event"] for event in (*around, *within)] == ["handler failed"] * 2
    assert (out, "hunter2" in err, "handler failed" in err) == ("", False, True)


def test_the_addresses_of_requests_are_not_logged_at_any_level() -> None:
    program = """if True:
        import logging
        from broker_config.settings import Settings
        from goondan_tasks.logs import configure_logging
        configure_logging(Settings(log_level="debug"))
        for name in ("httpx2", "httpcore2.http11", "other"):
            logging.getLogger(name).info("POST https://tickets.example/mcp?key=%s", name)
    """
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    [line] = told.stderr.splitlines()
    assert "mcp?key=other" in line
