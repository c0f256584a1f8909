"""goondan init: what it writes, what it says, and what it leaves alone."""

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic.alias_generators import to_snake

from goondan_tasks.bundle import load_bundle
from tests.docs.pages import page
from tests.unit.goondan_tasks.cli.invoke import goondan

TOOL = {"goondan.yaml", "test_text.py", "tools/text.py", ".goondan/schema.json"}
KINDS = {
    (): TOOL,
    ("--tool",): TOOL,
    ("--agent",): {*TOOL, "agents.yaml", "agents/counter.py", "agents/editor.py", "test_agents.py"},
    ("--model=openai:gpt-5",): {*TOOL, "assistant.yaml"},
    ("--mcp",): {"goondan.yaml", "test_time.py", ".goondan/schema.json"},
}

EDITOR_LINE = "# yaml-language-server: $schema=.goondan/schema.json\n"


def files_in(folder: Path) -> set[str]:
    return {str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file()}


@pytest.mark.parametrize("options", KINDS, ids=" ".join)
def test_new_bundle_is_valid_and_has_test(options: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "a new place"
    made = goondan("init", str(folder), *options)

    assert made.exit_code == 0
    assert files_in(folder) == KINDS[options]
    checked = goondan("validate", "--strict", str(folder), "--json").document
    assert (checked["valid"], checked["findings"]) == (True, [])


# the others have the files of --tool, which init also writes without an option, and more
@pytest.mark.parametrize("options", [("--agent",), ("--model=openai:gpt-5",), ("--mcp",)], ids=" ".join)
def test_test_of_new_bundle_passes(options: tuple[str, ...], tmp_path: Path) -> None:
    goondan("init", str(tmp_path / "bundle"), *options)
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path / "bundle")],
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        env={**os.environ, "PATH": path},
        cwd=tmp_path,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_each_bundle_has_own_name_and_workspace(tmp_path: Path) -> None:
    names = []
    for folder, options in (("My Swarm!", ()), ("second", ()), ("third", ("--name", "@me/other"))):
        goondan("init", str(tmp_path / folder), *options)
        text = (tmp_path / folder / "goondan.yaml").read_text(encoding="utf-8")
        names.append(text.partition("metadata: { name: ")[2].partition(" }")[0])

    assert names == ["my-swarm", "second", "@me/other"]


@pytest.mark.parametrize("name", ["", "My Swarm", "-x", "a/b", "x" * 215, "name }\nkind: Tool"])
def test_disallowed_name_is_refused_writing_nothing(name: str, tmp_path: Path) -> None:
    refused = goondan("init", str(tmp_path / "new"), f"--name={name}")

    assert refused.exit_code == 2
    assert "is not a valid name. Use lower-case letters" in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_directory_without_usable_name_needs_name_option(tmp_path: Path) -> None:
    refused = goondan("init", str(tmp_path / "…"))

    assert refused.exit_code == 2
    assert "choose one with --name" in refused.stderr
    assert goondan("init", str(tmp_path / "…"), "--name", "dots").exit_code == 0


def test_init_prints_next_commands(tmp_path: Path) -> None:
    folder = tmp_path / "a new place"
    made = goondan("init", str(folder))

    assert made.stdout.splitlines() == [
        f"wrote {folder / name}"
        for name in ("goondan.yaml", "test_text.py", "tools/text.py", ".goondan/schema.json")
    ]
    assert made.stderr.splitlines() == [
        "Next:",
        f"  goondan dev '{folder}'",
        "In another terminal, after the export line that dev prints:",
        """  goondan call writer text__uppercase '{"text": "hello"}'""",
        "The test:",
        f"  python -m pytest '{folder}'",
    ]


def test_programs_get_files_and_next_commands(tmp_path: Path) -> None:
    document = goondan("init", str(tmp_path / "new"), "--mcp", "--json").document

    assert document["bundle"] == str(tmp_path / "new")
    assert {str(Path(file).relative_to(tmp_path / "new")) for file in document["files"]} == KINDS["--mcp",]
    assert [shlex.split(step)[:3] for step in document["next"]] == [
        ["pip", "install", "goondan-workers[mcp]"],
        ["goondan", "dev", str(tmp_path / "new")],
        ["goondan", "call", "clerk"],
        ["python", "-m", "pytest"],
    ]


