"""What the orchestrator inside ``goondan dev`` has to say, for the person at the screen."""

from typing import Any

from goondan_tasks.cli.dev_screen import DevScreen

#: what is said of these events; of the others the workers' own lines tell
_TEXTS = {
    "orchestrator.worker_crashed": (
        "a worker of {agent} has crashed ({crashes} in a row), next start {next_start}"
    ),
    "orchestrator.worker_ended": "a worker of {agent} has ended with status {status}",
    "orchestrator.calls_ended": "{calls} that waited for {agent} ended with E_AGENT_UNAVAILABLE",
    "orchestrator.redis_away": "Redis cannot be reached: {reason}",
    "orchestrator.redis_back": "Redis can be reached again.",
}


class DevLog:
    """A logger that writes to the screen."""

    def __init__(self, screen: DevScreen) -> None:
        self._screen = screen

    def debug(self, event: str, *_: Any, **fields: Any) -> None:
        """Say it."""
        self._say(event, fields)

    info = warning = error = debug

    def _say(self, event: str, fields: dict[str, Any]) -> None:
        if event in _TEXTS:
            self._screen.say(_TEXTS[event].format(**fields))
