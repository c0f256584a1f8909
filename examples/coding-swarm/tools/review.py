"""The reviewer's tool: long lines and missing docstrings, found with :mod:`ast`."""

import ast
import asyncio
from collections.abc import Iterator
from pathlib import Path, PurePath

from goondan_tasks.errors import PathOutsideWorkdirError
from goondan_tasks.tool_api import JsonObject, ToolContext

_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


async def style(ctx: ToolContext, arguments: JsonObject) -> JsonObject:
    """Look at every file that ``glob`` matches, inside the workdir only."""
    pattern = PurePath(arguments.get("glob", "**/*.py"))
    if pattern.is_absolute() or ".." in pattern.parts:
        raise PathOutsideWorkdirError
    root = ctx.workdir.resolve()
    inside = (path for path in ctx.workdir.glob(str(pattern)) if path.resolve().is_relative_to(root))
    paths = sorted(path for path in inside if path.is_file())
    rules = arguments.get("rules", ["docstring", "line-length"])
    limit = arguments.get("maxLineLength", 100)
    reviews = await asyncio.gather(*(asyncio.to_thread(_review, path, rules, limit) for path in paths))
    findings = [
        {"path": str(path.relative_to(ctx.workdir)), **finding}
        for path, review in zip(paths, reviews, strict=True)
        for finding in review
    ]
    return {"files": len(paths), "count": len(findings), "findings": findings}


def _review(path: Path, rules: list[str], limit: int) -> list[JsonObject]:
    source = path.read_text(encoding="utf-8", errors="replace")
    findings: list[JsonObject] = []
    if "line-length" in rules:
        findings += _long_lines(source, limit)
    if "docstring" in rules:
        findings += _missing_docstrings(source)
    return sorted(findings, key=lambda finding: finding["line"])


def _long_lines(source: str, limit: int) -> Iterator[JsonObject]:
    for number, line in enumerate(source.splitlines(), start=1):
        if len(line) > limit:
            yield {"line": number, "rule": "line-length", "message": f"{len(line)} characters"}


def _missing_docstrings(source: str) -> Iterator[JsonObject]:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError) as error:
        yield {"line": getattr(error, "lineno", None) or 1, "rule": "syntax", "message": str(error)}
        return
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and not ast.get_docstring(node):
            name = getattr(node, "name", "the module")
            yield {"line": getattr(node, "lineno", 1), "rule": "docstring", "message": f"{name} has none"}


handlers = {"style": style}
