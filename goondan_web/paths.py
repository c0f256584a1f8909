"""Names as parts of paths: percent-encoded, slashes and dots included."""

import re
from urllib.parse import quote, unquote

from starlette.requests import Request

#: what URLs cannot have as a part of their path, even encoded: a tilde stands before it
_DOTS = re.compile(r"~*\.\.?")


def path_part(name: str) -> str:
    """Return a name as a part of a path, which :func:`path_names` decodes."""
    return quote(f"~{name}" if _DOTS.fullmatch(name) else name, safe="")


def path_names(request: Request) -> dict[str, str]:
    """Return the names in the path of a request, decoded."""
    names = {name: unquote(text) for name, text in request.path_params.items()}
    return {name: text.removeprefix("~") if _DOTS.fullmatch(text) else text for name, text in names.items()}
