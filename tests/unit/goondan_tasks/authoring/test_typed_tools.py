"""What ``@tool`` makes of a typed function."""

import asyncio
import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, field_validator

from goondan_tasks.authoring.entry import import_entry, import_failure
from goondan_tasks.authoring.tool_api import ToolContext, ToolOptions, tool
from goondan_tasks.authoring.typed_tools import ToolDefinitionError, typed_tool
from goondan_tasks.bundle.resources import ToolExport
from goondan_tasks.contract.errors import ToolError, ToolInputValidationError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.output import Pending

CONTEXT: Any = object()
EMPTY: list[int] = []
IMPORT = "from collections.abc import Callable; from goondan_tasks.tool_api import ToolContext, tool\n"
late_annotations = pytest.mark.skipif(
    sys.version_info < (3, 14), reason="before Python 3.14 the file itself cannot be imported"
)


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Order(BaseModel):
    item: str
    count: Annotated[int, Field(ge=1)] = 1


class Exact(BaseModel):
    model_config = ConfigDict(strict=True)

    at: datetime


class Even(BaseModel):
    number: int

    @field_validator("number")
    @classmethod
    def _is_even(cls, number: int) -> int:
        if number % 2:
            raise ValueError("must be even")
        return number


@dataclass
class Point:
    x: int
    y: int = 0


class Opaque:
    """It has no JSON Schema."""


def written_to(folder: Path, text: str) -> Path:
    file = folder / "entry.py"
    file.write_text(text, encoding="utf-8")
    return file


def export_of(function: Callable[..., Any]) -> JsonObject:
    found = typed_tool(function)
    assert found is not None
    return found.export


def parameters_of(annotation: Any, *default: Any) -> JsonObject:
    """Return the JSON Schema of a function with one parameter, ``value``."""

    def run(**given: Any) -> Any:
        return given

    function: Any = run
    parameter = inspect.Parameter(
        "value",
        inspect.Parameter.KEYWORD_ONLY,
        annotation=annotation,
        default=default[0] if default else inspect.Parameter.empty,
    )
    function.__signature__ = inspect.Signature([parameter])
    parameters: JsonObject = export_of(tool(function))["parameters"]
    return parameters


def run(function: Callable[..., Any], args: JsonObject) -> Any:
    found = typed_tool(function)
    assert found is not None
    value = found.handler(CONTEXT, args)
    return asyncio.run(value) if inspect.iscoroutine(value) else value


def test_name_description_and_parameters_come_from_function() -> None:
    @tool
    def run_tests(
        ctx: ToolContext,
        paths: list[str],
        mode: Literal["fast", "full"] = "fast",
        limit: Annotated[int | None, Field(description="At most so many.")] = None,
    ) -> str:
        """Run the tests.

        Those of the paths.
        """
        return ""

    assert export_of(run_tests) == {
        "name": "run-tests",
        "description": "Run the tests.\n\nThose of the paths.",
        "parameters": {
            "type": "object",
            "additionalProperties": False,
            "required": ["paths"],
            "properties": {
                "paths": {"type": "array", "items": {"type": "string"}},
                "mode": {"type": "string", "enum": ["fast", "full"], "default": "fast"},
                "limit": {
                    "anyOf": [{"type": "integer"}, {"type": "null"}],
                    "default": None,
                    "description": "At most so many.",
                },
            },
        },
    }


def test_options_are_export_fields_and_override_function() -> None:
    @tool(name="go", description="Goes.", idempotent=True, timeout_seconds=5, retry={"max": 2})
    def run_it() -> None:
        """Runs."""

    @tool()
    def plain() -> None: ...

    assert export_of(run_it) == {
        "name": "go",
        "description": "Goes.",
        "idempotent": True,
        "timeoutSeconds": 5,
        "retry": {"max": 2},
        "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
    }
    assert export_of(plain).keys() == {"name", "parameters"}


def test_options_are_fields_that_yaml_has() -> None:
    assert ToolOptions.__annotations__.keys() == ToolExport.model_fields.keys() - {"parameters"}
    misspelt: Any = {"timeout": 3}
    with pytest.raises(TypeError, match=r"'timeout'; did you mean 'timeout_seconds'\?"):
        tool(**misspelt)


@pytest.mark.parametrize(
    ("annotation", "schema"),
    [
        (str, {"type": "string"}),
        (bool, {"type": "boolean"}),
        (float, {"type": "number"}),
        (Any, {}),
        ("int", {"type": "integer"}),
        (
            Annotated[str, Field(min_length=1, pattern="^a")],
            {"type": "string", "minLength": 1, "pattern": "^a"},
        ),
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (set[int], {"type": "array", "items": {"type": "integer"}, "uniqueItems": True}),
        (datetime, {"type": "string", "format": "date-time"}),
        (UUID, {"type": "string", "format": "uuid"}),
        (Literal["one"], {"type": "string", "const": "one"}),
        (Colour, {"$ref": "#/$defs/Colour"}),
        (Order, {"$ref": "#/$defs/Order"}),
        (Point, {"$ref": "#/$defs/Point"}),
        (list[Order], {"type": "array", "items": {"$ref": "#/$defs/Order"}}),
    ],
)
def test_each_type_has_its_schema(annotation: Any, schema: JsonObject) -> None:
    parameters = parameters_of(annotation)

    assert parameters["properties"] == {"value": schema}
    assert parameters["required"] == ["value"]


