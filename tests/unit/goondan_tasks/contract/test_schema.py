"""Arguments against the parameters of an export."""

import math
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.contract import schema as schema_module
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schema import MAX_FAULT_CHARACTERS, MAX_FAULTS, SchemaError, compile_schema

COMMAND: JsonObject = {
    "type": "object",
    "properties": {
        "command": {"type": "string"},
        "items": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {"count": {"type": "integer"}},
                "required": ["count"],
                "additionalProperties": False,
            },
        },
    },
    "required": ["command"],
    "additionalProperties": False,
}
TREE: JsonObject = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "value": {"type": "integer"},
                "kids": {"type": "array", "items": {"$ref": "#/$defs/node"}},
            },
            "required": ["value"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}


def faults(parameters: JsonObject | None, args: Any) -> list[str]:
    return compile_schema(parameters).faults(args)


def nested(levels: int, inner: Any) -> Any:
    for _ in range(levels):
        inner = {"next": inner}
    return inner


@pytest.mark.requirement("bundle.export.schema-object")
def test_every_fault_is_named_with_its_path() -> None:
    args = {"items": [{"count": 1}, {"cuont": 2}, {"count": True}], "cmd": "ls"}

    assert sorted(faults(COMMAND, args)) == [
        "'command' is required",
        "args.items[1]: 'count' is required",
        "args.items[1]: unknown argument 'cuont'; did you mean 'count'?",
        'args.items[2].count: true is not of type "integer"',
        "unknown argument 'cmd'; did you mean 'command'?",
    ]


def test_valid_arguments_have_no_fault() -> None:
    assert faults(COMMAND, {"command": "ls", "items": [{"count": 3}]}) == []


@pytest.mark.requirement("bundle.export.parameters")
def test_missing_parameters_accept_any_object() -> None:
    assert faults(None, {"anything": [1, {"deep": None}]}) == []


@pytest.mark.parametrize(
    ("args", "shown"),
    [
        ([], "an array of 0 items"),
        (None, "null"),
        ("ls", '"ls"'),
        (True, "true"),
        (object(), "a value of type object"),
    ],
)
def test_arguments_must_be_object(args: Any, shown: str) -> None:
    assert faults(None, args) == [f"the arguments must be an object, not {shown}"]


@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": "array", "items": {"type": "integer"}}, [1, 2], None),
        ({"type": "array", "items": {"type": "integer"}}, [1, "x"], 'args[1]: "x" is not of type "integer"'),
        ({"type": "number", "minimum": 2}, 3, None),
        ({"type": "number"}, math.nan, "nan is not JSON"),
        ({"type": "string"}, "tea", None),
        ({"type": "string"}, None, 'args: null is not of type "string"'),
        ({"enum": [1, None]}, None, None),
    ],
)
def test_non_object_value_is_checked_where_allowed(schema: JsonObject, value: Any, fault: str | None) -> None:
    assert compile_schema(schema).faults_of_any(value) == ([] if fault is None else [fault])


@pytest.mark.requirement("bundle.export.schema-property")
@pytest.mark.parametrize(
    ("schema", "value", "fault"),
    [
        ({"type": "string"}, 5, 'args.x: 5 is not of type "string"'),
        ({"type": "number"}, True, 'args.x: true is not of type "number"'),
        ({"type": "integer"}, False, 'args.x: false is not of type "integer"'),
        ({"type": "boolean"}, 1, 'args.x: 1 is not of type "boolean"'),
        ({"type": "array"}, {"a": 1}, 'args.x: an object of 1 field is not of type "array"'),
        ({"type": "object"}, [1, 2], 'args.x: an array of 2 items is not of type "object"'),
        ({"enum": ["a", 1]}, "b", 'args.x: "b" is not one of "a" or 1'),
        ({"items": {"type": "string"}}, ["a", None], 'args.x[1]: null is not of type "string"'),
        ({"type": ["string", "null"]}, 1, 'args.x: 1 is not of types "null", "string"'),
        ({"pattern": "^a"}, "b", 'args.x: "b" does not match "^a"'),
        ({"minimum": 3}, 2, "args.x: 2 is less than the minimum of 3"),
    ],
)
def test_keywords_of_json_schema_are_checked(schema: JsonObject, value: Any, fault: str) -> None:
    assert faults({"properties": {"x": schema}}, {"x": value}) == [fault]


