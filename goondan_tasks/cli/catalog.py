"""``goondan catalog``: the tools that an agent's model may call, in the form that a provider wants."""

from collections.abc import Callable
from enum import StrEnum
from typing import Annotated, Any

import typer

from goondan_tasks.bundle import CatalogItem, ToolCatalog, build_catalog, load_bundle
from goondan_tasks.cli.output import Output
from goondan_tasks.cli.selection import chosen_agents
from goondan_tasks.cli.session import Session, takes_session
from goondan_tasks.errors import BrokerUnreachableError


class Format(StrEnum):
    """How the catalog is written: for people, or as the JSON of the specification or a provider."""

    TABLE = "table"
    JSON = "json"
    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    MCP = "mcp"


_WRITERS: dict[Format, Callable[[ToolCatalog], Any]] = {
    Format.JSON: ToolCatalog.to_wire,
    Format.OPENAI: ToolCatalog.to_openai,
    Format.ANTHROPIC: ToolCatalog.to_anthropic,
    Format.MCP: ToolCatalog.to_mcp,
}


@takes_session
def catalog(
    session: Session,
    agent: Annotated[str, typer.Argument(metavar="AGENT", help="Whose tools.")],
    form: Annotated[Format, typer.Option("--format", help="How to write them.")] = Format.TABLE,
) -> None:
    """Print an agent's Tool Catalog: from the bundle, or as its workers announced it if none is set.

    An agent with extensions may have more tools than its bundle says: those are asked for as well."""
    tools = _catalog(session, agent)
    if session.output.as_json and form is Format.TABLE:
        form = Format.JSON
    if form is Format.TABLE:
        return _show(tools, session.output)
    return session.output.document(_WRITERS[form](tools))


def _catalog(session: Session, agent: str) -> ToolCatalog:
    settings = session.settings
    if settings.bundle is not None:
        bundle = load_bundle(settings.bundle)
        [name] = chosen_agents(bundle, settings.swarm, [agent])
        declared = build_catalog(bundle, name)
        return _with_dynamic_tools(session, name, declared) if bundle.bound_extensions(name) else declared
    return _announced(session, agent)


def _with_dynamic_tools(session: Session, agent: str, declared: ToolCatalog) -> ToolCatalog:
    try:
        return _announced(session, agent)
    except BrokerUnreachableError as error:
        session.output.note(f"Without the tools of the agent's extensions: {error.message}")
        return declared


def _announced(session: Session, agent: str) -> ToolCatalog:
    with session.client() as client:
        return ToolCatalog(tuple(map(CatalogItem.from_wire, client.catalog(agent))))


def _show(tools: ToolCatalog, output: Output) -> None:
    rows = [(item.name, _arguments(item), item.source.name, item.description) for item in tools]
    output.table(("tool", "arguments", "from", "description"), rows, unbroken="tool", spare={"from"})


def _arguments(item: CatalogItem) -> str:
    """Name the arguments; those that may be left out in brackets."""
    parameters = item.parameters or {}
    required = parameters.get("required") or []
    names = parameters.get("properties") or {}
    return " ".join(name if name in required else f"[{name}]" for name in names)
