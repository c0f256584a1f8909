"""The official TypeScript client at our server, and official TypeScript servers behind our client."""

import base64
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import PROGRAM, environment, serving
from tests.node_packages import FOLDERS, node, node_modules

PUPIL = Path(__file__).parent.parent / "bundles" / "mcp-tools"
PATIENCE = 60
#: what Node and three servers may take to start on a busy machine
START_SECONDS = 40


@pytest.fixture(scope="module")
def modules() -> Path:
    return node_modules("mcp")


@pytest.fixture(scope="module")
def pupil(modules: Path) -> Iterator[LocalStack]:
    with LocalStack(PUPIL) as stack:
        yield stack


def typescript_client(modules: Path, env: dict[str, str], *arguments: str) -> Any:
    """Run the client, and return what it saw."""
    done = subprocess.run(
        [node(), str(FOLDERS / "mcp" / "client.mjs"), str(modules), *arguments],
        env=env,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("door", ["stdio", "http"])
def test_typescript_client_sees_tools_content_progress_and_errors(
    pupil: LocalStack, modules: Path, door: str
) -> None:
    env = environment(redis_url=pupil.redis_url)
    if door == "stdio":
        seen = typescript_client(modules, env, "stdio", *PROGRAM, "mcp-server", "--agent", "pupil")
    else:
        with serving("mcp-server", "--agent", "pupil", "--http", env=env) as server:
            seen = typescript_client(modules, env, "http", server.url)

    assert seen["capabilities"] == {"tools": {"listChanged": True}}
    assert "-32601" in seen["level"], "logging is not declared, and refused"
    assert "-32601" in seen["completion"], "completion is not declared, and refused"
    assert {tool["name"] for tool in seen["tools"]} >= {"test__simple_text", "json__schema_2020_12_tool"}
    assert seen["text"]["content"] == [
        {"type": "text", "text": "This is a simple text response for testing."}
    ]
    [image] = seen["image"]["content"]
    assert (image["type"], image["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(image["data"]).startswith(b"\x89PNG")
    assert [block["type"] for block in seen["audio"]["content"]] == ["audio"]
    assert [block["type"] for block in seen["mixed"]["content"]] == ["text", "image", "resource"]
    assert seen["large"] == [["image", 800_000]]
    assert seen["data"]["structuredContent"] == {"email": "a@b.c"}
    assert seen["invalid"]["structuredContent"]["error"]["code"] == "E_TOOL_INVALID_ARGS"
    assert seen["failed"]["isError"] is True
    # over stdio this client drops reports that it reads together with the answer
    assert seen["progress"] == [0, 50, 100][: len(seen["progress"]) if door == "stdio" else None]
    assert seen["progress"] or door == "stdio"
    assert seen["pong"] == {}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("files").resolve()
    (place / "notes.txt").write_text("Buy flour.", encoding="utf-8")
    (place / "dot.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    return place


@pytest.fixture(scope="module")
def clerk(tmp_path_factory: pytest.TempPathFactory, modules: Path, files: Path) -> Iterator[LocalStack]:
    place = tmp_path_factory.mktemp("clerk")

    def server(name: str, *arguments: str, **fields: Any) -> dict[str, Any]:
        program = modules / "@modelcontextprotocol" / f"server-{name}" / "dist" / "index.js"
        return {"command": node(), "args": [str(program), *arguments], **fields}

    key = {"valueFrom": {"env": "EVERYTHING_KEY"}}
    servers = {
        "everything": server("everything", "stdio", env={"API_KEY": key}),
        "files": server("filesystem", str(files)),
        "memory": server("memory", env={"MEMORY_FILE_PATH": str(place / "memory.jsonl")}),
    }
    config = {"servers": servers, "startSeconds": START_SECONDS}
    agent = {"extensions": [{"ref": "Extension/mcp", "config": config}]}
    documents = [
        {"kind": "Package", "metadata": {"name": "office"}, "spec": {"version": "1.0.0"}},
        {"kind": "Agent", "metadata": {"name": "clerk"}, "spec": agent},
        {
            "kind": "Swarm",
            "metadata": {"name": "default"},
            "spec": {"agents": ["Agent/clerk"], "entryAgent": "Agent/clerk"},
        },
    ]
    text = yaml.safe_dump_all({"apiVersion": "goondan.ai/v1", **document} for document in documents)
    (place / "goondan.yaml").write_text(text, encoding="utf-8")
    with LocalStack(place, environment={"EVERYTHING_KEY": "Bearer sk-0123456789"}) as stack:
        yield stack


def call(stack: LocalStack, tool: str, **args: Any) -> ToolCallResult:
    return stack.client.call("clerk", tool, args, timeout=PATIENCE)


def output(stack: LocalStack, tool: str, **args: Any) -> Any:
    result = call(stack, tool, **args)
    assert result.status == "ok", result.error
    return result.output


def test_server_everything_text_structure_images_and_resources_arrive(clerk: LocalStack) -> None:
    assert output(clerk, "everything__echo", message="안녕") == "Echo: 안녕"
    weather = output(clerk, "everything__get-structured-content", location="Chicago")
    assert weather == {"temperature": 36, "conditions": "Light rain / drizzle", "humidity": 82}
    image = output(clerk, "everything__get-tiny-image")["content"][1]
    assert (image["type"], image["mimeType"]) == ("image", "image/png")
    assert base64.b64decode(image["data"]).startswith(b"\x89PNG")
    linked = output(clerk, "everything__get-resource-links", count=2)["content"]
    assert [block["type"] for block in linked] == ["text", "resource_link", "resource_link"]
    embedded = output(clerk, "everything__get-resource-reference", resourceType="Text", resourceId=1)
    assert "resource" in [block["type"] for block in embedded["content"]]
    wrong = call(clerk, "everything__get-sum", a=1, b="two")
    assert wrong.error
    assert wrong.error.code == "E_TOOL_INVALID_ARGS"


def test_secret_of_server_everything_stands_in_no_output(clerk: LocalStack) -> None:
    told = output(clerk, "everything__get-env")

    assert "sk-0123456789" not in told
    assert '"API_KEY": "***"' in told


def test_server_everything_progress_keeps_earlier_reports(clerk: LocalStack) -> None:
    counted = clerk.client.submit(
        "clerk", "everything__trigger-long-running-operation", {"duration": 0.2, "steps": 4}
    )
    assert counted.result(PATIENCE).status == "ok"

    progress = counted.progress()
    assert progress
    assert [report.done for report in (*progress.earlier, progress)] == [1, 2, 3, 4]


def test_server_filesystem_reads_text_and_images_but_refuses_outside(clerk: LocalStack, files: Path) -> None:
    notes = output(clerk, "files__read_text_file", path=str(files / "notes.txt"))
    assert notes == {"content": "Buy flour."}
    media = output(clerk, "files__read_media_file", path=str(files / "dot.png"))
    [image] = media["content"]
    assert (image["type"], base64.b64decode(image["data"])) == ("image", b"\x89PNG\r\n\x1a\n")
    outside = call(clerk, "files__read_text_file", path="/etc/hostname")
    assert outside.error
    assert outside.error.code == "E_TOOL"
    assert "outside allowed directories" in outside.error.message


def test_memory_server_keeps_created_entities(clerk: LocalStack) -> None:
    entity = {"name": "oven", "entityType": "thing", "observations": ["hot"]}
    output(clerk, "memory__create_entities", entities=[entity])

    assert output(clerk, "memory__search_nodes", query="oven")["entities"] == [entity]
    assert output(clerk, "memory__read_graph")["relations"] == []
