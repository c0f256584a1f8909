"""``Connection.spec.reply``: the tool call that takes an agent's answer back to where its event came from.

It is a call of the agent that has handled the event. Without ``args`` the tool gets the answer as ``text``,
and each property of the event that its parameters name. In ``args``, ``{{answer}}`` and ``{{<property>}}``
stand for these.
"""

import re
from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from goondan_tasks.bundle.fields import ResourceModel
from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.templates import filled

#: the argument that is the answer, where a reply has no ``args``
ANSWER_ARGUMENT = "text"

_KIND = "Tool/"
_NUMBERS = {"integer": re.compile(r"-?[0-9]{1,18}"), "number": re.compile(r"-?[0-9]{1,18}(\.[0-9]{1,18})?")}


def _check_tool(tool: str) -> str:
    if not tool.startswith(_KIND) or "/" in tool.removeprefix(_KIND) or tool == _KIND:
        message = f"'{tool[:80]}' names no function of a Tool"
        raise FieldError(message, "Write it as in Tool/telegram__send.", ConfigCode.INVALID_REF)
    return tool


class Reply(ResourceModel):
    """``Tool/<tool>__<export>``, or that as ``tool`` beside ``args``."""

    tool: Annotated[str, AfterValidator(_check_tool)]
    args: JsonObject | None = None

    @property
    def tool_name(self) -> str:
        """The tool as calls name it: ``telegram__send``."""
        return self.tool.removeprefix(_KIND)

    def arguments(self, parameters: Any, properties: Mapping[str, str], answer: str) -> JsonObject:
        """Return the tool's arguments; ``parameters`` are the JSON Schema that it declares for them."""
        declared = parameters.get("properties") if isinstance(parameters, Mapping) else None
        declared = declared if isinstance(declared, Mapping) else {}
        if self.args is not None:
            args: JsonObject = filled(self.args, {**properties, "answer": answer})
        else:
            args = {name: value for name, value in properties.items() if name in declared} | {
                ANSWER_ARGUMENT: answer
            }
        return {name: _of_type(value, declared.get(name)) for name, value in args.items()}


OneReply = Annotated[
    Reply,
    BeforeValidator(
        lambda reply: {"tool": reply} if isinstance(reply, str) else reply,
        json_schema_input_type=str | Reply,
    ),
]


def _of_type(value: Any, schema: Any) -> Any:
    """Return a property as the tool declares it: properties are texts, such as ``"-77"`` for a number."""
    wanted = schema.get("type") if isinstance(schema, Mapping) else None
    if not isinstance(value, str):
        return value
    if wanted == "boolean":
        return {"true": True, "false": False}.get(value, value)
    pattern = _NUMBERS.get(wanted) if isinstance(wanted, str) else None
    if pattern is None or not pattern.fullmatch(value):
        return value
    return int(value) if wanted == "integer" else float(value)
