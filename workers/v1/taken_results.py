"""What functions of older extensions have made of a result (002 §6.1)."""

from goondan_tasks.calls import Run, with_meta
from goondan_tasks.errors import ToolError
from goondan_tasks.messages import ToolCallError, ToolCallResult
from goondan_tasks.v1_api import ToolError as V1Error
from goondan_tasks.v1_api import ToolResult
from workers.v1.results import v1_result


def result_taken(given: ToolResult, last: ToolCallResult | None, run: Run) -> ToolCallResult:
    """Return what such a function has made of the ``last`` result of its call, or instead of one.

    Raises:
        ValueError: a field has a value of the wrong type.
    """
    if last is not None and given == v1_result(last):
        return last
    error = None if given.error is None else _error(given.error, last)
    if last is None or given.status != last.status:
        last = with_meta(run.ok(None, None), id="")  # whoever adopts it says whose it is
    fields = {"status": given.status, "output": given.output, "handle": given.handle, "error": error}
    return ToolCallResult.model_validate({**dict(last), **fields})


def _error(given: V1Error, last: ToolCallResult | None) -> ToolCallError:
    before = None if last is None else last.error
    if before is not None and before.code == given.code:
        name = given.name or before.name
        return ToolCallError.model_validate({**dict(before), "name": name, "message": given.message})
    code, name = given.code or ToolError.code, given.name or ToolError.__name__
    return ToolCallError.model_validate({"code": code, "name": name, "message": given.message})
