"""What older Tools and exports are called in today's version: ``slack.post`` becomes ``slack__post``."""

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from goondan_tasks.names import SYSTEM_TOOL, build_tool_name, is_name_part

#: what a name of today cannot hold
_FORBIDDEN = re.compile(r"\.|__+")


@dataclass(frozen=True, slots=True)
class Renaming:
    """A Tool's names of today, by its older ones."""

    tool: str
    exports: Mapping[str, str]

    def full_names(self) -> dict[str, str]:
        """Return what the model sees, by what it saw."""
        return {old: build_tool_name(self.tool, new) for old, new in self.exports.items()}


def renaming(tool: str, exports: Iterable[str], taken: Collection[str]) -> Renaming | None:
    """Choose the names of a Tool and its exports; ``None`` if two exports would get one, or one has none.

    If all exports share a namespace, that becomes the Tool's name, unless another Tool is called so (those
    names are ``taken``), or it is the system's own.
    """

    def is_free(name: str) -> bool:
        return name != SYSTEM_TOOL and (name == tool or name not in taken)

    old = list(dict.fromkeys(exports))
    namespaces = {name.partition(".")[0] if "." in name else "" for name in old}
    namespace = namespaces.pop() if len(namespaces) == 1 else ""
    if is_name_part(namespace) and is_free(namespace):
        names = Renaming(namespace, {name: _today(name.partition(".")[2]) for name in old})
    else:
        names = Renaming(_today(tool), {name: _today(name) for name in old})
    new = list(names.exports.values())
    is_usable = all(map(is_name_part, [names.tool, *new])) and len(set(new)) == len(new)
    return names if is_usable and is_free(names.tool) else None


def _today(name: str) -> str:
    return _FORBIDDEN.sub("-", name)
