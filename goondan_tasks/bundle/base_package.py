"""Where the built-in package ``@goondan/base`` stands (DESIGN §6, "tool not in the bundle")."""

import importlib.util
from pathlib import Path

BASE_PACKAGE = "@goondan/base"
# named, not imported: producers know the built-in tools without the workers' code
_MODULE = "workers.builtin"


def base_package_root() -> Path | None:
    """Return the folder of the built-in package, or ``None`` where workers are not installed."""
    try:
        spec = importlib.util.find_spec(_MODULE)
    except ModuleNotFoundError:
        return None
    locations = list(spec.submodule_search_locations or ()) if spec else []
    return Path(locations[0]) if locations else None
