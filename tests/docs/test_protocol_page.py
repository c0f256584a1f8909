"""docs/protocol.md names every script with its keys and arguments, every key, and the fields of a record."""

import inspect
import re
from pathlib import Path

import pytest

from broker_config import keys
from broker_config.keys import Keys
from tests.docs.pages import ROOT, page

PROTOCOL = page("docs/protocol.md")
#: the key of a row of the table in the docstring of keys.py, and its type
_ROW = re.compile(r"^``([^`]+)`` +(\w+) ", re.MULTILINE)
_LISTS = re.compile(r"^ (KEYS|ARGV)  (?P<text>.*)$")
_FIELDS_READ = re.compile(
    r"redis\.p?call\('H(?:MGET|GET|DEL|EXISTS)', *(?:key|keys\[1\]|KEYS\[\w+\]),(.*?)\)", re.DOTALL
)
#: a script that takes the arguments of another one before its own says so
_BEFORE = re.compile(r"those of|after those")


def _scripts() -> list[Path]:
    found = [path for room in ("broker_config", "goondan_tasks") for path in (ROOT / room).rglob("*.lua")]
    return sorted(path.relative_to(ROOT) for path in found)


every_script = pytest.mark.parametrize("script", _scripts(), ids=str)


@every_script
def test_scripts_are_documented_with_keys_and_arguments(script: Path) -> None:
    section = _section(script)
    lists = _lists(script)

    assert f"`{script.name}`" in section
    if lists:
        [entry] = re.findall(
            rf"^- \*\*`{script.name}`\*\*(.*?)(?=^- |\Z|^#|\n\n)", section, re.DOTALL | re.MULTILINE
        )
        described = " ".join(entry.split())
        expected = " ".join(f"{name} `{text}`." for name, text in lists.items())
        assert described.startswith(expected)


@every_script
def test_script_reads_no_more_arguments_than_it_lists(script: Path) -> None:
    text = (ROOT / script).read_text("utf-8")
    for name, listed in _lists(script).items():
        if _BEFORE.search(listed):
            continue
        read = max(map(int, re.findall(rf"\b{name}\[(\d+)\]", text)), default=0)

        assert read <= _count(listed), f"{name} of {script}: {listed}"


def test_every_key_has_listed_type_and_lifetime() -> None:
    rows = {row[0].strip("`"): row[1:] for table in PROTOCOL.tables() for row in table if len(row) == 4}
    in_code = dict(_ROW.findall(inspect.getdoc(keys) or ""))

    assert {name: cells[0] for name, cells in rows.items() if name in in_code} == in_code
    assert all(cells[2] for cells in rows.values() if cells[0] != "channel")
    kinds = {name.partition("<")[0].rstrip(":") for name in rows}
    assert kinds - {"fetched"} == _kinds()  # that one is made by a script alone


def test_record_fields_read_by_scripts_are_explained() -> None:
    listed = {name.strip("`, ") for cell in PROTOCOL.first_cells() for name in cell.split(",")}
    read: set[str] = set()
    for script in _scripts():
        if script.parent.parent.name == "ledger":
            for names in _FIELDS_READ.findall((ROOT / script).read_text("utf-8")):
                read.update(re.findall(r"'(\w+)'", names))

    assert len(read) > 30
    assert read - listed == set()


def _section(script: Path) -> str:
    """Return the part of the page about the folder of a script."""
    [part] = re.findall(
        rf"^### [^\n]*\(`{script.parent}`\)\n(.*?)(?=^### [^\n]*\(`|^## |\Z)",
        PROTOCOL.text,
        re.DOTALL | re.MULTILINE,
    )
    return str(part)


def _lists(script: Path) -> dict[str, str]:
    """Return what the header of a script says about KEYS and ARGV."""
    found: dict[str, str] = {}
    name = ""
    for line in (ROOT / script).read_text("utf-8").splitlines():
        if not line.startswith("--"):
            break
        match = _LISTS.match(line[2:])
        if match:
            name = match[1]
            found[name] = match["text"]
        elif name and line.startswith("--   "):
            found[name] += f" {line[2:].strip()}"
        else:
            name = ""
    return {name: text.replace("`", "") for name, text in found.items()}


def _count(listed: str) -> int:
    """Return how many arguments a list names."""
    bare = re.sub(r"(?<!\w)'[^']*'(?!\w)", "", re.sub(r"\([^)]*\)", "", listed))
    return len(re.split(r"[,;]| and (?=[a-z])", bare))


def _kinds() -> set[str]:
    """Return every kind of key: what precedes the names that it is made of."""
    found = set()
    for name, member in vars(Keys).items():
        if name.startswith("_") or name in {"namespace", "prefix", "celery_result"}:
            continue
        if isinstance(member, property):
            key = getattr(Keys("ns"), name)
        else:
            count = len(inspect.signature(getattr(Keys, name)).parameters) - 1
            key = getattr(Keys("ns"), name)(*["X"] * count)
        found.add(re.split(r":X\b|:[0-9a-f]{64}", key.removeprefix("ns:"))[0])
    return found
