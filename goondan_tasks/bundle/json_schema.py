"""The JSON Schema of a bundle's documents, for editors, made from the models of the resources.

It covers fields and their types; ``goondan validate`` checks the rest, such as references.
"""

import re
from collections.abc import Iterator
from typing import Any

from pydantic.json_schema import models_json_schema

from goondan_tasks.authoring.typed_tools import UntitledSchema
from goondan_tasks.bundle.inventory import MODELS
from goondan_tasks.bundle.resource import API_VERSION, V1_API_VERSION, Resource
from goondan_tasks.contract.messages import JsonObject

#: the draft that every editor supports
DRAFT = "http://json-schema.org/draft-07/schema#"
#: references to the specification, which are of no use in an editor
_SOURCE = re.compile(r" \([^()]*(§|appendix|our fields)[^()]*\)")


class _Schema(UntitledSchema):
    """Omits the default null, which users should not write."""

    def default_schema(self, schema: Any) -> JsonObject:
        made = super().default_schema(schema)
        return {name: value for name, value in made.items() if name != "default" or value is not None}


def bundle_schema() -> JsonObject:
    """Return the JSON Schema of a document, whose ``kind`` and ``apiVersion`` decide its fields."""
    models = {model for of_version in MODELS.values() for model in of_version.values()}
    ordered = sorted(models, key=lambda model: model.__name__)
    refs, made = models_json_schema([(model, "validation") for model in ordered], schema_generator=_Schema)
    for definition in made["$defs"].values():
        if "description" in definition:
            definition["description"] = _SOURCE.sub("", definition["description"]).replace("``", "`")
    return {
        "$schema": DRAFT,
        "title": "A resource of a Goondan bundle",
        "type": "object",
        "required": ["apiVersion", "kind", "metadata"],
        "properties": {"apiVersion": {"enum": list(MODELS)}, "kind": {"enum": list(MODELS[API_VERSION])}},
        "allOf": [{"if": condition, "then": refs[model, "validation"]} for condition, model in _conditions()],
        "$defs": made["$defs"],
    }


def _conditions() -> Iterator[tuple[JsonObject, type[Resource]]]:
    """Yield the condition for each model; any other version counts as the current one."""
    older = {"const": V1_API_VERSION}
    for version, is_version in ((API_VERSION, {"not": older}), (V1_API_VERSION, older)):
        for kind, model in MODELS[version].items():
            fields = {"apiVersion": is_version, "kind": {"const": kind}}
            yield {"properties": fields, "required": list(fields)}, model
