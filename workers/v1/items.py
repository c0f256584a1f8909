"""Items of a catalog in the words of the older version, and back (002 §10.1)."""

from dataclasses import replace
from typing import Any

from goondan_tasks.bundle.catalog import CatalogItem, ToolSource
from goondan_tasks.v1_api import V1CatalogItem
from workers.tools.dynamic_tools import catalog_item


def v1_item(given: Any, extension: str) -> V1CatalogItem:
    """Return what an extension describes a tool with; one that names no source comes from itself.

    Raises:
        ValueError: it is not valid, or has a field that items have not.
        TypeError: it is neither an item nor a dict.
    """
    if isinstance(given, V1CatalogItem):
        source = ToolSource(type="extension", name=extension)
        shown = given if given.source is not None else replace(given, source=source)
        todays_item(shown)
        return shown
    item = catalog_item(given, extension)
    return V1CatalogItem(item.name, item.description, item.parameters, source=item.source)


def todays_item(shown: V1CatalogItem) -> CatalogItem:
    """Return an item that has a source as one of today; raises as :func:`v1_item`."""
    fields = {"name": shown.name, "description": shown.description, "parameters": shown.parameters}
    return catalog_item({**fields, "source": shown.source}, "")
