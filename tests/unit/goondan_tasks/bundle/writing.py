"""Bundles for tests: files written into a folder, and what is found in them."""

from collections.abc import Mapping
from pathlib import Path

from goondan_tasks.bundle import Finding, inspect_bundle

HANDLERS = 'def run(ctx, input):\n    return input\n\n\nhandlers = {"run": run}\n'
TOOL = """\
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: echo, labels: { tier: base } }
spec:
  entry: ./echo.py
  exports:
    - { name: run, description: Echoes., parameters: { type: object } }
"""
AGENT = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { tools: ["Tool/echo"] }
"""


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """Write ``files`` by their paths in ``folder``, with an ``echo.py`` if there is none."""
    for name, text in {"echo.py": HANDLERS, **files}.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    return folder


def found_in(folder: Path, *, import_entries: bool = False) -> list[Finding]:
    """Return every finding of a bundle."""
    return inspect_bundle(folder, import_entries=import_entries)[1]


def told(findings: list[Finding]) -> list[tuple[int, str, str]]:
    """Return what tests compare of findings: line, code and path."""
    return [(finding.line, finding.code, finding.path) for finding in findings]
