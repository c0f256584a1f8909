"""Running ``goondan`` against real workers: as a process of its own, or within the test's."""

import gc
import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO
from unittest import mock

from tests.unit.goondan_tasks.cli.invoke import Outcome
from tests.unit.goondan_tasks.cli.invoke import goondan as invoke

PROGRAM = (sys.executable, "-m", "goondan_tasks")
#: what a server may take to end, and a command
SERVER_SECONDS = COMMAND_SECONDS = 60
#: commands that serve, or that speak with their user; they configure the logging of their process
_SERVERS = {"callbacks", "chat", "connectors run", "dev", "flower", "mcp-server", "metrics", "oauth serve"}
_SERVERS |= {"serve", "worker"}


def environment(**settings: object) -> dict[str, str]:
    """Return this process's environment with these settings and no others of ours."""
    foreign = {name: value for name, value in os.environ.items() if not name.startswith("GOONDAN_")}
    return {**foreign, **{f"GOONDAN_{name.upper()}": str(value) for name, value in settings.items()}}


def goondan(
    *arguments: str, env: dict[str, str], cwd: Path | None = None, stdin: str | None = None
) -> Outcome:
    """Run a command to its end, within this process unless it serves or holds a session."""
    if not _SERVERS.isdisjoint((arguments[0], " ".join(arguments[:2]))):
        return goondan_program(*arguments, env=env, cwd=cwd, stdin=stdin)
    with mock.patch.dict(os.environ, env, clear=True), chdir(cwd or Path.cwd()):
        outcome = invoke(*arguments, stdin=stdin)
    with warnings.catch_warnings():  # what a program has left open is closed as it ends
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect(1)
    return outcome


def goondan_program(
    *arguments: str, env: dict[str, str], cwd: Path | None = None, stdin: str | None = None
) -> Outcome:
    """Run a command as a program, as people do, to its end; no command may print a traceback."""
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
            stdout, stderr = process.communicate(stdin, COMMAND_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            raise
    assert "Traceback" not in stderr, stderr
    return Outcome(process.returncode, stdout, stderr)


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
