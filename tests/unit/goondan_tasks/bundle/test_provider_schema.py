"""Parameters as model providers accept them, and arguments back."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema_rs import Draft202012Validator

from goondan_tasks.contract.catalog import original_arguments, provider_schema
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.schema import compile_schema, pointed

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
TEXT = {"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]}
TREE = {"type": "object", "properties": {"leaf": {"type": "integer"}, "child": {"$ref": "#/$defs/tree"}}}

REFUSED = {"anyOf", "oneOf", "allOf", "not", "enum", "const", "$ref", "$dynamicRef"}


def is_accepted(schema: JsonObject) -> bool:
    """Say whether providers take a schema, and its references lead somewhere."""
    compile_schema(schema)
    return schema["type"] == "object" and "properties" in schema and not REFUSED & schema.keys()


def wrapped(args: Any) -> JsonObject:
    return {"arguments": args}


@pytest.mark.parametrize("keyword", ["anyOf", "oneOf"])
def test_union_at_top_is_shown_below_one_property(keyword: str) -> None:
    shown = provider_schema({keyword: [NUMBER, TEXT], "description": "One of two."})

    assert is_accepted(shown)
    assert shown["description"] == "One of two."
    assert shown["properties"]["arguments"][keyword] == [NUMBER, TEXT]
    assert original_arguments({keyword: [NUMBER, TEXT]}, wrapped({"n": 1})) == {"n": 1}


def test_top_reference_is_followed_keeping_definitions() -> None:
    shown = provider_schema({"$ref": "#/$defs/tree", "$defs": {"tree": TREE}, "title": "A tree."})

    assert shown == {**TREE, "title": "A tree.", "$defs": {"tree": TREE}}


def test_all_of_plain_objects_becomes_one_object() -> None:
    schema = {"allOf": [{"$ref": "#/definitions/number"}, TEXT], "definitions": {"number": NUMBER}}

    shown = provider_schema(schema)

    assert shown["properties"] == {"n": {"type": "integer"}, "s": {"type": "string"}}
    assert shown["required"] == ["n", "s"]
    assert original_arguments(schema, {"n": 1, "s": "x"}) == {"n": 1, "s": "x"}


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"minimum": 1}, {"maximum": 3}, {"allOf": [{"minimum": 1}, {"maximum": 3}]}),
        ({"const": 1}, {"const": True}, {"allOf": [{"const": 1}, {"const": True}]}),
        ({"type": "integer"}, {"type": "integer"}, {"type": "integer"}),
    ],
)
def test_all_of_property_must_fit_both_parts(one: JsonObject, other: JsonObject, both: JsonObject) -> None:
    shown = provider_schema({"allOf": [{"properties": {"n": one}}, {"properties": {"n": other}}]})

    assert shown["properties"]["n"] == both


@pytest.mark.parametrize(
    "schema",
    [
        NUMBER,
        {"type": "object", "properties": {}, "$defs": {"tree": TREE}},
        {**TREE, "properties": {"child": {"$ref": "#"}}},
        {"type": "object", "properties": {"anyOf": {"type": "string"}, "not": {"type": "string"}}},
    ],
)
def test_schema_accepted_by_providers_is_unchanged(schema: JsonObject) -> None:
    assert provider_schema(schema) == schema
    assert original_arguments(schema, wrapped({})) == wrapped({})


@pytest.mark.parametrize("parameters", [None, {}, {"type": ["object", "null"]}, {"type": "object"}])
def test_schema_without_properties_gets_none(parameters: JsonObject | None) -> None:
    assert provider_schema(parameters) == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    "schema",
    [
        {"$ref": "#"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}},
        {"$ref": "#/$defs/gone"},
        {"$ref": "#there", "$defs": {"a": {"$anchor": "there", **NUMBER}}},
        {"$id": "https://example.com/a", "anyOf": [{"$ref": "#/$defs/n"}], "$defs": {"n": NUMBER}},
        {"$dynamicAnchor": "x", "oneOf": [NUMBER, {"properties": {"x": {"$dynamicRef": "#x"}}}]},
        {"allOf": [False]},
        {"type": "string"},
        {"enum": [{"n": 1}, 2]},
        {"not": {"required": ["n"]}},
        {"properties": {"child": {"$ref": "#"}}},
        {"type": "object", "$ref": "#/properties/n", "properties": {"n": NUMBER}},
        {"type": "object", "anyOf": [{"required": ["arguments"]}], "properties": {"arguments": {}}},
    ],
)
def test_any_other_schema_is_accepted_too(schema: JsonObject) -> None:
    shown = provider_schema(schema)

    assert shown["type"] == "object"
    assert not REFUSED & shown.keys()
    [name] = shown["properties"]
    assert original_arguments(schema, {name: {"n": 1}}) == {"n": 1}


def test_tools_arguments_property_differs_from_added_one() -> None:
    schema = {"anyOf": [{"properties": {"arguments": {"type": "object"}}}, NUMBER]}

    assert list(provider_schema(schema)["properties"]) == ["arguments_"]
    assert original_arguments(schema, wrapped({"n": 1})) == wrapped({"n": 1})


@pytest.mark.parametrize("args", [{"n": 1}, {}, {"arguments": 5}, {"arguments": {}, "n": 1}, [], None, "x"])
def test_answer_without_added_property_is_unchanged(args: Any) -> None:
    assert original_arguments({"anyOf": [NUMBER, TEXT]}, args) == args


NAMES = st.sampled_from(["a", "b", "arguments", "$ref", "enum", "properties"])
REFERENCES = st.sampled_from(["#", "#/$defs/x", "#/$defs/y", "#/%24defs/x", "#/definitions/z"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["", "x"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=6,
)
ARGS = st.dictionaries(NAMES, VALUES, max_size=3)
TYPES = st.sampled_from(["object", "string", "integer", ["object", "null"]])


def keywords(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[JsonObject]:
    some = st.lists(inner, min_size=1, max_size=3)
    return st.fixed_dictionaries(
        {},
        optional={
            "type": TYPES,
            "title": st.just("T"),
            "properties": st.dictionaries(NAMES, inner, max_size=3),
            "additionalProperties": inner,
            "unevaluatedProperties": st.booleans(),
            "patternProperties": st.dictionaries(st.just("^a"), inner, max_size=1),
            "required": st.lists(NAMES, max_size=2, unique=True),
            "minProperties": st.integers(0, 2),
            "enum": st.lists(ARGS, min_size=1, max_size=2),
            "anyOf": some,
            "oneOf": some,
            "allOf": some,
            "not": inner,
            "if": inner,
            "then": inner,
            "$ref": REFERENCES,
        },
    )


SCHEMAS = st.recursive(
    st.booleans() | keywords(st.booleans()) | st.builds(lambda ref: {"$ref": ref}, REFERENCES),
    keywords,
    max_leaves=6,
)
OBJECTS = st.builds(
    lambda schema, x, y, z: {
        **(schema if isinstance(schema, dict) else {}),
        "$defs": {"x": x, "y": y},
        "definitions": {"z": z},
    },
    SCHEMAS,
    SCHEMAS,
    SCHEMAS,
    SCHEMAS,
)


def has_meaning(schema: JsonObject) -> bool:
    """Say whether no reference leads in a circle without going into the value."""

    def ends(node: Any, path: tuple[int, ...]) -> bool:
        if not isinstance(node, dict):
            return True
        if id(node) in path:
            return False
        same = [node[keyword] for keyword in ("not", "if", "then") if keyword in node]
        same += [part for keyword in ("anyOf", "oneOf", "allOf") for part in node.get(keyword, ())]
        if isinstance(node.get("$ref"), str):
            same.append(pointed(schema, unquote(node["$ref"])))
        return all(ends(part, (*path, id(node))) for part in same)

    def subschemas(node: Any) -> Iterator[Any]:
        yield node
        for part in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            yield from subschemas(part)

    return all(ends(node, ()) for node in subschemas(schema))


@given(OBJECTS.filter(has_meaning), st.lists(ARGS, max_size=6))
def test_provider_schema_accepts_tools_arguments_and_maps_back(
    schema: JsonObject, candidates: list[JsonObject]
) -> None:
    shown = provider_schema(schema)
    assert is_accepted(shown)
    original = Draft202012Validator(schema, offline=True)
    exported = Draft202012Validator(shown, offline=True)
    for args in candidates:
        answers = [args, *({name: args} for name in shown["properties"])]
        answers = [answer for answer in answers if exported.is_valid(answer)]
        if original.is_valid(args):
            assert any(original_arguments(schema, answer) == args for answer in answers), (args, shown)
        # what stands below the added property may be no object if the schema refers to itself
        answers = [answer for answer in answers if isinstance(answer.get("arguments", {}), dict)]
        for answer in answers:
            assert original.is_valid(original_arguments(schema, answer)), (answer, shown)


def test_refused_property_names_are_mapped_both_ways() -> None:
    filters = {"type": "object", "properties": {"@eq": {"type": "string"}}, "required": ["@eq"]}
    schema = {
        "type": "object",
        "properties": {
            "$top": {"type": "integer"},
            "name" * 20: {"$ref": "#/properties/$top"},
            "filters": {"type": "array", "items": {"$ref": "#/$defs/filter"}},
            "properties": {"type": "object", "properties": {"größe": {"const": {"$top": 1}}}},
            "plain.name-1_a": {"type": "string"},
        },
        "required": ["$top", "filters"],
        "dependentRequired": {"$top": ["name" * 20]},
        "$defs": {"filter": filters},
    }
    shown = provider_schema(schema)
    assert is_accepted(shown)
    top, long, *others = shown["properties"]
    assert others == ["filters", "properties", "plain.name-1_a"]
    assert (top[:5], long[:4], len(long)) == ("_top-", "name", 64)
    assert shown["required"] == [top, "filters"]
    assert shown["dependentRequired"] == {top: [long]}
    assert shown["properties"][long] == {"$ref": f"#/properties/{top}"}
    [equal] = shown["$defs"]["filter"]["properties"]
    [size] = shown["properties"]["properties"]["properties"]
    args = {top: 5, long: 6, "filters": [{equal: "x"}], "properties": {size: {"$top": 1}}}
    assert compile_schema(shown).faults(args) == []
    original = {"$top": 5, "name" * 20: 6, "filters": [{"@eq": "x"}], "properties": {"größe": {"$top": 1}}}
    assert original_arguments(schema, args) == original
    assert compile_schema(schema).faults(original) == []


def test_mapped_names_of_wrapped_arguments_are_mapped_back() -> None:
    schema = {
        "anyOf": [{"type": "object", "properties": {"$n": {"type": "integer"}}, "required": ["$n"]}, TEXT]
    }
    shown = provider_schema(schema)
    [name] = shown["properties"]["arguments"]["anyOf"][0]["properties"]
    assert original_arguments(schema, wrapped({name: 1})) == {"$n": 1}


def test_mapped_name_does_not_depend_on_other_properties() -> None:
    def shown(*names: str) -> list[str]:
        return list(
            provider_schema({"type": "object", "properties": {key: {} for key in names}})["properties"]
        )

    assert shown("$top", "$skip")[0] == shown("$top")[0]
    assert shown("a b", "a_b") != shown("a_b", "a b")
    assert len({*shown("a b", "a:b", "a_b")}) == 3


OPTIONAL = {
    "type": "object",
    "properties": {
        "n": {"type": "integer"},
        "needed": {"type": "integer"},
        "free": {},
        "nullable": {"type": ["integer", "null"]},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "by_name": {"$ref": "#/$defs/number"},
        "inner": {"type": "object", "properties": {"s": {"type": "string"}}},
        "list": {"type": "array", "items": {"$ref": "#/$defs/item"}},
    },
    "required": ["needed"],
    "$defs": {
        "number": {"type": "number"},
        "item": {"allOf": [{"type": "object", "properties": {"x": {"enum": ["a", "b"]}}}]},
    },
}


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"n": None}, {}),
        ({"needed": None}, {"needed": None}),
        ({"free": None, "nullable": None, "either": None}, {"free": None, "nullable": None, "either": None}),
        ({"by_name": None, "inner": {"s": None}}, {"inner": {}}),
        ({"list": [{"x": None}, None]}, {"list": [{}, None]}),
        ({"unknown": None}, {"unknown": None}),
    ],
)
def test_null_for_optional_non_nullable_property_is_dropped(written: JsonObject, meant: JsonObject) -> None:
    assert original_arguments(OPTIONAL, written) == meant
