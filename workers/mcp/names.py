"""Names for the tools of MCP servers: ``server__tool``, reversible (003 §3.2, DESIGN §6)."""

import hashlib
import re
from collections.abc import Collection

from goondan_tasks.names import build_tool_name, is_name_part

_FORBIDDEN = re.compile(r"[^A-Za-z0-9-]+")
_DIGEST_LENGTH = 8


def full_names(server: str, tools: Collection[str]) -> dict[str, str]:
    """Return the server's own name of each tool by its full name, in the order of ``tools``.

    Allowed names stay as they are; another one becomes readable, with a digest that is longer if it is taken.
    """
    parts = {tool: tool for tool in tools if is_name_part(tool)}
    for tool in tools:
        length = _DIGEST_LENGTH
        while not is_name_part(tool) and parts.setdefault(_readable(tool, length), tool) != tool:
            length += 1
    part_of = {tool: part for part, tool in parts.items()}
    return {build_tool_name(server, part_of[tool]): tool for tool in tools}


def _readable(tool: str, length: int) -> str:
    digest = hashlib.sha256(tool.encode("utf-8", "backslashreplace")).hexdigest()[:length]
    return "-".join(filter(None, (_FORBIDDEN.sub("_", tool).strip("_-"), digest)))
