"""Bundles: YAML resources and the files they name, read, checked and indexed.

A module is imported when one of its names is first used: a producer without a bundle needs none of them.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from goondan_tasks.bundle.binding import BoundExtension as BoundExtension
    from goondan_tasks.bundle.binding import BoundTool as BoundTool
    from goondan_tasks.bundle.binding import build_catalog as build_catalog
    from goondan_tasks.bundle.bundle import Bundle as Bundle
    from goondan_tasks.bundle.bundle import inspect_bundle as inspect_bundle
    from goondan_tasks.bundle.bundle import load_bundle as load_bundle
    from goondan_tasks.bundle.findings import BundleError as BundleError
    from goondan_tasks.bundle.findings import Finding as Finding

_MODULES = {
    "binding": ("BoundExtension", "BoundTool", "build_catalog"),
    "bundle": ("Bundle", "inspect_bundle", "load_bundle"),
    "findings": ("BundleError", "Finding"),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