def test_models_and_enums_are_described_beside_properties() -> None:
    definitions = {**parameters_of(Colour), **parameters_of(Order)}["$defs"] | parameters_of(Colour)["$defs"]

    assert definitions["Colour"]["enum"] == ["red", "blue"]
    assert definitions["Order"]["properties"]["count"] == {"type": "integer", "minimum": 1, "default": 1}
    assert definitions["Order"]["required"] == ["item"]


@pytest.mark.parametrize(
    ("annotation", "default", "shown"),
    [
        (Colour, Colour.BLUE, {"default": "blue"}),
        (list[str], [], {"default": []}),
        (int, Field(default=3, le=9), {"default": 3, "maximum": 9}),
        (Any, object(), {}),
    ],
)
def test_defaults_are_shown_if_json_can_hold_them(annotation: Any, default: Any, shown: JsonObject) -> None:
    parameters = parameters_of(annotation, default)

    assert shown.items() <= parameters["properties"]["value"].items()
    assert ("default" in shown) == ("default" in parameters["properties"]["value"])
    assert "required" not in parameters


def test_parameters_may_be_named_like_pydantic_model_members() -> None:
    @tool
    def odd(json: str, model_config: int, _hidden: bool, schema: str = "s") -> list[Any]:
        return [json, model_config, _hidden, schema]

    assert list(export_of(odd)["parameters"]["properties"]) == ["json", "model_config", "_hidden", "schema"]
    assert run(odd, {"json": "{}", "model_config": 1, "_hidden": True}) == ["{}", 1, True, "s"]


def test_arguments_arrive_as_typed_with_defaults() -> None:
    got: list[Any] = []

    @tool
    def take(
        order: Order,
        colour: Colour,
        at: datetime,
        price: Decimal,
        exact: Exact,
        point: Point,
        numbers: set[int],
        days: tuple[date, ...] = (),
        more: list[int] = EMPTY,
    ) -> None:
        more.append(1)
        got.append([order, colour, at, price, exact, point, numbers, days, more])

    moment = "2026-01-02T03:04:05Z"
    args = {
        "order": {"item": "tea"},
        "colour": "blue",
        "at": moment,
        "price": "1.10",
        "exact": {"at": moment},
        "point": {"x": 1},
        "numbers": [1, 1, 2],
    }
    run(take, args)
    run(take, args)

    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    order, price = Order(item="tea"), Decimal("1.10")
    assert got == [[order, Colour.BLUE, at, price, Exact(at=at), Point(1), {1, 2}, (), [1]]] * 2


@pytest.mark.parametrize("keyword", ["def", "async def"])
@pytest.mark.parametrize(
    "parameters",
    [
        "ctx, number: int",
        "ctx: ToolContext, number: int",
        "call: ToolContext, *, number: int",
        "*, ctx, number: int",
    ],
)
@pytest.mark.parametrize("top", ["", "from __future__ import annotations\n"])
def test_first_parameter_asking_for_context_gets_it(
    tmp_path: Path, top: str, parameters: str, keyword: str
) -> None:
    text = f"{top}{IMPORT}\n@tool\n{keyword} f({parameters}):\n    return [vars()]\n"
    module = import_entry(written_to(tmp_path, text))

    [[given]] = [run(module.f, {"number": 3})]

    assert list(given.values()) == [CONTEXT, 3]
    assert list(export_of(module.f)["parameters"]["properties"]) == ["number"]


def test_context_imported_for_type_checkers_is_passed(tmp_path: Path) -> None:
    function = "@tool\ndef f(call: 'tool_api.ToolContext'):\n    return call is not None\n"
    text = f"{IMPORT}\ndel ToolContext\n{function}"

    assert run(import_entry(written_to(tmp_path, text)).f, {}) is True


@late_annotations
def test_unimported_context_is_passed_with_late_annotations(tmp_path: Path) -> None:
    function = "@tool\ndef f(call: ToolContext, n: int):\n    return [call is not None, n]\n"
    text = f"{IMPORT}\ndel ToolContext\n{function}"

    assert run(import_entry(written_to(tmp_path, text)).f, {"n": 1}) == [True, 1]


