"""Loading the entries of a worker's agents."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from goondan_tasks.bundle import load_bundle
from goondan_tasks.entry import EntryError
from tests.unit.goondan_tasks.bundle.writing import write
from workers.agent_entries import load_agent_entries

AGENTS = """
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { entry: ./coder.py }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: outsider }
"""


def load(tmp_path: Path, text: str, agents: Iterable[str] = ("coder", "outsider")) -> list[str]:
    bundle = load_bundle(write(tmp_path, {"goondan.yaml": AGENTS, "coder.py": text}))
    return list(load_agent_entries(bundle, agents))


@pytest.mark.parametrize(
    "text",
    [
        "def handle(ctx, event): ...\n",
        "async def handle(ctx, event, *, more=None): ...\n",
        "class Brain:\n    def __call__(self, ctx, event): ...\nhandle = Brain()\n",
    ],
)
def test_an_agent_with_an_entry_has_its_handle_and_one_without_has_none(tmp_path: Path, text: str) -> None:
    assert load(tmp_path, text) == ["coder"]


def test_the_entry_of_an_agent_that_is_not_served_is_not_imported(tmp_path: Path) -> None:
    assert load(tmp_path, "raise RuntimeError\n", agents=["outsider"]) == []


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("handlers = {}\n", 1, "the file does not define 'handle'"),
        ("handle = 3\n", 1, "'handle' must be a function, not int"),
        ("x = 1\ndef handle(event): ...\n", 2, "'handle' cannot be called with (ctx, event)"),
        ("def handle(:\n", 1, "invalid syntax"),
        ("x = 1\n\nraise RuntimeError('no\\nway')\n", 3, "importing the file raises RuntimeError: no"),
        ("import sys\nsys.exit(3)\n", 2, "importing the file raises SystemExit(3)"),
        ("import no_such_module_at_all\n", 1, "importing the file raises ModuleNotFoundError: No module"),
        ("class Odd(Exception): ...\nraise Odd\n", 2, "importing the file raises Odd"),
    ],
)
def test_an_entry_that_cannot_be_used_is_refused_with_its_file_and_line(
    tmp_path: Path, text: str, line: int, reason: str
) -> None:
    with pytest.raises(EntryError) as refused:
        load(tmp_path, text)

    assert refused.value.message.startswith(f"{tmp_path / 'coder.py'}:{line}: {reason}")
    assert (refused.value.code, refused.value.line) == ("E_CONFIG_SCHEMA_INVALID", line)


def test_an_interruption_while_a_file_is_imported_stays_one(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        load(tmp_path, "raise KeyboardInterrupt\n")


def test_an_entry_whose_import_does_not_end_is_refused_after_a_while(tmp_path: Path) -> None:
    go = tmp_path / "go"
    text = f"import pathlib, time\nwhile not pathlib.Path({str(go)!r}).exists():\n    time.sleep(0.01)\n"
    bundle = load_bundle(write(tmp_path, {"goondan.yaml": AGENTS, "coder.py": text}))
    with pytest.raises(EntryError, match=r"coder.py:1: importing the file does not end within 0.1 s"):
        load_agent_entries(bundle, ["coder"], seconds=0.1)
    go.touch()
