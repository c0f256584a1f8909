"""What an entry file visibly asks of the older context or api that today's does not have."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.tool_api import ToolContext

#: what the first parameter of a handler is called
_CONTEXTS = {"ctx", "context"}

_Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda


@dataclass(frozen=True, slots=True)
class OlderUse:
    """A place in the code."""

    line: int
    #: as it is written, such as ``ctx.oauth``
    code: str


def older_uses(file: Path, kind: str) -> list[OlderUse]:
    """Return what the entry of a Tool (``kind``) or an Extension uses, by line, each name once.

    Only what is asked of the first parameter itself is seen: of functions that call it ``ctx`` in a Tool, and
    of ``register`` in an Extension. Nothing is seen in a file that cannot be read or is no Python.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return []
    known = _names(ToolContext if kind == "Tool" else ExtensionApi)
    uses: dict[str, OlderUse] = {}
    for function in _functions(tree, kind):
        name = _first_parameter(function)
        for node in ast.walk(function):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == name:
                code = f"{name}.{node.attr}"
                if node.attr not in known:
                    uses.setdefault(code, OlderUse(node.lineno, code))
            elif isinstance(node, ast.Call) and _registers_one_object(node, name):
                code = f"{name}.tools.register({{…}})"
                uses.setdefault(code, OlderUse(node.lineno, code))
    return sorted(uses.values(), key=lambda use: (use.line, use.code))


def _functions(tree: ast.Module, kind: str) -> Iterator[_Function]:
    for node in ast.walk(tree):
        if not isinstance(node, _Function) or not _first_parameter(node):
            continue
        is_handler = _first_parameter(node) in _CONTEXTS
        is_register = not isinstance(node, ast.Lambda) and node.name == "register"
        if is_handler if kind == "Tool" else is_register:
            yield node


def _first_parameter(function: _Function) -> str:
    """Return the name of what is given first; empty if nothing can be."""
    parameters = [*function.args.posonlyargs, *function.args.args]
    return parameters[0].arg if parameters else ""


def _registers_one_object(call: ast.Call, api: str) -> bool:
    return ast.unparse(call.func) == f"{api}.tools.register" and len(call.args) + len(call.keywords) == 1


def _names(kind: type) -> set[str]:
    """Return the public names of a class: its fields, properties and methods."""
    names = {*dir(kind), *(name for one in kind.__mro__ for name in vars(one).get("__annotations__", ()))}
    return {name for name in names if not name.startswith("_")}
