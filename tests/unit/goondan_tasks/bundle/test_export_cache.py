"""What typed entries have told at an earlier load, and when it does not count."""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from goondan_tasks.authoring.entry import Entry, ProbeRecord
from goondan_tasks.bundle import export_cache, inspect_bundle, load_bundle
from goondan_tasks.bundle.entries import import_entries
from goondan_tasks.bundle.export_cache import KEPT_SECONDS, ExportCache

TOOL = """\
import json
from pathlib import Path

from goondan_tasks.tool_api import tool

from . import words

here = Path(__file__).parent
limit = json.loads((here / "limit.json").read_text()) if (here / "limit.json").exists() else 1


@tool
def count(text: str, limit: int = limit) -> int:
    return len(text)


count.__goondan_tool__.export["description"] = words.TEXT
"""
BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: text }
spec: { entry: ./count.py, exports: auto }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: helper }
spec: { tools: [Tool/text] }
"""


class Imports:
    """Counts the entries that are imported: in a child as a load does, or not really."""

    def __init__(self, *, are_real: bool = False) -> None:
        self.count = 0
        self._are_real = are_real

    def __call__(self, files: Sequence[Path]) -> list[ProbeRecord]:
        self.count += len(files)
        if self._are_real:
            return import_entries([Entry("tool", file) for file in files])
        return [ProbeRecord(files=(str(file), str(file.with_name("words.py")))) for file in files]


@pytest.fixture
def entry(tmp_path: Path) -> Path:
    """Write a bundle of one Tool, whose description stands in a sibling."""
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle/goondan.yaml").write_text(BUNDLE, encoding="utf-8")
    (tmp_path / "bundle/words.py").write_text("TEXT = 'Counts.'\n", encoding="utf-8")
    (tmp_path / "bundle/count.py").write_text(TOOL, encoding="utf-8")
    return tmp_path / "bundle/count.py"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ExportCache:
    """Make a cache that keeps records of files however new they are."""
    monkeypatch.setattr(export_cache, "SETTLED_SECONDS", -3600.0)
    return ExportCache(tmp_path / "cache/exports")


def kept(cache: ExportCache) -> Path:
    [file] = cache.folder.glob("*.json")
    return file


def test_unchanged_entry_is_not_imported_again(entry: Path, cache: ExportCache) -> None:
    imports = Imports(are_real=True)

    first, again = cache.records([entry], imports), cache.records([entry], imports)

    assert imports.count == 1
    assert again[0].exports == first[0].exports
    assert again[0].exports["count"]["description"] == "Counts."
    assert (kept(cache).stat().st_mode & 0o777, cache.folder.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize(
    ("name", "content"),
    [("words.py", "TEXT = 'Told.'\n"), ("limit.json", "7"), ("count.py", TOOL + "# longer\n")],
)
def test_any_file_that_was_read_counts(name: str, content: str, entry: Path, cache: ExportCache) -> None:
    imports = Imports(are_real=True)
    (entry.parent / "limit.json").write_text("3", encoding="utf-8")
    cache.records([entry], imports)
    (entry.parent / name).write_text(content, encoding="utf-8")
    cache.records([entry], imports)
    (entry.parent / "limit.json").unlink()

    cache.records([entry], imports)
    cache.records([entry], imports)

    assert imports.count == 3


def test_module_elsewhere_counts_too(
    entry: Path, cache: ExportCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "library"
    library.mkdir()
    (library / "texts_of_others.py").write_text("TEXT = 'One.'\n", encoding="utf-8")
    (entry.parent / "words.py").write_text("from texts_of_others import TEXT\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(library))
    imports = Imports(are_real=True)
    cache.records([entry], imports)
    (library / "texts_of_others.py").write_text("TEXT = 'Two.'\n", encoding="utf-8")

    [record] = cache.records([entry], imports)

    assert (imports.count, record.exports["count"]["description"]) == (2, "Two.")


def test_change_keeping_size_and_mtime_is_noticed(entry: Path, cache: ExportCache) -> None:
    imports = Imports()
    words = entry.parent / "words.py"
    cache.records([entry], imports)
    before = words.stat()
    words.write_text("TEXT = 'Number.'\n", encoding="utf-8")
    os.utime(words, ns=(before.st_atime_ns, before.st_mtime_ns))

    cache.records([entry], imports)

    assert (words.stat().st_size, words.stat().st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert imports.count == 2


def damage(place: Path) -> None:
    place.write_bytes(place.read_bytes()[:-20])


def let_others_write(place: Path) -> None:
    place.chmod(0o620)


def link(place: Path) -> None:
    place.rename(place.with_suffix(".real"))
    place.symlink_to(place.with_suffix(".real"))


def block(place: Path) -> None:
    place.unlink()
    os.mkfifo(place)


def expire(place: Path) -> None:
    long_ago = time.time() - KEPT_SECONDS - 60
    os.utime(place, (long_ago, long_ago))


@pytest.mark.parametrize("spoil", [damage, let_others_write, link, block, expire])
def test_record_that_cannot_be_trusted_is_replaced(
    spoil: Callable[[Path], None], entry: Path, cache: ExportCache
) -> None:
    imports = Imports()
    cache.records([entry], imports)
    spoil(kept(cache))

    counts = []
    for _ in range(2):
        cache.records([entry], imports)
        counts.append(imports.count)

    assert counts == [2, 2]


def test_another_user_s_record_is_not_trusted(
    entry: Path, cache: ExportCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = Imports()
    cache.records([entry], imports)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)

    cache.records([entry], imports)

    assert imports.count == 2


def test_file_changed_just_now_is_not_cached(entry: Path, tmp_path: Path) -> None:
    imports, cache = Imports(), ExportCache(tmp_path / "cache")

    cache.records([entry], imports)
    cache.records([entry], imports)

    assert imports.count == 2


def test_failed_import_is_not_kept(entry: Path, cache: ExportCache) -> None:
    entry.write_text("raise RuntimeError('no')\n", encoding="utf-8")

    [record] = cache.records([entry], Imports(are_real=True))

    assert record.problem == "importing the file raises RuntimeError: no"
    assert list(cache.folder.glob("*")) == []


def test_records_of_files_no_longer_loaded_are_removed(entry: Path, cache: ExportCache) -> None:
    cache.folder.mkdir(parents=True)
    old = cache.folder / "old.json"
    old.touch()
    expire(old)

    cache.records([entry], Imports())

    assert kept(cache) != old


def test_place_that_cannot_be_written_only_costs_time(entry: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    [record] = ExportCache(tmp_path / "file" / "cache").records([entry], Imports(are_real=True))

    assert record.exports["count"]["name"] == "count"


def test_paths_not_in_utf_8_are_not_kept(tmp_path: Path, cache: ExportCache) -> None:
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9"))
    folder.mkdir()
    (folder / "plain.py").write_text(
        "from goondan_tasks.tool_api import tool\n\n@tool\ndef one(): ...\n", encoding="utf-8"
    )

    [record] = cache.records([folder / "plain.py"], Imports(are_real=True))

    assert (record.problem, list(record.exports), record.files) == (None, ["one"], ())


def test_load_uses_cache_but_check_imports(
    entry: Path, cache: ExportCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOONDAN_CACHE_DIR", str(cache.folder.parent))
    load_bundle(entry.parent)
    document = json.loads(kept(cache).read_text(encoding="utf-8"))
    document["record"]["exports"]["count"]["description"] = "Kept."
    kept(cache).write_text(json.dumps(document), encoding="utf-8")

    def description(tools: object) -> str | None:
        assert tools is not None
        return tools.bound_tools("helper")["text__count"].export.description  # type: ignore[attr-defined, no-any-return]

    assert description(load_bundle(entry.parent)) == "Kept."
    assert description(inspect_bundle(entry.parent)[0]) == "Counts."


def test_wrong_settings_do_not_matter_to_load(entry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_LEASE_SECONDS", "soon")

    assert "text__count" in load_bundle(entry.parent).all_tools()


def test_another_interpreter_has_records_of_its_own(
    entry: Path, cache: ExportCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    imports = Imports()
    cache.records([entry], imports)
    monkeypatch.setattr(sys, "executable", "/usr/bin/another-python")

    cache.records([entry], imports)

    assert imports.count == 2
