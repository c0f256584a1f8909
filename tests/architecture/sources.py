"""The source files of the project, parsed."""

import ast
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker_config", "goondan_tasks", "workers")

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file: its place relative to the root, its text and its tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """The name under which the file is imported."""
        parts = self.path.with_suffix("").parts
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def python_sources() -> tuple[Source, ...]:
    """Return every Python file of the three packages."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    return tuple(_parse(file) for file in files)


def _parse(file: Path) -> Source:
    text = file.read_text(encoding="utf-8")
    return Source(path=file.relative_to(ROOT), text=text, tree=ast.parse(text))


def functions(tree: ast.Module) -> list[FunctionNode]:
    """Return every function and method in ``tree``."""
    return [node for node in ast.walk(tree) if isinstance(node, FunctionNode)]


def lines_of(function: FunctionNode) -> int:
    """Count the lines of a function without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    if not body:
        return 1
    head = function.body[0].lineno - function.lineno
    return head + (function.end_lineno or function.lineno) - body[0].lineno + 1


def broad_handlers(tree: ast.Module) -> list[ast.ExceptHandler]:
    """Return the handlers that catch everything: bare, or with ``Exception`` or ``BaseException``."""
    return [node for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and _is_broad(node.type)]


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(isinstance(name, ast.Name) and name.id in {"Exception", "BaseException"} for name in names)
