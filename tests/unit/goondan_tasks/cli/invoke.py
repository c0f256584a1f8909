"""Running ``goondan`` inside the test's process."""

import json
from dataclasses import dataclass
from typing import Any

from typer.testing import CliRunner

from goondan_tasks.cli.program import make_app


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.stdout)


def goondan(*arguments: str, stdin: str | None = None) -> Outcome:
    """Run a command; what no command should raise is raised here too."""
    done = CliRunner().invoke(make_app(), list(arguments), input=stdin, catch_exceptions=False)
    return Outcome(done.exit_code, done.stdout, done.stderr)
