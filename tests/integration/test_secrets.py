"""What programs, isolated tools and MCP servers find of the secrets of a real worker."""

import base64
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.contract.messages import ToolCallError
from goondan_tasks.testing import LocalStack
from tests.integration.oauth.test_reach import may_look_into_any_process
from tests.unit.goondan_tasks.oauth.records import grant
from tests.unit.goondan_tasks.oauth.stores import KEY, FileVault
from tests.waiting import wait_until

pytestmark = pytest.mark.usefixtures("fresh_programs")

PATIENCE = 60
CANARY = "canary-5f1c9a"
OAUTH_TOKEN = grant().token.access_token.get_secret_value()
SERVER = Path(__file__).parents[1] / "moody_server.py"
#: of the worker; no tool names the first ones
HIDDEN = {
    "GOONDAN_SECRET_SHOP_KEY": f"{CANARY}-1",
    "GOONDAN_HTTP_TOKEN": f"{CANARY}-2",
    "AWS_SECRET_ACCESS_KEY": f"{CANARY}-3",
    "SHOP_PLACE": f"{CANARY}-4",
}
NAMED = {"SHOP_TOKEN": "sesame-of-the-shop", "SHOP_REGION": "north"}

BUNDLE = """
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: keeper }
spec:
  tools: [Tool/bash, Tool/spy, Tool/far]
  env: { REGION: { valueFrom: { env: SHOP_REGION } } }
  extensions:
    - ref: Extension/mcp
      config:
        servers:
          moody:
            command: /bin/sh
            args: [-c, SCRIPT]
            env: [SHOP_REGION]
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: spy }
spec:
  entry: ./spy.py
  exports:
    - { name: run, parameters: { type: object } }
    - { name: named, parameters: { type: object }, env: [SHOP_TOKEN] }
    - { name: missing, parameters: { type: object }, env: [SHOP_PET] }
---
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: far }
spec:
  entry: ./spy.py
  isolation: process
  exports:
    - { name: run, parameters: { type: object } }
    - { name: look, parameters: { type: object } }
    - { name: asks, parameters: { type: object } }
    - { name: named, parameters: { type: object }, env: { TOKEN: { valueFrom: { env: SHOP_TOKEN } } } }
    - { name: missing, parameters: { type: object }, env: [SHOP_PET] }
"""
SPY = """
import os


def run(ctx, input):
    return ctx.run_process(["sh", "-c", input["command"]]).stdout


def look(ctx, input):
    return "".join(f"{name}={text}\\n" for name, text in os.environ.items())


def asks(ctx, input):
    return os.environ["SHOP_PLACE"]


handlers = {"run": run, "named": run, "missing": run, "look": look, "asks": asks}
"""


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    root = tmp_path_factory.mktemp("shop")
    state = root / "state"
    FileVault(state).open(KEY).replace_grant(grant(), generation=0)
    script = f"({search(state)}) > {root}/found; exec {sys.executable} {SERVER} {root}/lives"
    (root / "bundle").mkdir()
    (root / "bundle" / "goondan.yaml").write_text(BUNDLE.replace("SCRIPT", f"'{script}'"), "utf-8")
    (root / "bundle" / "spy.py").write_text(SPY, "utf-8")
    environment = {**HIDDEN, **NAMED, "GOONDAN_OAUTH_KEY": KEY, "GOONDAN_STATE_ROOT": str(state)}
    with LocalStack(root / "bundle", environment=environment) as stack:
        yield stack


def search(state: Path) -> str:
    """Return a command that prints its environment, and each line of the state root with a secret."""
    secrets = " ".join(f"-e {text}" for text in (CANARY, KEY, OAUTH_TOKEN))
    return f"env; grep -raF {secrets} {shlex.quote(str(state))}"


def call(stack: LocalStack, tool: str, command: str = "") -> Any:
    args = {"command": command} if command else {}
    result = stack.client.call("keeper", tool, args, timeout=PATIENCE)
    assert result.status == "ok", result.error
    return result.output


def error_of(stack: LocalStack, tool: str) -> ToolCallError:
    result = stack.client.call("keeper", tool, {"command": "env"}, timeout=PATIENCE)
    assert result.error is not None, result.output
    return result.error


def found_by(stack: LocalStack, seat: str) -> str:
    """Return what one kind of program finds when it searches."""
    if seat == "server":
        report = stack.state_root.parent / "found"
        wait_until(
            lambda: "moody__echo" in {item["name"] for item in stack.client.catalog("keeper")}, PATIENCE
        )
        return report.read_text("utf-8")
    if seat == "far__look":
        return str(call(stack, seat))
    output = call(stack, seat, search(stack.state_root))
    return str(output["stdout"] if seat == "bash__exec" else output)


@pytest.mark.parametrize("seat", ["bash__exec", "spy__run", "far__run", "far__look", "server"])
def test_no_secret_of_worker_reaches_program(stack: LocalStack, seat: str) -> None:
    found = found_by(stack, seat)

    assert "PATH=" in found
    assert [secret for secret in (CANARY, KEY, OAUTH_TOKEN) if secret in found] == []
    assert [line for line in found.splitlines() if line.startswith("GOONDAN_")] == []
    assert "SHOP_TOKEN" not in found


def test_search_finds_planted_secret(stack: LocalStack) -> None:
    """Without this, the test above would hold although the command did not work."""
    planted = f"echo {CANARY} > planted; export GOONDAN_PLANTED=1; {search(stack.state_root)}; rm planted"
    found = call(stack, "bash__exec", planted)["stdout"]

    assert "GOONDAN_PLANTED=1" in found
    assert f"planted:{CANARY}" in found


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
@pytest.mark.skipif(may_look_into_any_process(), reason="root may look into any process")
def test_programs_cannot_inspect_worker_with_oauth_key(stack: LocalStack) -> None:
    [worker] = stack.workers
    assert call(stack, "spy__run", f"cat /proc/{worker.pid}/environ; true") == ""


@pytest.mark.parametrize("tool", ["spy__run", "far__run", "far__look"])
def test_variables_that_agent_names_reach_all_its_tools(stack: LocalStack, tool: str) -> None:
    assert "REGION=north\n" in call(stack, tool, "env")


def test_variables_named_by_server_reach_it(stack: LocalStack) -> None:
    assert "SHOP_REGION=north\n" in found_by(stack, "server")


@pytest.mark.parametrize(("tool", "name"), [("spy__named", "SHOP_TOKEN"), ("far__named", "TOKEN")])
def test_secret_named_by_export_reaches_programs_not_results(stack: LocalStack, tool: str, name: str) -> None:
    encoded = base64.b64encode(NAMED["SHOP_TOKEN"].encode()).decode()

    assert call(stack, tool, f'printf %s "${name}" | base64 -w0') == encoded
    assert call(stack, tool, f'echo "is ${name}"') == "is ***\n"


@pytest.mark.parametrize("tool", ["spy__missing", "far__missing"])
def test_named_variable_that_worker_lacks_is_calls_error(stack: LocalStack, tool: str) -> None:
    error = error_of(stack, tool)

    assert error.code == "E_CONFIG_REF_NOT_FOUND"
    assert "SHOP_PET" in error.message


def test_missing_worker_variable_error_explains_env_setting(stack: LocalStack) -> None:
    error = error_of(stack, "far__asks")

    assert (error.name, error.message) == ("KeyError", "'SHOP_PLACE'")
    assert error.suggestion == "Name it in 'env' of the Tool or Agent: env: [SHOP_PLACE]."
