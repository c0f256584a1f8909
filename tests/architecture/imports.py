"""What a module needs before it can be imported, by its text."""

import ast
from collections.abc import Collection, Iterator, Mapping
from graphlib import TopologicalSorter

from tests.architecture.sources import Source

_LATER = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


def imports_of(source: Source, modules: Collection[str]) -> set[str]:
    """Return those of ``modules`` that are imported when ``source`` is, with the packages they are in.

    A package that it is in itself counts only if it takes a name from it: it is being imported by then.
    """
    taken = named_imports(source, modules)
    packages = (
        {package for name in taken for package in _packages(name)}
        - set(_packages(source.module))
        - {source.module}
    )
    return taken | packages.intersection(modules)


def named_imports(source: Source, modules: Collection[str]) -> set[str]:
    """Return those of ``modules`` that ``source`` names in its imports."""
    return {name for node in _at_once(source.tree) for name in _taken(node, modules)}.intersection(modules)


def longest_chain(imports: Mapping[str, set[str]]) -> list[str]:
    """Return the longest chain of modules of which each imports the next; none may import one another."""
    chains: dict[str, list[str]] = {}
    for module in TopologicalSorter(imports).static_order():
        chains[module] = [module, *max((chains[one] for one in imports[module]), key=len, default=[])]
    return max(chains.values(), key=len, default=[])


def _at_once(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what is run while a module is imported: no functions, and nothing that is only for types."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, _LATER) or (isinstance(child, ast.If) and _is_for_types(child.test)):
            continue
        yield child
        yield from _at_once(child)


def _is_for_types(test: ast.expr) -> bool:
    return isinstance(test, ast.Name) and test.id == "TYPE_CHECKING"


def _taken(node: ast.AST, modules: Collection[str]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            module = f"{node.module}.{alias.name}"
            yield module if module in modules else node.module


def _packages(module: str) -> Iterator[str]:
    parts = module.split(".")
    return (".".join(parts[:length]) for length in range(1, len(parts)))
