"""Looking again and again, for commands with ``--watch``."""

import time
from collections.abc import Callable

from rich.console import RenderableType
from rich.live import Live

from goondan_tasks.cli.output import Screen

REFRESH_SECONDS = 1.0


def watch_screen(look: Callable[[], RenderableType]) -> None:
    """Show what ``look`` returns, and look again every second, until Ctrl-C."""
    with Live(look(), console=Screen(), auto_refresh=False) as live:
        while True:
            time.sleep(REFRESH_SECONDS)
            live.update(look(), refresh=True)
