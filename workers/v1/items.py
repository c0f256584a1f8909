"""Items of a catalog in the words of the older version, and back (002 §10.1)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from goondan_tasks.bundle.catalog import CatalogItem, ToolSource
from goondan_tasks.v1_api import V1CatalogItem


def v1_item(given: Any, extension: str) -> V1CatalogItem:
    """Return what an extension describes a tool with; one that names no source comes from itself.

    Raises:
        pydantic.ValidationError: it is neither an item nor a dict of one's fields.
    """
    source = ToolSource(type="extension", name=extension)
    if isinstance(given, V1CatalogItem):
        return given if given.source is not None else replace(given, source=source)
    fields = {"source": source, **given} if isinstance(given, Mapping) else given
    item = CatalogItem.model_validate(fields)
    return V1CatalogItem(item.name, item.description, item.parameters, source=item.source)


def todays_item(shown: V1CatalogItem) -> CatalogItem:
    """Return it as an item of today; raises as :func:`v1_item`."""
    fields = {"name": shown.name, "description": shown.description, "parameters": shown.parameters}
    return CatalogItem.model_validate({**fields, "source": shown.source})
