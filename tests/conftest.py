"""What every test gets: the check of the rules that tests show, and short tracebacks in what is logged."""

import structlog

pytest_plugins = ["tests.requirements.plugin"]


def pytest_configure() -> None:
    """Let structlog, where nothing configures it, draw no local variables: a whole bundle takes seconds."""
    structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
