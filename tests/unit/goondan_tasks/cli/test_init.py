"""``goondan init``."""

from pathlib import Path

import pytest

from tests.unit.goondan_tasks.cli.invoke import goondan


def test_the_new_bundle_is_valid_and_the_next_commands_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "a new place"
    made = goondan("init", str(folder))

    assert made.exit_code == 0
    assert f"goondan dev '{folder}'" in made.stderr
    assert goondan("validate", "--strict", str(folder), "--json").document == {"valid": True, "findings": []}


def test_programs_get_the_files_and_the_next_commands(tmp_path: Path) -> None:
    document = goondan("init", str(tmp_path), "--json").document

    assert document["files"] == [str(tmp_path / "goondan.yaml"), str(tmp_path / "tools" / "text.py")]
    assert document["next"][0] == f"goondan validate {tmp_path}"


def test_without_a_directory_it_is_this_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    assert goondan("init").exit_code == 0
    assert goondan("validate", "--json").document["valid"]


@pytest.mark.parametrize("name", ["goondan.yaml", "tools/text.py"])
def test_a_file_that_is_there_is_not_overwritten(name: str, tmp_path: Path) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("mine", encoding="utf-8")

    refused = goondan("init", str(tmp_path))

    assert refused.exit_code == 2
    assert [file.read_text(encoding="utf-8") for file in tmp_path.rglob("*") if file.is_file()] == ["mine"]


def test_a_place_that_cannot_be_written_is_a_configuration_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    refused = goondan("init", str(tmp_path / "file" / "bundle"), "--json")

    assert refused.exit_code == 3
    assert refused.document["error"]["code"].startswith("E_CONFIG")
