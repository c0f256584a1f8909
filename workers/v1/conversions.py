"""Converts calls, results and catalog items to the older version's, and back (002 §5.2, §6.1, §10.1)."""

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

from goondan_tasks.authoring.v1_api import Step, ToolResult, Turn, V1CatalogItem
from goondan_tasks.authoring.v1_api import ToolCall as V1Call
from goondan_tasks.authoring.v1_api import ToolError as V1Error
from goondan_tasks.contract.calls import Run, with_meta
from goondan_tasks.contract.catalog import CatalogItem, ToolSource, catalog_item
from goondan_tasks.contract.errors import ToolError
from goondan_tasks.contract.messages import ToolCall, ToolCallError, ToolCallResult


@dataclass(frozen=True, slots=True)
class Shown:
    """The Turn, Step and catalog that one run sees, read once for the handler and the functions around it."""

    turn: Turn
    step: Step
    tool_catalog: Sequence[V1CatalogItem]


def v1_item(given: Any, extension: str) -> V1CatalogItem:
    """Return an extension's description of a tool as an item, whose default source is the extension.

    Raises:
        ValueError: it is not valid, or has an unknown field.
        TypeError: it is neither an item nor a dict.
    """
    if isinstance(given, V1CatalogItem):
        source = ToolSource(type="extension", name=extension)
        item = given if given.source is not None else replace(given, source=source)
        current_item(item)  # checks it
        return item
    made = catalog_item(given, extension)
    return V1CatalogItem(made.name, made.description, made.parameters, source=made.source)


def current_item(item: V1CatalogItem) -> CatalogItem:
    """Return an item with a source in the current form; raises as :func:`v1_item`."""
    fields = {"name": item.name, "description": item.description, "parameters": item.parameters}
    return catalog_item({**fields, "source": item.source}, "")


def v1_call(call: ToolCall) -> V1Call:
    """Return a call in the older form, with a copy of its arguments, since messages share them."""
    return V1Call(call.shown_id, call.tool_name, deepcopy(call.args))


def v1_result(result: ToolCallResult) -> ToolResult:
    """Return a result in the older form (002 §6.1)."""
    error = result.error
    v1_error = None if error is None else V1Error(error.message, error.name, error.code)
    return ToolResult(result.status, result.output, result.handle, v1_error)


def current_result(given: ToolResult, last: ToolCallResult | None, run: Run) -> ToolCallResult:
    """Return a function's result in the current form; ``last`` is the result that it may have changed.

    Raises:
        ValueError: a field has a value of the wrong type.
    """
    if last is not None and given == v1_result(last):
        return last
    error = None if given.error is None else _current_error(given.error, last)
    if last is None or given.status != last.status:
        last = with_meta(run.ok(None, None), id="")  # the executor fills in the call's own fields
    fields = {"status": given.status, "output": given.output, "handle": given.handle, "error": error}
    return ToolCallResult.model_validate({**dict(last), **fields})


def _current_error(given: V1Error, last: ToolCallResult | None) -> ToolCallError:
    before = None if last is None else last.error
    if before is not None and before.code == given.code:
        name = given.name or before.name
        return ToolCallError.model_validate({**dict(before), "name": name, "message": given.message})
    code, name = given.code or ToolError.code, given.name or ToolError.__name__
    return ToolCallError.model_validate({"code": code, "name": name, "message": given.message})