def test_alternative_tells_why_each_form_does_not_fit() -> None:
    forms = [{"type": "string"}, {"properties": {"id": {"type": "integer", "maximum": 3}}}]

    found = faults({"properties": {"x": {"anyOf": forms}}}, {"x": {"id": 9}})

    assert found == [
        "args.x: an object of 1 field matches none of the allowed forms: "
        '(1) is not of type "string"; (2) id is greater than the maximum of 3'
    ]


@pytest.mark.parametrize("number", [float("nan"), float("inf"), -float("inf")])
def test_numbers_outside_json_are_refused_everywhere(number: float) -> None:
    assert faults(None, {"free": [{"x": number}]}) == [f"args.free[0].x: {number} is not JSON"]


@pytest.mark.parametrize("digits", [20, 100, 4_000])
def test_integers_beyond_64_bits_are_integers(digits: int) -> None:
    schema: JsonObject = {"properties": {"n": {"type": "integer", "minimum": 1}}}

    assert faults(schema, {"n": 10**digits}) == []


def test_integer_that_python_cannot_write_is_refused() -> None:
    assert faults(None, {"n": 10**5_000}) == ["args.n: the number has too many digits"]


def test_value_that_is_not_json_is_named() -> None:
    assert faults(None, {"a": {1, 2}, "b": {3: "x"}, "c": b"raw"}) == [
        "args.a: a value of type set is not JSON",
        "args.c: a value of type bytes is not JSON",
        "args.b: the key 3 is not a string",
    ]


@pytest.mark.parametrize("args", [{"text": "\ud800"}, {"\udfff": 1}])
def test_lone_surrogates_are_fault(args: JsonObject) -> None:
    (fault,) = faults(COMMAND, args)

    assert "lone surrogate" in fault


@pytest.mark.parametrize("text", ["\x00", "😀", "a\u2028b", "\uffff"])
def test_odd_but_valid_text_passes(text: str) -> None:
    assert faults(COMMAND, {"command": text}) == []


@pytest.mark.parametrize("levels", [129, 1_000, 10_000, 200_000])
def test_deep_arguments_are_fault_and_no_crash(levels: int) -> None:
    (fault,) = faults(TREE, nested(levels, {}))

    assert "nested deeper than 128 levels" in fault


def test_arguments_may_be_nested_up_to_limit() -> None:
    assert faults(None, nested(127, {})) == []


def test_long_lists_of_faults_are_cut() -> None:
    found = faults({"properties": {"x": {"items": {"type": "string"}}}}, {"x": [0] * 10_000})

    assert len(found) == MAX_FAULTS + 1
    assert found[-1] == "and more"


def test_long_value_is_shortened_in_message() -> None:
    (fault,) = faults({"properties": {"x": {"type": "integer"}}}, {"x": "y" * 100_000})

    assert len(fault) < 200


def test_non_identifier_keys_are_quoted_in_paths() -> None:
    schema: JsonObject = {"additionalProperties": {"type": "string"}}

    assert faults(schema, {"a b": 1}) == ['args["a b"]: 1 is not of type "string"']


def test_recursive_schema_names_fault_at_any_depth() -> None:
    tree = {"value": 1, "kids": [{"value": 2}, {"value": 3, "kids": [{"valeu": 4}]}]}

    assert sorted(faults(TREE, tree)) == [
        "args.kids[1].kids[0]: 'value' is required",
        "args.kids[1].kids[0]: unknown argument 'valeu'; did you mean 'value'?",
    ]