@late_annotations
@pytest.mark.parametrize("annotation", ["Later", "list[Later]", "Later | None", "dict[str, module.Later]"])
def test_type_defined_later_is_refused_by_name(tmp_path: Path, annotation: str) -> None:
    text = f"{IMPORT}\n\n@tool\ndef f(value: {annotation}):\n    pass\n\nclass Later: ...\n"

    with pytest.raises(ToolDefinitionError, match=r"parameter 'value': its type cannot be found: name '\w+'"):
        import_entry(written_to(tmp_path, text))


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (Order(item="tea"), {"item": "tea", "count": 1}),
        (Point(1), {"x": 1, "y": 0}),
        ([Order(item="tea")], [{"item": "tea", "count": 1}]),
        ({"at": date(2026, 1, 2), "colour": Colour.RED}, {"at": "2026-01-02", "colour": "red"}),
        ((1, None, "x"), [1, None, "x"]),
    ],
)
def test_returned_value_becomes_json(value: Any, output: Any) -> None:
    @tool
    def plain() -> Any:
        return value

    @tool
    async def late() -> Any:
        return value

    @tool
    def pending() -> Any:
        return Pending("job", value)

    assert run(plain, {}) == run(late, {}) == run(pending, {}).output == output
    assert run(pending, {}).handle == "job"


def test_non_json_result_is_left_to_output_check() -> None:
    value = [Opaque()]

    @tool
    def odd() -> Any:
        return value

    assert run(odd, {}) is value


def test_type_specific_faults_are_refused_before_function_runs() -> None:
    @tool
    def never(even: Even, at: datetime, ctx_: int = 0) -> None:
        raise AssertionError("it ran")

    with pytest.raises(ToolInputValidationError) as refused:
        run(never, {"even": {"number": 3}, "at": "soon"})

    assert refused.value.message.startswith(
        "args.even.number: must be even; args.at: must be a valid datetime"
    )


def test_function_s_own_errors_stay_as_they_are() -> None:
    @tool
    def fails() -> None:
        raise ToolError("No.")

    with pytest.raises(ToolError, match=r"^No\.$"):
        run(fails, {})


@pytest.mark.parametrize(
    ("signature", "named", "reason"),
    [
        ("f(path: str, /)", "f, parameter 'path'", "it is positional-only"),
        ("f(*paths: str)", "f, parameter 'paths'", "it stands for any number"),
        ("f(**options: str)", "f, parameter 'options'", "it stands for any names"),
        ("f(path)", "f, parameter 'path'", "it has no type"),
        (
            "f(a: int, thing: Opaque)",
            "f, parameter 'thing'",
            "its type has no JSON Schema: Unable to generate",
        ),
        ("f(then: Callable[[], int])", "f, parameter 'then'", "its type has no JSON Schema: Cannot generate"),
        (
            "f(value: 'Unknown')",
            "f, parameter 'value'",
            "its type cannot be found: name 'Unknown' is not defined",
        ),
        ("f(value: 'int |')", "f, parameter 'value'", "its type cannot be found"),
        ("f(path: str, call: ToolContext)", "f, parameter 'call'", "the context is not the first parameter"),
        ("f(path: str, ctx: int)", "f, parameter 'ctx'", "the context is not the first parameter"),
        ("f(ctx: ToolContext, /)", "f, parameter 'ctx'", "it is positional-only"),
        ("_f()", "_f", "'-f' cannot name an export"),
    ],
)
def test_misuse_names_file_line_function_and_parameter(
    tmp_path: Path, signature: str, named: str, reason: str
) -> None:
    text = f"{IMPORT}\nclass Opaque: ...\n\n\n@tool\ndef {signature}:\n    pass\n"
    file = written_to(tmp_path, text)

    with pytest.raises(ToolDefinitionError) as refused:
        import_entry(file)

    assert str(refused.value).startswith(f"{file}:6: @tool {named}: {reason}")
    assert refused.value.suggestion
    assert import_failure(file, refused.value).line == 6
    assert import_failure(file, refused.value).suggestion == refused.value.suggestion


def test_underscores_of_function_become_hyphens_of_its_export() -> None:
    @tool
    def run__all_() -> None: ...

    assert export_of(run__all_)["name"] == "run--all-"


@pytest.mark.parametrize("name", ["", "a b", "a__b", "-a", "a_", "näme", 7])
def test_name_that_no_export_may_have_is_refused(name: Any) -> None:
    def fine() -> None: ...

    with pytest.raises(ToolDefinitionError, match="cannot name an export"):
        tool(name=name)(fine)


@pytest.mark.parametrize("thing", [Opaque, functools.partial(print), "text"])
def test_only_functions_are_tools(thing: Any) -> None:
    with pytest.raises(TypeError, match="@tool goes before a function, not before"):
        tool(thing)
    assert typed_tool(thing) is None


def test_decorator_is_refused_above_tool_and_kept_below() -> None:
    def loud(function: Callable[..., str]) -> Callable[..., str]:
        @functools.wraps(function)
        def run(**arguments: Any) -> str:
            return function(**arguments).upper()

        return run

    @tool
    @loud
    def below(text: str) -> str:
        return text

    @loud
    @tool
    def above(text: str) -> str:
        return text

    assert run(below, {"text": "a"}) == "A"
    with pytest.raises(ToolDefinitionError, match="another decorator is above it"):
        typed_tool(above)


def test_function_itself_can_still_be_called(tmp_path: Path) -> None:
    @tool
    def add(first: int, second: int = 2) -> int:
        return first + second

    assert add(1) == 3
