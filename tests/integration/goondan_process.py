"""Running ``goondan`` as a process of its own, as people do."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

PROGRAM = (sys.executable, "-m", "goondan_tasks")
#: what a server may take to end
SERVER_SECONDS = 60


@dataclass(frozen=True, slots=True)
class Done:
    """How a command ended and what it wrote."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def document(self) -> Any:
        """The one JSON document on stdout."""
        return json.loads(self.stdout)


def environment(**settings: object) -> dict[str, str]:
    """Return this process's environment with these settings and no others of ours."""
    foreign = {name: value for name, value in os.environ.items() if not name.startswith("GOONDAN_")}
    return {**foreign, **{f"GOONDAN_{name.upper()}": str(value) for name, value in settings.items()}}


def goondan(
    *arguments: str,
    env: dict[str, str],
    cwd: Path | None = None,
    seconds: float = 60,
    stdin: str | None = None,
) -> Done:
    """Run a command and wait for its end; no command may print a traceback."""
    with subprocess.Popen(
        [*PROGRAM, *arguments],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(stdin, seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert "Traceback" not in stderr, stderr
    return Done(process.returncode, stdout, stderr)


def start(
    *arguments: str, env: dict[str, str], cwd: Path | None = None, errors: IO[str] | int = subprocess.PIPE
) -> "subprocess.Popen[str]":
    """Start a command whose streams the test reads."""
    return subprocess.Popen(
        [*PROGRAM, *arguments],
        env=env,
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=errors,
        text=True,
    )


@dataclass(frozen=True, slots=True)
class Server:
    """A command that listens for HTTP."""

    process: "subprocess.Popen[str]"
    url: str


@contextmanager
def serving(
    *arguments: str, env: dict[str, str], errors: IO[str] | int = subprocess.DEVNULL
) -> Iterator[Server]:
    """Run a command that serves, on a free port, for the length of a ``with`` block; it ends in order."""
    process = start(*arguments, "--port", "0", "--json", env=env, errors=errors)
    assert process.stdout is not None
    with process.stdout:
        try:
            document = "".join(iter(process.stdout.readline, "}\n")) + "}"
            yield Server(process, json.loads(document)["url"])
        finally:
            process.terminate()
            assert process.wait(SERVER_SECONDS) == 0