@pytest.mark.parametrize(
    ("parameters", "path", "part"),
    [
        ([], (), "must be an object"),
        (True, (), "must be an object"),
        ({"type": "objekt"}, ("type",), '"objekt" is not a type; the types are array'),
        ({"properties": {"a": {"minLength": -1}}}, ("properties", "a", "minLength"), "less than"),
        ({"properties": {"a": {"pattern": "("}}}, ("properties", "a", "pattern"), "regex"),
        ({"required": "a"}, ("required",), "array"),
        ({"$ref": "#/$defs/none"}, (), "'/$defs/none' does not exist"),
        ({"default": float("nan")}, (), "not JSON"),
        ({"default": {1, 2}}, (), "not JSON"),
    ],
)
def test_invalid_schema_is_refused_with_its_place(parameters: Any, path: tuple[str, ...], part: str) -> None:
    with pytest.raises(SchemaError) as refusal:
        compile_schema(parameters)

    assert refusal.value.path == path
    assert part in refusal.value.message


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/x.json", "file:///etc/passwd", "https://example.org/#/a"]
)
def test_remote_reference_is_refused_and_never_fetched(url: str) -> None:
    with pytest.raises(SchemaError, match="only references inside the schema"):
        compile_schema({"properties": {"a": {"$ref": url}}})


@pytest.mark.parametrize(
    "reference", ["#/$defs/word", "#word", "#/$defs/a~1b", "#/properties/list/prefixItems/0"]
)
def test_local_references_are_followed(reference: str) -> None:
    text: JsonObject = {"type": "string"}
    parameters: JsonObject = {
        "$defs": {"word": {"$anchor": "word", **text}, "a/b": text},
        "properties": {"x": {"$ref": reference}, "list": {"prefixItems": [text]}},
    }

    assert faults(parameters, {"x": 1}) == ['args.x: 1 is not of type "string"']


def test_dialect_that_schema_declares_is_not_fetched() -> None:
    assert faults({"$schema": "http://example.org/dialect", "required": ["a"]}, {"a": 1}) == []


def doubling(levels: int, keyword: str) -> JsonObject:
    definitions: JsonObject = {"d0": {"type": "integer"}}
    for level in range(1, levels):
        reference = {"$ref": f"#/$defs/d{level - 1}"}
        definitions[f"d{level}"] = {keyword: [reference, reference]}
    return {"$defs": definitions, "properties": {"x": {"$ref": f"#/$defs/d{levels - 1}"}}}


def alternatives() -> JsonObject:
    follow = {"next": {"$ref": "#/$defs/node"}}
    forms = [{"properties": follow, "required": [name]} for name in ("left", "right", "both")]
    return {
        "$defs": {"node": {"type": "object", "anyOf": forms}},
        "properties": {"next": {"$ref": "#/$defs/node"}},
    }


@pytest.mark.parametrize("keyword", ["allOf", "anyOf", "oneOf"])
def test_references_that_multiply_are_refused(keyword: str) -> None:
    with pytest.raises(SchemaError, match="multiply"):
        compile_schema(doubling(60, keyword))


def test_long_chain_of_references_is_refused() -> None:
    definitions: JsonObject = {f"d{level}": {"$ref": f"#/$defs/d{level + 1}"} for level in range(3_000)}

    with pytest.raises(SchemaError, match="nested deeper"):
        compile_schema({"$defs": {**definitions, "d3000": {}}, "$ref": "#/$defs/d0"})


@pytest.mark.parametrize(
    "parameters",
    [
        {"$ref": "#"},
        {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
        {"properties": {"next": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]}}},
        {"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"},
        alternatives(),
        doubling(12, "anyOf"),
        {"properties": {"next": {"$dynamicRef": "#again"}}, "$dynamicAnchor": "again"},
        {"patternProperties": {"^(a+)+$": {}}, "propertyNames": {"pattern": "^(?=(n|e|x|t|.)*$)"}},
        {"properties": {"text": {"pattern": r"^(a|aa)+\1$"}}},
    ],
)
def test_hostile_schema_is_checked_in_moment(parameters: JsonObject) -> None:
    args = {**nested(100, {"x": "y"}), "text": "a" * 5_000 + "!", "x": "y"}
    started = time.monotonic()

    compile_schema(parameters).faults(args)

    assert time.monotonic() - started < 20, "milliseconds if nothing multiplies, hours otherwise"


def listed(items: JsonObject) -> JsonObject:
    return {"properties": {"x": {"type": "array", "items": items}}}


