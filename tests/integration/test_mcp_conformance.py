"""The protocol's conformance suite at ``goondan mcp-server --http``: every scenario that is claimed passes.

The suite is asked in both ages of the protocol. Not claimed, since the server has nothing of the kind and
does not declare it: prompts, resources, completion, logging, sampling, elicitation and other questions to the
client, ``server-stateless`` (wants a tool that needs sampling), ``caching`` (of prompts and resources).
Of the extension Tasks: ``tasks-mrtr-input`` (wants two questions at once), ``tasks-mrtr-composition`` (wants
a question before the task), ``tasks-required-task-error`` (no tool needs a task), and
``tasks-status-notifications`` (they are optional).
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, serving
from tests.node_packages import node_modules

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(600)]

PUPIL = Path(__file__).parent.parent / "bundles" / "mcp-tools"
SUITE_SECONDS = 240

HANDSHAKE = "2025-11-25"
STATELESS = "2026-07-28"
IN_BOTH = (
    "tools-list",
    "tools-call-simple-text",
    "tools-call-image",
    "tools-call-audio",
    "tools-call-embedded-resource",
    "tools-call-mixed-content",
    "tools-call-error",
    "tools-call-with-progress",
    "json-schema-2020-12",
    "server-sse-multiple-streams",
    "dns-rebinding-protection",
)
CLAIMED = {
    HANDSHAKE: ("server-initialize", "server-session-lifecycle", "ping", "server-sse-polling", *IN_BOTH),
    STATELESS: ("http-header-validation", "http-custom-header-server-validation", *IN_BOTH),
}
#: scenarios of the Tasks extension, which the suite runs one by one
TASKS = (
    "tasks-capability-negotiation",
    "tasks-dispatch-and-envelope",
    "tasks-request-headers",
    "tasks-request-state-removal",
    "tasks-wire-fields",
    "tasks-lifecycle",  # ends a worker
)
#: a tool's name here has two parts; those of tasks have one in the suite
_TOOL = re.compile(r"`(?:(test|json)_)?(\w+)`")


@pytest.fixture(scope="module")
def suite() -> Iterator[list[str]]:
    """Yield the command of the suite, which calls the tools of the bundle by their names."""
    modules = node_modules("conformance")
    program = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    ours = program.with_name(f"goondan-{os.getpid()}.js")  # beside what it imports
    exports = re.findall(r"- \{?name: (\w+)", (PUPIL / "goondan.yaml").read_text(encoding="utf-8"))

    def renamed(match: re.Match[str]) -> str:
        tool, export = match.groups()
        return f"`{tool or 'task'}__{export}`" if export in exports else match.group()

    ours.write_text(_TOOL.sub(renamed, program.read_text(encoding="utf-8")), encoding="utf-8")
    yield [str(modules / ".bin" / "node"), str(ours), "server"]
    ours.unlink()


@pytest.fixture(scope="module")
def url(suite: list[str]) -> Iterator[str]:
    with LocalStack(PUPIL, workers=2, environment={"GOONDAN_LEASE_SECONDS": "3"}) as stack:
        env = environment(redis_url=stack.redis_url)
        with serving("mcp-server", "--agent", "pupil", "--http", env=env) as server:
            yield server.url


def checks(
    suite: list[str], url: str, version: str, place: Path, *scenarios: str
) -> dict[str, list[dict[str, Any]]]:
    """Run every scenario, or these; return the checks of each by its name."""
    options = ["--url", url, "--spec-version", version, "--output-dir", str(place)]
    for which in [["--scenario", name, "--force"] for name in scenarios] or [["--suite", "all"]]:
        subprocess.run([*suite, *which, *options], capture_output=True, timeout=SUITE_SECONDS, check=False)
    files = {folder.name: folder / "checks.json" for folder in place.iterdir()}
    return {
        name: json.loads(file.read_text(encoding="utf-8"))
        for folder, file in files.items()
        for name in re.findall(r"^server-(.+)-\d{4}-\d\d-\d\dT", folder)
    }


def require_passed(told: dict[str, list[dict[str, Any]]], scenarios: Sequence[str]) -> None:
    """Require that every check of these scenarios has passed."""
    faults = [
        (name, check["id"], check["status"], check.get("errorMessage"))
        for name in scenarios
        for check in told[name]
        if check["status"] not in ("SUCCESS", "INFO")
    ]
    assert faults == []
    for name in scenarios:
        assert any(check["status"] == "SUCCESS" for check in told[name]), name


@pytest.mark.parametrize("version", [HANDSHAKE, STATELESS])
def test_every_claimed_scenario_passes_without_warning(
    suite: list[str], url: str, version: str, tmp_path: Path
) -> None:
    told = checks(suite, url, version, tmp_path)

    require_passed(told, CLAIMED[version])
    print(f"{version}: {len(CLAIMED[version])} scenarios pass: {', '.join(CLAIMED[version])}")
    print(f"not claimed: {', '.join(sorted(told.keys() - set(CLAIMED[version])))}")


def test_every_claimed_scenario_of_tasks_passes(suite: list[str], url: str, tmp_path: Path) -> None:
    require_passed(checks(suite, url, STATELESS, tmp_path, *TASKS), TASKS)
