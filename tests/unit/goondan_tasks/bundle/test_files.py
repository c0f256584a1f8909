"""Which files belong to a bundle."""

import codecs
import os
from pathlib import Path

import pytest

from goondan_tasks.bundle.inventory import MAX_BYTES, bundle_files, read_inventory, read_text
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, found_in, told, write


def names(folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in bundle_files(folder)]


def test_known_basenames_belong_to_bundle_wherever_they_stand(tmp_path: Path) -> None:
    write(tmp_path, {"deep/er/tools.yml": "a: 1", "agent.yaml": "a: 1", "goondan.yaml": "a: 1"})

    assert names(tmp_path) == ["goondan.yaml", "agent.yaml", "deep/er/tools.yml"]


def test_any_file_declaring_resource_belongs_to_bundle(tmp_path: Path) -> None:
    write(tmp_path, {"my-echo.yaml": TOOL, "docker-compose.yaml": "services: {}", "notes.yml": "a: ["})

    assert names(tmp_path) == ["my-echo.yaml"]


ONE_LINE = (
    "{apiVersion: goondan.ai/v1, kind: Tool, metadata: {name: echo}, "
    "spec: {entry: ./echo.py, exports: [{name: run, parameters: {type: object}}]}}"
)


@pytest.mark.parametrize(
    "text",
    [
        ONE_LINE,
        f"--- {ONE_LINE}",
        "\ufeff" + TOOL,
        TOOL.replace("apiVersion: ", "apiVersion: &version "),
        TOOL.replace("apiVersion: ", "apiVersion: !!str "),
        TOOL.replace("apiVersion: ", "&key apiVersion: "),
        TOOL.replace("apiVersion: ", "? apiVersion\n: "),
        TOOL.replace("apiVersion: ", "apiVersion:\n  "),
        TOOL.replace("apiVersion: ", "apiVersion: >-\n  "),
        TOOL.replace("\n", "\r"),
        TOOL.replace("\n", "\r\n"),
        f"notes: &version goondan.ai/v1\n---\n{TOOL}",
    ],
)
def test_resource_is_read_however_its_version_is_written(tmp_path: Path, text: str) -> None:
    write(tmp_path, {})
    (tmp_path / "my-echo.YAML").write_bytes(text.encode())

    inventory, _ = read_inventory(tmp_path)

    assert [item.label for item in inventory.declarations if item.resource] == ["Tool/echo"]


@pytest.mark.parametrize(
    ("data", "line", "part"),
    [
        (codecs.BOM_UTF16_LE + TOOL.encode("utf-16-le"), 1, "the file is UTF-16 or UTF-32"),
        (codecs.BOM_UTF16_BE + TOOL.encode("utf-16-be"), 1, "the file is UTF-16 or UTF-32"),
        (TOOL.encode("utf-16-le"), 1, "the file is UTF-16 or UTF-32"),
        (TOOL.encode("utf-16-be"), 1, "the file is UTF-16 or UTF-32"),
        (codecs.BOM_UTF32_BE + TOOL.encode("utf-32-be"), 1, "the file is UTF-16 or UTF-32"),
        (f"# caf\xe9\n{TOOL}".encode("latin-1"), 1, "the file is not UTF-8"),
        (f"{TOOL}# \0\n".encode(), 8, "'\\x00' is not allowed in YAML"),
        (TOOL.replace("kind: ", "kind:\n\t").encode(), 3, "cannot start any token"),
        (b"{apiVersion: goondan.ai/v1, kind: Tool", 1, "did not find expected"),
        (f"kind: Tool\n{TOOL}".encode(), 3, "duplicate key 'kind'"),
        (f"{TOOL}x: {'[' * 100_000}".encode(), 8, "nested deeper than 64 levels"),
        (f"{TOOL}x: &a [{'y,' * 200}]\nz: [{'*a,' * 200}]".encode(), 9, "the aliases repeat too much"),
        (b"- apiVersion: goondan.ai/v1\n  kind: Tool\n", 1, "an array of 1 item is not a resource"),
        (TOOL.replace("apiVersion", "api_version").encode(), 1, "'apiVersion' is missing"),
    ],
)
def test_unreadable_file_declaring_resource_is_finding(
    tmp_path: Path, data: bytes, line: int, part: str
) -> None:
    write(tmp_path, {})
    (tmp_path / "my-echo.yaml").write_bytes(data)

    finding = found_in(tmp_path)[0]

    assert (finding.level, finding.line) == ("error", line)
    assert part in finding.message


@pytest.mark.parametrize(
    "text",
    [
        "# made from apiVersion: goondan.ai/v1\nservices: {}\n",
        "# made from apiVersion: goondan.ai/v1\nservices: {\n",
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  goondan.yaml: |\n    apiVersion: goondan.ai/v1\n",
        "image: goondan.ai/worker:1\n",
    ],
)
def test_file_merely_mentioning_our_version_is_skipped(tmp_path: Path, text: str) -> None:
    write(tmp_path, {"other.yaml": text})

    assert names(tmp_path) == []


@pytest.mark.parametrize("folder", ["node_modules", "dist", ".git", ".venv", ".hidden"])
def test_folders_of_other_programs_are_skipped(tmp_path: Path, folder: str) -> None:
    write(tmp_path, {f"{folder}/goondan.yaml": TOOL, "sub/goondan.yaml": TOOL})

    assert names(tmp_path) == ["sub/goondan.yaml"]


def test_folder_named_like_yaml_file_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, {"tools.yaml/readme.txt": "a folder"})

    assert names(tmp_path) == []


def test_path_may_be_one_file_of_any_name(tmp_path: Path) -> None:
    write(tmp_path, {"my.bundle": TOOL + "---\n" + AGENT})

    assert found_in(tmp_path / "my.bundle") == []


def test_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    file = tmp_path / "goondan.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1")

    assert read_text(file) == ("a: 1", [])


def test_non_utf_8_bytes_are_refused_with_line(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_bytes(b"a: 1\nb: \xff\n")

    (finding,) = found_in(tmp_path)

    assert (finding.line, finding.code) == (2, "E_CONFIG_PARSE_ERROR")
    assert finding.suggestion == "Save it as UTF-8."


def test_file_beyond_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_text("# " + "x" * MAX_BYTES)

    assert told(found_in(tmp_path)) == [(1, "E_CONFIG_FILE_TOO_LARGE", "")]


def test_file_of_exactly_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_text(TOOL + "#" * (MAX_BYTES - len(TOOL)))
    write(tmp_path, {})

    assert found_in(tmp_path) == []


@pytest.mark.parametrize("name", ["missing", "pipe"])
def test_path_without_readable_file_is_finding(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")

    (finding,) = found_in(tmp_path / name)

    assert finding.code == "E_CONFIG_PARSE_ERROR"
    assert "cannot be read" in finding.message


def test_folder_without_resources_is_finding(tmp_path: Path) -> None:
    (finding,) = found_in(tmp_path)

    assert finding.message == "the bundle has no resources"