@pytest.fixture
def errors_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Collect how many errors the checker makes at once."""
    made: list[int] = []

    class Counting:
        def __init__(self, validator: Any) -> None:
            self._validator = validator

        def is_valid(self, value: Any) -> bool:
            return bool(self._validator.is_valid(value))

        def iter_errors(self, value: Any) -> list[Any]:
            errors = list(self._validator.iter_errors(value))
            made.append(sum(map(counted_errors, errors)))
            return errors

    class CountingParts:
        def __init__(self, parts: Any) -> None:
            self._parts = parts

        def get(self, pointer: str) -> Any:
            found = self._parts.get(pointer)
            return found and Counting(found)

    whole, parts = schema_module._compiled, schema_module._compiled_parts
    monkeypatch.setattr(schema_module, "_compiled", lambda *args: Counting(whole(*args)))
    monkeypatch.setattr(schema_module, "_compiled_parts", lambda *args: CountingParts(parts(*args)))
    return made


def counted_errors(error: Any) -> int:
    return 1 + sum(counted_errors(inner) for branch in getattr(error.kind, "context", ()) for inner in branch)


@pytest.mark.parametrize(
    ("parameters", "value", "fault"),
    [
        (listed({"enum": ["a", "b"]}), ["wrong"] * 60_000, 'args.x[0]: "wrong" is not one of "a" or "b"'),
        (listed({"type": "integer"}), ["wrong"] * 60_000, 'args.x[0]: "wrong" is not of type "integer"'),
        (
            listed({"anyOf": [{"const": 1}, {"const": 2}]}),
            [0] * 60_000,
            "args.x[0]: 0 matches none of the allowed forms: (1) 1 was expected; (2) 2 was expected",
        ),
        (
            listed({"allOf": [{"type": "string"}] * 2_000}),
            [0] * 2_000,
            'args.x[0]: 0 is not of type "string"',
        ),
        (
            {"properties": {"x": {"additionalProperties": {"type": "string"}}}},
            dict.fromkeys(map(str, range(60_000)), 0),
            'args.x["0"]: 0 is not of type "string"',
        ),
        (
            {"$defs": {"n": {"properties": {"x": {"items": {"$ref": "#/$defs/n"}}}, "type": "object"}}}
            | {"$ref": "#/$defs/n"},
            [{"x": [0]}] * 30_000,
            'args.x[0].x[0]: 0 is not of type "object"',
        ),
    ],
    ids=["enum", "type", "anyOf", "allOf", "properties", "recursive"],
)
def test_many_wrong_values_are_explained_one_by_one(
    errors_made: list[int], parameters: JsonObject, value: Any, fault: str
) -> None:
    found = faults(parameters, {"x": value})

    assert found[0] == fault
    assert (len(found), found[-1]) == (MAX_FAULTS + 1, "and more")
    assert max(errors_made) <= 4_000


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"pattern": "^a"}},
        {"unevaluatedProperties": False},
        {"anyOf": [{"additionalProperties": {"enum": list(range(100))}}, {"type": "string"}]},
    ],
    ids=lambda schema: next(iter(schema)),
)
def test_unnarrowable_large_value_is_named_with_place(errors_made: list[int], schema: JsonObject) -> None:
    found = faults({"properties": {"x": schema}}, {"x": dict.fromkeys(map(str, range(20_000)), "y")})

    assert found == [
        "args.x: an object of 20000 fields does not match the schema, and is too large to say where"
    ]
    assert sum(errors_made) == 0


def test_missing_field_of_large_object_is_named() -> None:
    args = {"texts": ["x"] * 5_000, "cmd": "ls"}

    found = faults({**COMMAND, "properties": {**COMMAND["properties"], "texts": {}}}, args)

    assert found == ["'command' is required", "unknown argument 'cmd'; did you mean 'command'?"]


def test_fault_that_quotes_long_schema_is_shortened() -> None:
    forms = [{"type": "object", "required": [f"name-{number}"]} for number in range(2_000)]

    (fault,) = faults({"properties": {"x": {"anyOf": forms}}}, {"x": {}})

    assert fault.startswith('args.x: an object of 0 fields matches none of the allowed forms: (1) "name-0"')
    assert len(fault) == MAX_FAULT_CHARACTERS


def patterns(count: int, form: str) -> JsonObject:
    return {form.format(number): {"type": "integer"} for number in range(count)}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"items": {"enum": [{"k": number} for number in range(5_000)]}}, [{"k": 4_999}] * 5_000),
        ({"patternProperties": patterns(5_000, "^p{}[a-z]*$")}, dict.fromkeys(map(str, range(50_000)), 1)),
        ({"allOf": [{"uniqueItems": True}] * 5_000}, [{"k": number} for number in range(10_000)]),
        ({"items": {"allOf": [{"minLength": 1}] * 10_000}}, ["x"] * 50_000),
    ],
    ids=["enum of objects", "patternProperties", "uniqueItems", "allOf"],
)
def test_arguments_too_large_for_their_schema_are_refused(schema: JsonObject, value: Any) -> None:
    (fault,) = faults({"properties": {"x": schema}}, {"x": value})

    assert fault.startswith("the arguments are too large for their schema, with ")
    assert faults({"properties": {"x": schema}}, {}) == []


def test_many_values_pass_large_but_plain_schema() -> None:
    row = {"type": "object", "properties": {f"p{number}": {"type": "integer"} for number in range(1_000)}}

    assert faults(listed(row), {"x": [{"p1": 1, "p2": 2}] * 20_000}) == []


def unevaluated(levels: int) -> JsonObject:
    schema: JsonObject = {"properties": {"p": {}}}
    for level in range(levels):
        forms: list[JsonObject] = [{"properties": {f"q{level}": {}}}]
        schema = {"allOf": [schema], "unevaluatedProperties": False, "anyOf": forms}
    return schema


@pytest.mark.parametrize(
    ("parameters", "part"),
    [
        (unevaluated(18), "checks one value up to"),
        ({"allOf": [{"enum": [[number] for number in range(12_000)]}]}, "checks one value up to"),
        ({"$defs": {str(number): {"$id": f"urn:{number}"} for number in range(300)}}, r"have an \$id"),
    ],
    ids=["unevaluated", "enum", "ids"],
)
def test_schema_with_too_many_checks_is_refused(parameters: JsonObject, part: str) -> None:
    with pytest.raises(SchemaError, match=part):
        compile_schema(parameters)


@pytest.mark.parametrize("texts", [1, 5_000])
def test_look_around_patterns_check_one_or_many_texts(texts: int) -> None:
    schema = listed({"pattern": "^(?!tmp/)[a-z/]+$"})

    assert faults(schema, {"x": ["src/main"] * texts}) == []
    assert faults(schema, {"x": [*["src/main"] * texts, "tmp/a"]}) == [
        f'args.x[{texts}]: "tmp/a" does not match "^(?!tmp/)[a-z/]+$"'
    ]


@pytest.mark.parametrize(
    "parameters",
    [
        nested(100_000, {}),
        {"pattern": "a" * 2_000_000},
        {"pattern": "(((a{1,500}){1,500}){1,500}){1,500}"},
    ],
    ids=["deep", "long", "huge regex"],
)
def test_schema_too_large_to_compile_is_refused(parameters: JsonObject) -> None:
    with pytest.raises(SchemaError):
        compile_schema(parameters)


def test_one_schema_serves_many_threads() -> None:
    schema = compile_schema(TREE)
    found: list[list[str]] = []
    threads = [threading.Thread(target=lambda: found.append(schema.faults({"value": "x"}))) for _ in range(8)]

    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert found == [['args.value: "x" is not of type "integer"']] * 8


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=20,
)


@given(args=JSON)
def test_no_value_makes_check_raise(args: Any) -> None:
    found = compile_schema(COMMAND).faults(args)

    assert all(found)


@given(parameters=JSON, args=JSON)
def test_any_value_is_schema_or_is_refused(parameters: Any, args: Any) -> None:
    try:
        schema = compile_schema(parameters)
    except SchemaError as refusal:
        assert refusal.message
    else:
        assert isinstance(schema.faults(args), list)
