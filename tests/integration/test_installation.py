"""The wheel in an empty environment: the client alone works, and every door names the extra that it lacks."""

import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack
from tests.architecture.sources import ROOT

pytestmark = pytest.mark.usefixtures("fresh_programs")

EXAMPLE = ROOT / "examples" / "coding-swarm"
INSTALL_SECONDS, RUN_SECONDS = 120, 60
#: Typer, and what it needs that the wheel does not
TYPER = ("typer", "annotated-doc", "markdown-it-py", "mdurl", "pygments", "rich", "shellingham")
#: what pip says when the registry cannot be reached
_OFFLINE = re.compile(r"ConnectionError|ConnectTimeoutError|ReadTimeoutError|ProxyError")

CALL = """
import sys
from goondan_tasks.client import Client

with Client.connect() as client:
    result = client.call("coder", "bash__exec", {"command": "echo done"}, timeout=50)
print(result.status, result.output["stdout"].strip())
"""
#: runs a program, and tells what is missing
TELL = """
import json, sys
from goondan_tasks.errors import ConfigError

try:
    exec(sys.argv[1])
except ConfigError as error:
    print(json.dumps({"error": {"code": error.code, "suggestion": error.suggestion}}))
"""
#: runs commands one after the other, and prints the exit code of each and what it has written
RUN = """
import io, json, os, sys
from contextlib import redirect_stdout
from goondan_start import main

for words in json.loads(sys.argv[1]):
    os.environ["GOONDAN_BUNDLE"] = "bundle"
    if words[0] == "demo":  # it has a bundle of its own
        del os.environ["GOONDAN_BUNDLE"]
    sys.argv[1:] = words
    with redirect_stdout(io.StringIO()) as written:
        try:
            main()
        except SystemExit as end:
            code = end.code
    print(json.dumps([code, written.getvalue()]))
"""
#: commands, and the extra that each needs
COMMANDS = {
    "worker --agent asker": "worker",
    "orchestrator": "worker",
    "dev": "all",
    "demo": "worker,embedded",
    "flower": "cli",
    "metrics": "web",
    "mcp-server --agent asker": "mcp",
    "callbacks serve": "web",
    "serve": "web",
    "oauth serve": "oauth",
    "oauth rotate-key": "oauth",
}
STACK = "from goondan_tasks.testing import LocalStack; LocalStack('bundle').__enter__()"
OAUTH_KEY = "from goondan_tasks.oauth.crypto import Key; Key.parse('0' * 64)"
MCP = "from workers.testing import run_tool; run_tool('bundle', 'asker', 'time__now')"
MCP_BUNDLE = """
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: asker }
spec:
  extensions:
    - { ref: Extension/mcp, config: { servers: { time: { command: mcp-server-time } } } }
"""


@dataclass(frozen=True)
class Environment:
    """A virtual environment with the wheel, and a folder with a bundle."""

    folder: Path

    def run(self, program: str, *arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        """Run a program that is installed there, without the settings of this process."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("GOONDAN_")}
        return subprocess.run(
            [self.folder / "venv" / "bin" / program, *arguments],
            cwd=self.folder,
            env={**kept, **variables},
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
            check=False,
        )


def run_pip(*arguments: str) -> None:
    """Run pip; skips the test where its registry cannot be reached."""
    command = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_SECONDS, check=False)
    if done.returncode != 0 and (offline := _OFFLINE.search(done.stderr)):
        pytest.skip(f"pip cannot reach its registry ({offline.group()})")
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def light(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    """Return an environment with the wheel and none of its extras."""
    folder = tmp_path_factory.mktemp("light")
    run_pip("wheel", "--no-deps", "--wheel-dir", str(folder), str(ROOT))
    [wheel] = folder.glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    run_pip("--python", str(folder / "venv" / "bin" / "python"), "install", "--no-compile", str(wheel))
    (folder / "bundle").mkdir()
    (folder / "bundle" / "goondan.yaml").write_text(MCP_BUNDLE, encoding="utf-8")
    return Environment(folder)


def test_wheel_contains_typescript_host_types_and_starters(light: Environment) -> None:
    [wheel] = light.folder.glob("*.whl")
    names = set(zipfile.ZipFile(wheel).namelist())
    kept = ROOT / "goondan_tasks"
    files = [*kept.glob("machine/node/**/*.*"), *kept.glob("cli/starter/typescript/**/*.*")]
    kept_files = [file for file in files if file.is_file() and file.suffix != ".pyc"]
    sources = {file.relative_to(ROOT).as_posix() for file in kept_files}

    assert len(sources) > 8
    assert sources <= names


@pytest.fixture(scope="module")
def typer_path(light: Environment) -> str:
    """Return the folder of a Typer that another package of the environment could have brought."""
    run_pip("install", "--no-compile", "--target", str(light.folder / "others"), "--no-deps", *TYPER)
    return str(light.folder / "others")


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Yield a worker with everything, elsewhere."""
    with LocalStack(EXAMPLE, agents=["coder"]) as running:
        yield running


def told(printed: str) -> tuple[str, str]:
    """Return the code of the error that a program has printed as JSON, and what is to be done."""
    error = json.loads(printed)["error"]
    return error["code"], error["suggestion"]


def advice(extra: str) -> tuple[str, str]:
    """Return what every door says that lacks an extra."""
    command = f"pip install 'goondan-workers[{extra}]'"
    return "E_CONFIG_PACKAGE_NOT_INSTALLED", f"Install it with its extra: {command}"


def test_client_alone_calls_tool_of_worker_elsewhere(light: Environment, stack: LocalStack) -> None:
    done = light.run("python", "-W", "error", "-c", CALL, GOONDAN_REDIS_URL=stack.redis_url)

    assert (done.stdout, done.stderr) == ("ok done\n", "")


@pytest.mark.parametrize(
    ("program", "extra"),
    [(STACK, "worker,embedded"), (OAUTH_KEY, "oauth")],
)
def test_program_names_missing_extra(light: Environment, program: str, extra: str) -> None:
    done = light.run("python", "-c", TELL, program)

    assert told(done.stdout) == advice(extra)


def test_extension_names_missing_extra(light: Environment) -> None:
    code, suggestion = told(light.run("python", "-c", TELL, MCP).stdout)

    assert (code, suggestion) == ("E_EXT_INIT", advice("mcp")[1])


@pytest.mark.parametrize(("command", "extra"), [("--help", "cli"), ("call a b", "cli"), ("worker", "worker")])
def test_the_program_names_the_missing_extra(light: Environment, command: str, extra: str) -> None:
    for_people = light.run("goondan", *command.split())
    done = light.run("goondan", *command.split(), "--json")

    assert (done.returncode, for_people.returncode) == (3, 3)
    assert told(done.stdout) == advice(extra)
    assert for_people.stderr == (
        f"Error: typer is not installed. (E_CONFIG_PACKAGE_NOT_INSTALLED)\nWhat to do: {advice(extra)[1]}\n"
    )


def test_command_names_missing_extra(light: Environment, typer_path: str, stack: LocalStack) -> None:
    variables = {"GOONDAN_REDIS_URL": stack.redis_url, "GOONDAN_STATE_ROOT": str(light.folder / "state")}
    commands = json.dumps([f"{command} --json".split() for command in COMMANDS])
    done = light.run("python", "-c", RUN, commands, PYTHONPATH=typer_path, **variables)

    lines = [json.loads(line) for line in done.stdout.splitlines()]
    said = {command: (code, *told(text)) for command, (code, text) in zip(COMMANDS, lines, strict=True)}
    assert said == {command: (3, *advice(extra)) for command, extra in COMMANDS.items()}, done.stderr
