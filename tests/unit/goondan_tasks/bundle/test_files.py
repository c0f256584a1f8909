"""Which files belong to a bundle."""

import os
from pathlib import Path

import pytest

from goondan_tasks.bundle.files import MAX_BYTES, bundle_files, read_text
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, found_in, told, write


def names(folder: Path) -> list[str]:
    return [str(file.relative_to(folder)) for file in bundle_files(folder)]


def test_known_basenames_belong_to_the_bundle_wherever_they_stand(tmp_path: Path) -> None:
    write(tmp_path, {"deep/er/tools.yml": "a: 1", "agent.yaml": "a: 1", "goondan.yaml": "a: 1"})

    assert names(tmp_path) == ["goondan.yaml", "agent.yaml", "deep/er/tools.yml"]


def test_other_names_belong_to_it_if_they_declare_a_resource(tmp_path: Path) -> None:
    write(tmp_path, {"my-echo.yaml": TOOL, "docker-compose.yaml": "services: {}", "notes.yml": "a: ["})

    assert names(tmp_path) == ["my-echo.yaml"]


@pytest.mark.parametrize("folder", ["node_modules", "dist", ".git", ".venv", ".hidden"])
def test_folders_of_other_programs_are_skipped(tmp_path: Path, folder: str) -> None:
    write(tmp_path, {f"{folder}/goondan.yaml": TOOL, "sub/goondan.yaml": TOOL})

    assert names(tmp_path) == ["sub/goondan.yaml"]


def test_what_is_no_file_is_skipped(tmp_path: Path) -> None:
    write(tmp_path, {"tools.yaml/readme.txt": "a folder"})

    assert names(tmp_path) == []


def test_a_path_may_be_one_file_of_any_name(tmp_path: Path) -> None:
    write(tmp_path, {"my.bundle": TOOL + "---\n" + AGENT})

    assert found_in(tmp_path / "my.bundle") == []


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    file = tmp_path / "goondan.yaml"
    file.write_bytes(b"\xef\xbb\xbfa: 1")

    assert read_text(file) == ("a: 1", [])


def test_bytes_that_are_not_utf_8_are_refused_with_their_line(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_bytes(b"a: 1\nb: \xff\n")

    (finding,) = found_in(tmp_path)

    assert (finding.line, finding.code) == (2, "E_CONFIG_PARSE_ERROR")
    assert finding.suggestion == "Save it as UTF-8."


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_text("# " + "x" * MAX_BYTES)

    assert told(found_in(tmp_path)) == [(1, "E_CONFIG_FILE_TOO_LARGE", "")]


def test_a_file_of_exactly_the_limit_is_read(tmp_path: Path) -> None:
    (tmp_path / "goondan.yaml").write_text(TOOL + "#" * (MAX_BYTES - len(TOOL)))
    write(tmp_path, {})

    assert found_in(tmp_path) == []


@pytest.mark.parametrize("name", ["missing", "pipe"])
def test_a_path_without_a_readable_file_is_a_finding(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / "pipe")

    (finding,) = found_in(tmp_path / name)

    assert finding.code == "E_CONFIG_PARSE_ERROR"
    assert "cannot be read" in finding.message


def test_a_folder_without_resources_is_a_finding(tmp_path: Path) -> None:
    (finding,) = found_in(tmp_path)

    assert finding.message == "the bundle holds no resource"
