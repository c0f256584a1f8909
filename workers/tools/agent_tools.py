"""An Agent with an entry, as the tool of which its events are calls (``goondan_tasks.events``)."""

from typing import Any

from goondan_tasks.agent_api import AgentContext, AgentHandler
from goondan_tasks.bundle import BoundTool, Bundle
from goondan_tasks.bundle.binding import bound_exports
from goondan_tasks.bundle.resources import API_VERSION, ToolResource
from goondan_tasks.entry import handle_in
from goondan_tasks.errors import HandoffError
from goondan_tasks.messages import JsonObject
from goondan_tasks.names import SYSTEM_TOOL
from goondan_tasks.schema import compile_schema
from workers.handlers import is_async_handler
from workers.tools.entry_files import EntryFiles
from workers.tools.registered_tool import RegisteredTool


def bound_agent(bundle: Bundle, agent: str) -> BoundTool | None:
    """Return what an Agent declares about the handling of its events; ``None`` if it has no entry."""
    spec = bundle.agents[agent].spec
    if spec.entry is None:
        return None
    resource = {
        "apiVersion": API_VERSION,
        "kind": "Tool",
        "metadata": {"name": SYSTEM_TOOL},
        "spec": {"entry": spec.entry, "exports": [{"name": agent, "idempotent": spec.idempotent}]},
    }
    [bound] = bound_exports(ToolResource.model_validate(resource), bundle.root)
    return bound


def load_agent(bundle: Bundle, agent: str, files: EntryFiles) -> RegisteredTool:
    """Return an Agent with its ``handle``, ready to run.

    Raises:
        HandoffError: it has no entry.
        EntryError: the entry cannot be used.
    """
    bound = bound_agent(bundle, agent)
    if bound is None:
        raise HandoffError(f"Agent {agent!r} has no entry: its events are fetched by Client.receive.")
    handle = files.load(bound.entry_path, handle_in)
    return RegisteredTool(bound, _handler(handle), compile_schema(None), is_async_handler(handle))


def _handler(handle: AgentHandler) -> Any:
    def handle_event(ctx: AgentContext, _: JsonObject) -> Any:
        return handle(ctx, ctx.event)

    return handle_event
