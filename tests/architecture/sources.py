"""The source files of the project, parsed."""

import ast
import gc
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("broker_config", "goondan_tasks", "goondan_web", "workers")

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
    """Return every Python file of the packages; the search for garbage would take most of the time."""
    files = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
    gc.disable()
    try:
        return tuple(_parse(file) for file in files)
    finally:
        gc.enable()


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


def broad_catches(tree: ast.Module) -> list[str]:
    """Return the functions that may keep any error from being raised, in whatever spelling.

    That is a bare handler, or one of ``Exception`` or ``BaseException``, ``contextlib.suppress`` of those,
    and an ``__exit__`` or ``__aexit__`` that may return something true.
    """
    return [name for name, node in _placed(tree) if _is_broad_catch(node)]


def users(tree: ast.Module, names: Collection[str]) -> list[str]:
    """Return the functions in which one of ``names`` is called, or handed on."""
    return [
        place
        for place, node in _placed(tree)
        if isinstance(node, ast.Name | ast.Attribute) and _last_name(node) in names
    ]


def _placed(node: ast.AST, place: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield what is in a tree, each with the name of the function or class around it."""
    for child in ast.iter_child_nodes(node):
        inside = place
        if isinstance(child, FunctionNode | ast.ClassDef):
            inside = f"{place}.{child.name}".lstrip(".")
        yield inside, child
        yield from _placed(child, inside)


def _is_broad_catch(node: ast.AST) -> bool:
    if isinstance(node, ast.ExceptHandler):
        return _is_broad(node.type)
    if isinstance(node, ast.Call) and _last_name(node.func) == "suppress":
        return any(_is_broad(caught) for caught in node.args)
    if isinstance(node, FunctionNode) and node.name in _EXITS:
        returned = [inner.value for inner in ast.walk(node) if isinstance(inner, ast.Return)]
        return not all(value is None or _is_falsy(value) for value in returned)
    return isinstance(node, ast.Assign) and bool(_EXITS & {_last_name(target) for target in node.targets})


_EXITS = {"__exit__", "__aexit__"}


def _is_falsy(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and not value.value


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    names = caught.elts if isinstance(caught, ast.Tuple) else [caught]
    return any(_last_name(name) in {"Exception", "BaseException"} for name in names)


def _last_name(node: ast.expr) -> str:
    return ast.unparse(node).rpartition(".")[2]
