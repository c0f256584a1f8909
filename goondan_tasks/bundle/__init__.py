"""Bundles: YAML resources and the files they point to, read, checked and indexed."""

from goondan_tasks.bundle.binding import BoundTool
from goondan_tasks.bundle.bundle import Bundle
from goondan_tasks.bundle.catalog import CatalogItem, ToolCatalog, ToolSource, build_catalog
from goondan_tasks.bundle.extension_binding import BoundExtension
from goondan_tasks.bundle.findings import BundleError, Finding
from goondan_tasks.bundle.loader import inspect_bundle, load_bundle

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
