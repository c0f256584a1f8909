"""What every test gets: the check of the rules it shows, short tracebacks in what is logged, and patience."""

import structlog
from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.requirements.plugin"]


def pytest_configure() -> None:
    """Let structlog, where nothing configures it, draw no local variables: a whole bundle takes seconds."""
    structlog.dev.ConsoleRenderer.get_active().exception_formatter = structlog.dev.plain_traceback
    # a machine that stands still for a fifth of a second is not a fault of what an example shows
    settings.register_profile(
        "patient", settings.default, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("patient")
