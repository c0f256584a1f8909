"""The OpenAPI 3.1 document, made from the table of operations and the models of the records."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from importlib.metadata import version
from typing import Literal

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, models_json_schema
from pydantic_core import core_schema

from goondan_tasks.contract.errors import BrokerUnreachableError, GoondanError, PayloadTooLargeError
from goondan_tasks.contract.messages import JsonObject
from goondan_web.answers import JSON, ForbiddenError, RequestError, UnauthorizedError, status_of_kind
from goondan_web.doors.api.operations import Content, Operation
from goondan_web.doors.api.wire import ErrorAnswer, Omissible

_REF = "#/components/schemas/{model}"
_NAMES = re.compile(r"\{(\w+)\}")
#: of a call: who needs no ``read``
_ASKERS = {
    "read": ", or `call:{agent}` if it was begun for the user of the token",
    "call:{agent}": ", and `read` unless it was begun for the user of the token",
}
_Mode = Literal["validation", "serialization"]
#: what every operation may be answered with
_COMMON: dict[int, tuple[type[GoondanError], ...]] = {
    400: (RequestError,),
    401: (UnauthorizedError,),
    403: (ForbiddenError,),
    408: (RequestError,),
    431: (RequestError,),
    500: (GoondanError,),
    503: (BrokerUnreachableError,),
}
_OF_BODIES: dict[int, tuple[type[GoondanError], ...]] = {413: (PayloadTooLargeError,), 415: (RequestError,)}
_DESCRIPTION = """\
Turns and tool calls of agents, and what operators do with them. Errors have one form; their codes are stable.
Lists come in pages: send `nextCursor` as `cursor` until it is null."""


class _Schemas(GenerateJsonSchema):
    """Says of what is answered that a field is there unless it may be null: some answers leave these out."""

    def field_is_required(
        self,
        field: core_schema.ModelField | core_schema.DataclassField | core_schema.TypedDictField,
        total: bool,
    ) -> bool:
        schema = field["schema"]
        if self.mode == "serialization" and schema["type"] == "default":
            return schema.get("default", self) is not None
        return super().field_is_required(field, total)


def document(operations: Sequence[Operation]) -> JsonObject:
    """Return the document of these operations."""
    modes = dict(_models(operations))
    references, components = models_json_schema(
        list(modes.items()), by_alias=True, ref_template=_REF, schema_generator=_Schemas
    )
    schemas = {model: references[model, mode] for model, mode in modes.items()}
    paths: dict[str, JsonObject] = defaultdict(dict)
    for operation in operations:
        paths[operation.path][operation.method.lower()] = _described(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Goondan Workers",
            "version": version("goondan-workers"),
            "description": _DESCRIPTION,
        },
        "paths": dict(paths),
        "components": {
            "schemas": components.get("$defs", {}),
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _models(operations: Iterable[Operation]) -> Iterator[tuple[type[BaseModel], _Mode]]:
    yield ErrorAnswer, "serialization"
    for operation in operations:
        if operation.body is not None:
            yield operation.body, "validation"
        for content in operation.answers.values():
            if content.model is not None:
                yield content.model, "serialization"
            for item in content.items:
                yield item, "serialization"


def _described(operation: Operation, schemas: dict[type[BaseModel], JsonObject]) -> JsonObject:
    who = _ASKERS[operation.scope] if operation.is_for_askers else ""
    described: JsonObject = {
        "operationId": operation.name,
        "tags": [operation.tag],
        "summary": operation.summary,
        "description": f"Scope: `{operation.scope}`{who}.",
        "security": [{"token": []}],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation), *_headers(operation)],
        "responses": {
            **{str(status): _answer(content, schemas) for status, content in operation.answers.items()},
            **{str(status): _error(kinds, schemas) for status, kinds in _errors_of(operation).items()},
        },
    }
    if operation.body is not None:
        content = {JSON: {"schema": schemas[operation.body]}}
        described["requestBody"] = {"required": not issubclass(operation.body, Omissible), "content": content}
    return described


def _path_parameters(operation: Operation) -> Iterator[JsonObject]:
    for name in _NAMES.findall(operation.path):
        yield {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}


def _query_parameters(operation: Operation) -> Iterator[JsonObject]:
    schema = operation.query.model_json_schema(by_alias=True)
    for name, field in schema.get("properties", {}).items():
        said = {key: field.pop(key) for key in ("description",) if key in field}
        kinds = [one for one in field.pop("anyOf", ()) if one != {"type": "null"}]
        if kinds:  # a parameter that is not given is left out, and not null
            field.pop("default", None)
            field |= kinds[0]
        yield {"name": name, "in": "query", **said, "schema": field}


def _headers(operation: Operation) -> Iterator[JsonObject]:
    for name, said in operation.headers.items():
        yield {"name": name, "in": "header", **said}


def _answer(content: Content, schemas: dict[type[BaseModel], JsonObject]) -> JsonObject:
    schema = {} if content.model is None else schemas[content.model]
    answer: JsonObject = {
        "description": content.description,
        "content": {content.media_type: {"schema": schema}},
    }
    if content.items:
        answer["x-items"] = [schemas[item] for item in content.items]
    if content.headers:
        answer["headers"] = {
            name: {"description": text, "schema": {"type": "string"}}
            for name, text in content.headers.items()
        }
    return answer


def _errors_of(operation: Operation) -> dict[int, list[type[GoondanError]]]:
    found: dict[int, list[type[GoondanError]]] = defaultdict(list)
    common = {**_COMMON, **(_OF_BODIES if operation.body is not None else {})}
    for status, kinds in common.items():
        found[status] += kinds
    for kind in operation.errors:
        found[status_of_kind(kind)].append(kind)
    return {status: list(dict.fromkeys(found[status])) for status in sorted(found)}


def _error(kinds: Iterable[type[GoondanError]], schemas: dict[type[BaseModel], JsonObject]) -> JsonObject:
    codes = ", ".join(f"`{kind.code}`" for kind in kinds)
    return {"description": f"Refused: {codes}.", "content": {JSON: {"schema": schemas[ErrorAnswer]}}}
