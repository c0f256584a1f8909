"""What a handler of the older version is called with (002 §4.1, §4.3)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from goondan_tasks.bundle.resources import AgentResource, SwarmResource
from goondan_tasks.messages import JsonObject
from goondan_tasks.output import Pending
from goondan_tasks.tool_api import AgentRuntime, Logger, ReportProgress, RunProcess, ToolContext
from goondan_tasks.v1_api.records import Step, SwarmInstance, Turn, V1CatalogItem
from goondan_tasks.v1_api.services import EventBus, OAuthApi, SwarmBundle

#: called with :class:`V1ToolContext` and the arguments; plain or ``async``
V1Handler = Callable[["V1ToolContext", JsonObject], Any]


@dataclass(frozen=True, slots=True)
class V1ToolContext:
    """What a handler of the older version knows of its call, and what it may use (002 §4.3).

    ``workdir`` and what follows it are ours: no worker has a current directory for each call, so file tools
    begin at ``ctx.workdir``.
    """

    instance: SwarmInstance
    swarm: SwarmResource
    agent: AgentResource
    turn: Turn
    step: Step
    #: the catalog of the Step
    tool_catalog: Sequence[V1CatalogItem]
    swarm_bundle: SwarmBundle
    oauth: OAuthApi
    events: EventBus
    logger: Logger
    _run: ToolContext = field(repr=False)

    @property
    def workdir(self) -> Path:
        """The instance's directory, which exists."""
        return self._run.workdir

    @property
    def tool_call_id(self) -> str:
        """The id of the call."""
        return self._run.tool_call_id

    @property
    def run_process(self) -> RunProcess:
        """Runs a program that dies with its deadline, the call or the worker."""
        return self._run.run_process

    @property
    def progress(self) -> ReportProgress:
        """Tells the caller how far the run has come."""
        return self._run.progress

    @property
    def deadline(self) -> datetime | None:
        """The moment (UTC) the run must end; ``None`` without a limit."""
        return self._run.deadline

    @property
    def runtime(self) -> AgentRuntime | None:
        """The other agents of the swarm; ``None`` where they cannot be reached."""
        return self._run.runtime

    @property
    def cancelled(self) -> bool:
        """Whether nobody wants the result any more: see :attr:`ToolContext.cancelled`."""
        return self._run.cancelled

    @property
    def callback_url(self) -> str:
        """Where the call can be completed by ``POST``: see :attr:`ToolContext.callback_url`.

        Raises:
            ToolError: ``GOONDAN_PUBLIC_URL`` is not set.
        """
        return self._run.callback_url

    def pending(self, handle: str, output: Any = None, *, ttl_seconds: float | None = None) -> Pending:
        """Return what a handler returns whose work goes on elsewhere: see :meth:`ToolContext.pending`.

        The document's ``{"__async": True, "handle": …}`` means the same (002 §6.3).

        Raises:
            ToolOutputError: the handle is no text, or the time is none.
        """
        return self._run.pending(handle, output, ttl_seconds=ttl_seconds)
