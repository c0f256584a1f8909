"""The Tool Catalog: what one agent may call, as the model and its provider want to see it (003 §11)."""

import hashlib
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from goondan_tasks.bundle.bundle import Bundle
from goondan_tasks.bundle.provider_schema import original_arguments, provider_schema
from goondan_tasks.messages import JsonObject, WireModel

#: what OpenAI and Anthropic accept as the name of a tool
_PROVIDER_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_FORBIDDEN = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST_LENGTH = 8


class McpSource(WireModel):
    """The MCP server that a tool comes from."""

    extension_name: str
    server_name: str | None = None


class ToolSource(WireModel):
    """Where a tool comes from: a Tool resource, an Extension, or an MCP server."""

    type: Literal["config", "extension", "mcp"]
    name: str
    mcp: McpSource | None = None


class CatalogItem(WireModel):
    """One tool as the model sees it (003 §11.1, ToolCatalogItem)."""

    name: str
    description: str | None = None
    parameters: JsonObject | None = None
    source: ToolSource


@dataclass(frozen=True, slots=True)
class ToolCatalog(Sequence[CatalogItem]):
    """The tools of one Step; of two with the same name, the last.

    The order stays the same, so that providers can cache the prompt.
    """

    items: tuple[CatalogItem, ...]
    _by_name: dict[str, CatalogItem] = field(init=False, repr=False, compare=False)
    _original: dict[str, str] = field(init=False, repr=False, compare=False)
    _provided: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the items and choose the names that providers see."""
        by_name = {item.name: item for item in self.items}
        object.__setattr__(self, "items", tuple(by_name.values()))
        original = _provider_names(by_name)
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_original", original)
        object.__setattr__(self, "_provided", {name: short for short, name in original.items()})

    @overload
    def __getitem__(self, index: int) -> CatalogItem: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[CatalogItem]: ...
    def __getitem__(self, index: int | slice) -> CatalogItem | Sequence[CatalogItem]:
        """Return an item by its place."""
        return self.items[index]

    def __len__(self) -> int:
        """Return the number of tools."""
        return len(self.items)

    @property
    def names(self) -> tuple[str, ...]:
        """The full names of the tools."""
        return tuple(self._by_name)

    def item(self, name: str) -> CatalogItem | None:
        """Return the tool of that full name."""
        return self._by_name.get(name)

    def provider_name(self, name: str) -> str:
        """Return the name a provider gets; one that it forbids becomes a short one (DESIGN §6)."""
        return self._provided.get(name, name)

    def original_name(self, provider_name: str) -> str:
        """Return the full name behind a provider's; what the catalog does not know stays as it is."""
        return self._original.get(provider_name, provider_name)

    def original_args(self, provider_name: str, args: Any) -> Any:
        """Return the arguments that a tool takes, given those with which a provider's model has called it.

        A schema that providers refuse reaches the model below one property, ``arguments``; args of any other
        tool stay as they are.
        """
        item = self._by_name.get(self.original_name(provider_name))
        return args if item is None else original_arguments(item.parameters, args)

    def to_wire(self) -> list[JsonObject]:
        """Return the catalog in the specification's own form (003 §11.2)."""
        return [item.to_wire() for item in self.items]

    def to_openai(self) -> list[JsonObject]:
        """Return the ``tools`` of OpenAI's chat completions; :meth:`original_args` reads what comes back."""
        return [
            {
                "type": "function",
                "function": self._described(item, parameters=provider_schema(item.parameters)),
            }
            for item in self.items
        ]

    def to_anthropic(self) -> list[JsonObject]:
        """Return the ``tools`` of Anthropic's messages; :meth:`original_args` reads what comes back."""
        return [self._described(item, input_schema=provider_schema(item.parameters)) for item in self.items]

    def to_mcp(self) -> list[JsonObject]:
        """Return the ``tools`` of an MCP ``tools/list`` result; MCP takes full names, any object schema."""
        return [
            {**self._described(item, inputSchema=_object_schema(item.parameters)), "name": item.name}
            for item in self.items
        ]

    def _described(self, item: CatalogItem, **schema: JsonObject) -> JsonObject:
        described: JsonObject = {"name": self.provider_name(item.name)}
        if item.description is not None:
            described["description"] = item.description
        return {**described, **schema}


def build_catalog(bundle: Bundle, agent: str) -> ToolCatalog:
    """Build the catalog of an agent from its ``spec.tools`` (001 §12.1 rule 2).

    Raises:
        AgentNotFoundError: the bundle has no such agent.
    """
    return ToolCatalog(
        tuple(
            CatalogItem(
                name=bound.name,
                description=bound.export.description,
                parameters=bound.export.parameters,
                source=ToolSource(type="config", name=bound.tool.name),
            )
            for bound in bundle.bound_tools(agent).values()
        )
    )


def _object_schema(parameters: Any) -> JsonObject:
    """Return parameters with ``type: object`` and ``properties``."""
    return {"type": "object", "properties": {}, **(parameters or {})}


def _provider_names(names: Collection[str]) -> dict[str, str]:
    """Map provider names to full names: allowed ones stay, others get a digest, longer if it is taken."""
    mapping = {name: name for name in names if _PROVIDER_NAME.fullmatch(name)}
    for name in names:
        length = _DIGEST_LENGTH
        while (
            not _PROVIDER_NAME.fullmatch(name) and mapping.setdefault(_shortened(name, length), name) != name
        ):
            length += 1
    return mapping


def _shortened(name: str, length: int) -> str:
    digest = hashlib.sha256(name.encode("utf-8", "backslashreplace")).hexdigest()[:length]
    return f"{_FORBIDDEN.sub('_', name)[: 63 - length]}-{digest}"
