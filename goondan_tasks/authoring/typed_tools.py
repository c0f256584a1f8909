"""``@tool``: an export, as YAML declares one, and a handler ``(ctx, input)`` from a typed function.

The parameters are the properties of the arguments' JSON Schema, which pydantic derives from their types.
The handler converts the arguments, already checked against that schema, to the parameters' types, and the
return value to JSON. The function itself is not changed.
"""

import functools
import inspect
import sys
import typing
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.alias_generators import to_camel
from pydantic.errors import PydanticUserError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import SchemaError, to_json, to_jsonable_python

from broker_config.value_faults import fault_text
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.names import is_name_part
from goondan_tasks.contract.output import Pending
from goondan_tasks.contract.wording import written

if sys.version_info >= (3, 14):  # annotations are evaluated lazily, and may use undefined names
    from annotationlib import Format

    signature = functools.partial(inspect.signature, annotation_format=Format.FORWARDREF)
else:
    signature = inspect.signature

#: the attribute of a decorated function that holds its :class:`TypedTool`
_MARK = "__goondan_tool__"
#: avoids conflicts of parameters such as ``json`` and ``_x`` with attributes of pydantic's models
_PREFIX = "arg_"
#: raised by pydantic and typing for an annotation without a schema
_NO_SCHEMA = (PydanticUserError, SchemaError, TypeError, NameError, SyntaxError)
_KINDS: Mapping[Any, tuple[str, str]] = {
    inspect.Parameter.POSITIONAL_ONLY: ("it is positional-only", "Remove the '/': arguments come by name."),
    inspect.Parameter.VAR_POSITIONAL: ("it stands for any number", "Take a list: 'paths: list[str]'."),
    inspect.Parameter.VAR_KEYWORD: ("it stands for any names", "Name each parameter, or take one dict."),
}


class ToolDefinitionError(TypeError):
    """``@tool`` cannot make a tool of the function at ``line`` of ``path``."""

    def __init__(self, path: Path, line: int, reason: str, suggestion: str) -> None:
        super().__init__(f"{path}:{line}: {reason}. {suggestion}")
        self.path = path
        self.line = line
        self.reason = reason
        self.suggestion = suggestion


@dataclass(frozen=True, slots=True)
class TypedTool:
    """A decorated function with its export and its handler."""

    #: as an item of ``spec.exports`` in YAML
    export: JsonObject
    function: Callable[..., Any]
    #: takes the context and the arguments
    handler: Callable[[Any, JsonObject], Any]


def typed_tool(function: object) -> TypedTool | None:
    """Return what ``@tool`` made of a function; ``None`` for anything else.

    Raises:
        ToolDefinitionError: another decorator above ``@tool`` has copied its mark.
    """
    found = getattr(function, _MARK, None) if inspect.isfunction(function) else None
    if isinstance(found, TypedTool) and found.function is not function:
        raise _Source(found.function).refused("another decorator is above it", "Write @tool on top.")
    return found


def mark_tool(function: Callable[..., Any], context: type, options: Mapping[str, Any]) -> None:
    """Make a function a typed tool; ``context`` is the type of its optional first parameter.

    ``options`` are fields of the export in snake_case, which add to or override those from the function.

    Raises:
        ToolDefinitionError: the function cannot be called with a JSON object, or cannot name an export.
        TypeError: ``function`` is not a function.
    """
    if not inspect.isfunction(function):
        raise TypeError(f"@tool goes before a function, not before {function!r:.100}")
    source = _Source(function)
    name = options.get("name", function.__name__.replace("_", "-"))
    if not isinstance(name, str) or not is_name_part(name):
        raise source.refused(
            f"{name!r:.80} cannot name an export",
            "Write @tool(name='…') with letters, digits and '-'; begin with a letter or digit.",
        )
    takes_context, fields = source.fields(context)
    model = source.model(fields)
    parameters = model.model_json_schema(schema_generator=UntitledSchema)
    del parameters["title"]
    described = {"description": text} if (text := inspect.getdoc(function)) else {}
    declared = {to_camel(option): value for option, value in options.items()}
    export = {**described, **declared, "name": name, "parameters": parameters}
    setattr(function, _MARK, TypedTool(export, function, _handler(function, model, takes_context)))


