"""What ``goondan dev`` shows: its processes' lines behind their names, and what it does itself."""

import shlex
import threading
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from goondan_tasks.bundle import Finding
from goondan_tasks.cli.finding_view import finding_text
from goondan_tasks.cli.output import Screen
from goondan_tasks.cli.printable import printable

OWN_NAME = "dev"

_COLORS = ("cyan", "yellow", "green", "magenta", "blue", "bright_cyan", "bright_yellow", "bright_magenta")
_NARROWEST = 15


class DevScreen:
    """Writes to stderr; threads may share it."""

    def __init__(self) -> None:
        self._screen = Screen(stderr=True)
        self._lock = threading.Lock()
        self._colors = {OWN_NAME: "bold"}
        self._width = _NARROWEST

    def line(self, name: str, text: str | Text) -> None:
        """Write what a process says, each line behind its name."""
        content = text if isinstance(text, Text) else Text(printable(text))
        with self._lock:
            self._width = max(self._width, len(name))
            color = self._colors.setdefault(name, _COLORS[len(self._colors) % len(_COLORS)])
            prefix = Text(f"{name:<{self._width}} | ", style=color)
            for row in content.split("\n"):
                self._screen.print(prefix + row, soft_wrap=True)

    def say(self, text: str | Text) -> None:
        """Write what dev itself has to say."""
        self.line(OWN_NAME, text)

    def findings(self, findings: Sequence[Finding]) -> None:
        """Write what is doubtful about the bundle, if anything is."""
        for finding in findings:
            self.say(finding_text(finding))

    def places(self, redis_url: str, flower_url: str | None, bundle: Path, *, is_own_redis: bool) -> None:
        """Write where everything is, and what to paste into another terminal."""
        self.say(f"Redis:  {redis_url}")
        if not is_own_redis:  # the line of another dev, pasted before into this terminal
            self.say("        not a private one: from --redis-url or GOONDAN_REDIS_URL;")
            self.say("        workers of other bundles there take calls of agents with the same name")
        if flower_url:
            self.say(f"Flower: {flower_url}")
        self.say("In another terminal:")
        settings = {"GOONDAN_REDIS_URL": redis_url, "GOONDAN_BUNDLE": str(bundle)}
        self.say("  export " + " ".join(f"{name}={shlex.quote(value)}" for name, value in settings.items()))
