"""Bundles: YAML resources and the files they point to, read, checked and indexed."""

from goondan_tasks.bundle.binding import BoundExtension, BoundTool
from goondan_tasks.bundle.bundle import Bundle, inspect_bundle, load_bundle
from goondan_tasks.bundle.catalog import CatalogItem, ToolCatalog, ToolSource, build_catalog
from goondan_tasks.bundle.findings import BundleError, Finding

__all__ = [
    "BoundExtension",
    "BoundTool",
    "Bundle",
    "BundleError",
    "CatalogItem",
    "Finding",
    "ToolCatalog",
    "ToolSource",
    "build_catalog",
    "inspect_bundle",
    "load_bundle",
]