@pytest.mark.parametrize(
    ("model", "spec", "key"),
    [
        ("anthropic:claude-x", {"provider": "anthropic", "model": "claude-x"}, ["ANTHROPIC_API_KEY=…"]),
        ("openai-chat:gpt-5", {"provider": "openai-chat", "model": "gpt-5"}, ["OPENAI_API_KEY=…"]),
        ("mistral:any", {"provider": "mistral", "model": "any"}, []),
        (
            "http://127.0.0.1:1/v1#qwen3: 'x' #2",
            {"provider": "openai-chat", "model": "qwen3: 'x' #2", "baseUrl": "http://127.0.0.1:1/v1"},
            [],
        ),
    ],
)
def test_agent_thinks_with_model_that_is_named(
    model: str, spec: dict[str, str], key: list[str], tmp_path: Path
) -> None:
    made = goondan("init", str(tmp_path / "new"), "--model", model, "--json").document

    bundle = load_bundle(tmp_path / "new")
    written = bundle.models["llm"].spec
    assert {name: getattr(written, to_snake(name)) for name in spec} == spec
    assert bundle.agents["assistant"].thinks
    assert [step.partition(" ")[2] for step in made["next"] if step.startswith("export")] == key
    assert "goondan chat assistant" in made["next"]


@pytest.mark.parametrize(
    "model", ["", "gpt-5", "openai:", "http://127.0.0.1:1/v1", "http://127.0.0.1:abc/v1"]
)
def test_invalid_model_name_is_refused_writing_nothing(model: str, tmp_path: Path) -> None:
    refused = goondan("init", str(tmp_path / "new"), "--model", model)

    assert refused.exit_code == 3
    assert "What to do: " in refused.stderr
    assert list(tmp_path.iterdir()) == []


def test_init_uses_current_directory_despite_other_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "README.md").write_text("mine", encoding="utf-8")
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools/mine.py").write_text("mine", encoding="utf-8")
    monkeypatch.chdir(tmp_path)

    assert goondan("init").exit_code == 0
    assert goondan("validate", "--json").document["valid"]
    assert (tmp_path / "tools/mine.py").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize("name", sorted(KINDS["--agent",]))
def test_file_that_is_there_is_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine", encoding="utf-8")

    refused = goondan("init", str(tmp_path), "--agent")

    assert refused.exit_code == 2
    assert f"{tmp_path / name} exists already; nothing was written" in refused.stderr
    assert files_in(tmp_path) == {name}
    assert (tmp_path / name).read_text(encoding="utf-8") == "mine"


def test_second_time_nothing_is_written(tmp_path: Path) -> None:
    goondan("init", str(tmp_path))
    (tmp_path / "tools/text.py").write_text("mine", encoding="utf-8")

    assert goondan("init", str(tmp_path)).exit_code == 2
    assert (tmp_path / "tools/text.py").read_text(encoding="utf-8") == "mine"


def test_two_kinds_at_once_are_usage_error(tmp_path: Path) -> None:
    refused = goondan("init", str(tmp_path / "new"), "--agent", "--mcp")

    assert (refused.exit_code, "choose only one of" in refused.stderr) == (2, True)


@pytest.mark.parametrize("blocked", ["file", "bundle/.goondan"])
def test_unwritable_place_is_error_without_partial_files(blocked: str, tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / blocked).touch()
    place = tmp_path / "file/bundle" if blocked == "file" else tmp_path / "bundle"

    refused = goondan("init", str(place), "--json")

    assert refused.exit_code == 3
    assert refused.document["error"]["code"].startswith("E_CONFIG")
    assert files_in(tmp_path) == {blocked}


def test_readme_shows_written_files_except_editor_lines(tmp_path: Path) -> None:
    goondan("init", str(tmp_path / "hello"), "--agent")
    blocks = {
        name: block.text
        for block in page("README.md").blocks()
        if (name := block.title) and name.startswith("hello/")
    }

    written = {name: (tmp_path / name).read_text(encoding="utf-8") for name in blocks}
    assert blocks == {name: text.replace(EDITOR_LINE, "") for name, text in written.items()}
    assert len(blocks) == 6


def test_each_document_names_schema_for_editors(tmp_path: Path) -> None:
    goondan("init", str(tmp_path), "--agent")

    documents = [
        document
        for file in sorted(tmp_path.glob("*.yaml"))
        for document in file.read_text(encoding="utf-8").split("---\n")
    ]
    assert len(documents) == 5
    assert all(document.startswith(EDITOR_LINE) for document in documents)
    assert json.loads((tmp_path / ".goondan/schema.json").read_text(encoding="utf-8"))["$schema"]