class UntitledSchema(GenerateJsonSchema):
    """A JSON Schema without generated titles, and only with defaults that are JSON."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def emit_warning(self, kind: Any, detail: str) -> None:
        """Ignore that a default is not JSON; pydantic leaves it out."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Reads the parameters of a function, and makes errors with its place in the source."""

    function: Callable[..., Any]

    def refused(self, message: str, suggestion: str, parameter: str | None = None) -> ToolDefinitionError:
        code = inspect.unwrap(self.function).__code__
        place = f"@tool {self.function.__name__}" + (f", parameter '{parameter}'" if parameter else "")
        file, line = Path(code.co_filename), code.co_firstlineno
        return ToolDefinitionError(file, line, f"{place}: {message}", suggestion)

    def fields(self, context: type) -> tuple[str | None, dict[str, tuple[Any, Any]]]:
        """Return the name of the context's parameter, if any, and type and default of each other one."""
        parameters = list(signature(self.function).parameters.values())
        takes_context = None
        if parameters and _is_context(parameters[0], context):
            if parameters[0].kind in _KINDS:
                raise self.refused(*_KINDS[parameters[0].kind], parameters[0].name)
            takes_context = parameters.pop(0).name
        return takes_context, dict(self._fields(parameters, context))

    def _fields(
        self, parameters: list[inspect.Parameter], context: type
    ) -> Iterator[tuple[str, tuple[Any, Any]]]:
        for parameter in parameters:
            name, annotation = parameter.name, parameter.annotation
            if parameter.kind in _KINDS:
                raise self.refused(*_KINDS[parameter.kind], name)
            if _is_context(parameter, context):
                raise self.refused("the context is not the first parameter", "Move it to the front.", name)
            if annotation is parameter.empty:
                raise self.refused("it has no type", f"Annotate it, such as '{name}: str'.", name)
            default = ... if parameter.default is parameter.empty else parameter.default
            yield name, (self._resolved(name, annotation), default)

    def _resolved(self, name: str, annotation: Any) -> Any:
        """Return the type of an annotation, which may be text."""
        own = SimpleNamespace(__annotations__={name: annotation})
        names = inspect.unwrap(self.function).__globals__
        try:
            return typing.get_type_hints(own, names, include_extras=True)[name]
        except _NO_SCHEMA as error:
            suggestion = "Import it, or define it above the function; not below 'if TYPE_CHECKING'."
            raise self.refused(f"its type cannot be found: {error}", suggestion, name) from error

    def model(self, fields: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
        """Return a model of the arguments, whose aliases are the parameters' names."""
        try:
            return _model(fields)
        except _NO_SCHEMA:
            for name, (annotation, _) in fields.items():
                self._require_schema(name, annotation)
            raise

    def _require_schema(self, name: str, annotation: Any) -> None:
        try:
            _model({name: (annotation, ...)})
        except _NO_SCHEMA as error:
            reason = str(error).partition("\n")[0].partition(". ")[0]
            suggestion = (
                "Use types that JSON can hold: str, int, list[…], dict[str, …], Literal, an Enum, a model."
            )
            raise self.refused(f"its type has no JSON Schema: {reason}", suggestion, name) from error


def _model(fields: Mapping[str, tuple[Any, Any]]) -> type[BaseModel]:
    config = ConfigDict(extra="forbid", alias_generator=lambda field: field.removeprefix(_PREFIX))
    named: dict[str, Any] = {_PREFIX + name: field for name, field in fields.items()}
    model = create_model("Arguments", __config__=config, **named)
    model.model_json_schema(schema_generator=UntitledSchema)
    return model


def _is_context(parameter: inspect.Parameter, context: type) -> bool:
    # text or a reference: the name may be imported only for type checkers
    annotation = parameter.annotation
    if isinstance(annotation, typing.ForwardRef):
        annotation = annotation.__forward_arg__
    is_named = isinstance(annotation, str) and annotation.rpartition(".")[2] == context.__name__
    return parameter.name == "ctx" or annotation is context or is_named


def _handler(
    function: Callable[..., Any], model: type[BaseModel], takes_context: str | None
) -> Callable[[Any, JsonObject], Any]:
    names = {field: field.removeprefix(_PREFIX) for field in model.model_fields}

    def bound(context: Any, input: JsonObject) -> dict[str, Any]:
        try:
            # from JSON, since in Python mode a strict model would refuse a date as text
            arguments = model.model_validate_json(to_json(input))
        except ValidationError as error:
            faults = (f"{written(fault['loc'])}: {fault_text(fault)}" for fault in error.errors())
            raise ToolInputValidationError("; ".join(faults)) from error
        given = {name: getattr(arguments, field) for field, name in names.items()}
        return given if takes_context is None else {takes_context: context, **given}

    if not inspect.iscoroutinefunction(function):
        return lambda context, input: _as_json(function(**bound(context, input)))

    async def run(context: Any, input: JsonObject) -> Any:
        return _as_json(await function(**bound(context, input)))

    return run


def _as_json(value: Any) -> Any:
    if isinstance(value, Pending):
        return replace(value, output=_as_json(value.output))
    try:
        return to_jsonable_python(value)
    except ValueError:
        return value  # the check of outputs reports it
