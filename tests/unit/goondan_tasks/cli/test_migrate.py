"""goondan migrate."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.bundle.yaml import parse_documents
from goondan_tasks.cli.bundles import one_text
from tests.unit.goondan_tasks.cli.invoke import goondan

TOOL = """\
apiVersion: agents.example.io/v1alpha1
kind: Tool
metadata: { name: clock }
spec:
  runtime: python # as ever
  entry: ./clock.py
  exports:
    - { name: now, parameters: { type: object } }
"""
MODEL = (
    "apiVersion: goondan.ai/v1\nkind: Model\nmetadata: { name: gpt }\nspec: { provider: openai, model: y }\n"
)
MIGRATED = TOOL.replace("agents.example.io/v1alpha1", "goondan.ai/v1").replace(
    "  runtime: python # as ever\n", ""
)


@pytest.fixture
def older(tmp_path: Path) -> Path:
    """Write a bundle with a Tool of the older version in a file of its own."""
    (tmp_path / "goondan.yaml").write_text(MODEL, encoding="utf-8")
    (tmp_path / "tools.yaml").write_text(TOOL, encoding="utf-8")
    (tmp_path / "tools.yaml").chmod(0o640)
    (tmp_path / "clock.py").write_text("handlers = {'now': lambda ctx, input: 1}\n", encoding="utf-8")
    return tmp_path


def test_migration_prints_one_file_and_writes_nothing(older: Path, tmp_path: Path) -> None:
    shown = goondan("migrate", str(older))

    assert (shown.exit_code, (older / "tools.yaml").read_text(encoding="utf-8")) == (0, TOOL)
    assert "the model sees 'clock__now' instead of 'now'" in shown.stderr
    assert f"{older}: 1 of 2 files to be changed, 0 errors, 1 warning" in shown.stderr
    assert MIGRATED in shown.stdout
    (older / "tools.yaml").unlink()
    (older / "goondan.yaml").write_text(shown.stdout, encoding="utf-8")
    assert inspect_bundle(older)[1] == []


def test_changed_files_are_written_in_place(older: Path) -> None:
    written = goondan("migrate", str(older), "--write")

    assert (written.exit_code, written.stdout) == (0, "")
    assert "1 of 2 files written" in written.stderr
    assert (older / "tools.yaml").read_text(encoding="utf-8") == MIGRATED
    assert (older / "tools.yaml").stat().st_mode & 0o777 == 0o640
    assert sorted(file.name for file in older.iterdir()) == ["clock.py", "goondan.yaml", "tools.yaml"]
    assert "0 of 2 files written" in goondan("migrate", str(older), "--write").stderr


def test_program_gets_one_document(older: Path) -> None:
    asked = goondan("migrate", str(older / "tools.yaml"), "--json")

    assert asked.document["files"] == [{"file": str(older / "tools.yaml"), "changed": True, "text": MIGRATED}]
    assert asked.document["written"] is False
    assert [finding["path"] for finding in asked.document["findings"]] == ["spec.exports[0].name"]


def test_unmigrated_part_exits_with_3_writing_others(older: Path) -> None:
    auth = TOOL.replace("runtime:", "auth: { oauthAppRef: OAuthApp/a }\n  runtime:")
    old_model = MODEL.replace("goondan.ai/v1", "agents.example.io/v1alpha1")
    (older / "tools.yaml").write_text(f"{auth}---\n{old_model.replace('gpt', 'other')}", encoding="utf-8")

    done = goondan("migrate", str(older), "--write")

    assert done.exit_code == 3
    assert "not migrated: the current version has no 'auth'" in done.stderr
    assert (older / "tools.yaml").read_text(encoding="utf-8") == f"{auth}---\n{MODEL.replace('gpt', 'other')}"


@pytest.fixture
def two_older(older: Path) -> Path:
    """Write another older Tool into the file that is written first."""
    other = TOOL.replace("clock }", "other }").replace("now", "then")
    (older / "goondan.yaml").write_text(other, encoding="utf-8")
    return older


def test_migration_writes_no_file_if_preparing_any_fails(
    two_older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = texts(two_older)

    def refuse(source: Path, target: Path) -> None:
        if source.name == "tools.yaml":
            raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("shutil.copymode", refuse)

    failed = goondan("migrate", str(two_older), "--write")

    assert failed.exit_code == 3
    assert "tools.yaml cannot be written: Permission denied; nothing has been changed" in failed.stderr
    assert texts(two_older) == before


def test_written_files_are_restored_after_failed_write(
    two_older: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = texts(two_older)
    refuse_to_replace(monkeypatch, [two_older / "tools.yaml"])

    failed = goondan("migrate", str(two_older), "--write")

    assert failed.exit_code == 3
    assert "tools.yaml cannot be written: Device or resource busy; nothing has been changed" in failed.stderr
    assert texts(two_older) == before


def test_unrestorable_old_text_is_kept_and_reported(two_older: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = texts(two_older)
    first = two_older / "goondan.yaml"
    refuse_to_replace(monkeypatch, [two_older / "tools.yaml"], once=first)

    failed = goondan("migrate", str(two_older), "--write")

    [kept] = texts(two_older).keys() - before.keys()
    assert (failed.exit_code, kept.read_bytes()) == (3, before[first])
    assert "another file cannot be, and it cannot be restored" in failed.stderr
    assert kept.name in "".join(failed.stderr.split())


def test_read_only_file_is_not_replaced(two_older: Path) -> None:
    before = texts(two_older)
    (two_older / "tools.yaml").chmod(0o444)

    failed = goondan("migrate", str(two_older), "--write")

    assert failed.exit_code == 3
    assert "tools.yaml cannot be written: it is read-only; nothing has been changed" in failed.stderr
    assert texts(two_older) == before


def test_byte_order_mark_stays(older: Path) -> None:
    (older / "tools.yaml").write_bytes(b"\xef\xbb\xbf" + TOOL.encode())

    assert goondan("migrate", str(older), "--write").exit_code == 0

    assert (older / "tools.yaml").read_bytes() == b"\xef\xbb\xbf" + MIGRATED.encode()


def texts(folder: Path) -> dict[Path, bytes]:
    """Return what all files of a folder hold."""
    return {file: file.read_bytes() for file in folder.iterdir()}


def refuse_to_replace(
    monkeypatch: pytest.MonkeyPatch, files: Collection[Path], once: Path | None = None
) -> None:
    """Have no file take the place of these; that of ``once`` is taken one time."""
    replace = Path.replace
    taken: list[Path] = []

    def replaced(source: Path, target: Path) -> Path:
        if target in files or target in taken:
            raise OSError(16, "Device or resource busy")
        taken.extend([target] if target == once else [])
        return replace(source, target)

    monkeypatch.setattr(Path, "replace", replaced)


@pytest.mark.parametrize("text", ["a: [", "", "- a\n"])
def test_invalid_or_missing_bundle_gives_exit_code_three(tmp_path: Path, text: str) -> None:
    (tmp_path / "goondan.yaml").write_text(text, encoding="utf-8")

    assert goondan("migrate", str(tmp_path)).exit_code == 3
    assert goondan("migrate", str(tmp_path / "gone.yaml")).exit_code == 3


TEXTS = [
    "a: 1",
    "a: |+\n  kept\n\n\n",
    "a: >+\n  kept\n\n# after\n\n",
    "--- # first\na: 1\n---\nb: 2\n...\n",
    "# about\n\n%YAML 1.1\n---\na: 1\n...\n%YAML 1.1\n---\nb: 2\n",
    "%TAG ! tag:yaml.org,2002:\r\n---\r\na: !str 1\r\n",
    "\r\n  # only a comment\r\n",
    "---\n",
    "",
    "---a: 1\n",
    "'%': 1\n",
]


def data(text: str) -> list[Any]:
    """Return the data of the documents in a text, which must be YAML."""
    documents, faults = parse_documents(text, "")
    assert faults == []
    return [document.data for document in documents]


@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4))
def test_joined_text_has_data_of_all_parts(texts: list[str]) -> None:
    joined = one_text({Path(f"{number}.yaml"): text for number, text in enumerate(texts)})

    assert data(joined) == [one for text in texts for one in data(text)]
    assert all(text in joined for text in texts)


@pytest.mark.parametrize("name", ["a\nb: 1\n.yaml", "a\x00.yaml", "a\u2028b: 1"])
def test_name_of_file_is_nothing_but_comment(name: str) -> None:
    assert data(one_text({Path(name): "a: 1\n", Path("b.yaml"): "b: 2\n"})) == [{"a": 1}, {"b": 2}]
