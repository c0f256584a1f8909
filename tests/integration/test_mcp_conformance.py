"""The protocol's conformance suite at ``goondan mcp-server --http``: every scenario that is claimed passes.

The suite is asked in both ages of the protocol. Not claimed, since the server has nothing of the kind and
does not declare it: prompts, resources, completion, logging, sampling, elicitation and other questions to the
client, ``server-stateless`` (wants a tool that needs sampling), ``caching`` (of prompts and resources).
"""

import json
import os
import re
import subprocess
from collections.abc import Iterator
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
#: a tool's name here has two parts
_TOOL = re.compile(r"`(test|json)_(\w+)`")


@pytest.fixture(scope="module")
def suite() -> Iterator[list[str]]:
    """Yield the command of the suite, which calls the tools of the bundle by their names."""
    modules = node_modules("conformance")
    program = modules / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
    ours = program.with_name(f"goondan-{os.getpid()}.js")  # beside what it imports
    exports = re.findall(r"name: (\w+)", (PUPIL / "goondan.yaml").read_text(encoding="utf-8"))

    def renamed(match: re.Match[str]) -> str:
        tool, export = match.groups()
        return f"`{tool}__{export}`" if export in exports else match.group()

    ours.write_text(_TOOL.sub(renamed, program.read_text(encoding="utf-8")), encoding="utf-8")
    yield [str(modules / ".bin" / "node"), str(ours), "server"]
    ours.unlink()


@pytest.fixture(scope="module")
def url(suite: list[str]) -> Iterator[str]:
    with LocalStack(PUPIL) as stack:
        env = environment(redis_url=stack.redis_url)
        with serving("mcp-server", "--agent", "pupil", "--http", env=env) as server:
            yield server.url


def checks(suite: list[str], url: str, version: str, place: Path) -> dict[str, list[dict[str, Any]]]:
    """Run every scenario; return the checks of each by its name."""
    options = ["--url", url, "--suite", "all", "--spec-version", version, "--output-dir", str(place)]
    subprocess.run([*suite, *options], capture_output=True, timeout=SUITE_SECONDS, check=False)
    files = {folder.name: folder / "checks.json" for folder in place.iterdir()}
    return {
        name: json.loads(file.read_text(encoding="utf-8"))
        for folder, file in files.items()
        for name in re.findall(r"^server-(.+)-\d{4}-\d\d-\d\dT", folder)
    }


@pytest.mark.parametrize("version", [HANDSHAKE, STATELESS])
def test_every_claimed_scenario_passes_without_a_warning(
    suite: list[str], url: str, version: str, tmp_path: Path
) -> None:
    told = checks(suite, url, version, tmp_path)

    faults = [
        (name, check["id"], check["status"], check.get("errorMessage"))
        for name in CLAIMED[version]
        for check in told[name]
        if check["status"] not in ("SUCCESS", "INFO")
    ]
    assert faults == []
    for name in CLAIMED[version]:
        assert any(check["status"] == "SUCCESS" for check in told[name]), name
    print(f"{version}: {len(CLAIMED[version])} scenarios pass: {', '.join(CLAIMED[version])}")
    print(f"not claimed: {', '.join(sorted(told.keys() - set(CLAIMED[version])))}")
