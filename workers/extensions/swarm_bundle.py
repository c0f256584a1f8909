"""What agents change their bundle with: see :class:`goondan_tasks.changesets.api.SwarmBundleApi`."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from goondan_tasks.changesets.api import ChangesetError, SwarmBundleApi
from goondan_tasks.messages import ToolCall
from workers.concurrency.beside_loop import beside_loop, is_on_loop
from workers.concurrency.threads import on_new_thread
from workers.extensions.running import running_for

#: what the agent of a call changes its bundle with, which blocks; ``None`` where it cannot be changed
SwarmBundleFor = Callable[[ToolCall], SwarmBundleApi | None]


def no_swarm_bundle(_call: ToolCall) -> None:
    """Say that nothing can be changed: there is no worker, or its bundle does not stand in git."""
    return


@dataclass(frozen=True, slots=True)
class SwarmBundleDesk:
    """The bundle as one call may change it; what blocks in plain code is awaitable on the event loop."""

    swarm_bundle_for: SwarmBundleFor
    #: the call on whose behalf somebody asks, if there is one
    call_of: Callable[[], ToolCall | None]

    @classmethod
    def of_extension(cls, swarm_bundle_for: SwarmBundleFor, agent: str) -> "SwarmBundleDesk":
        """Return the desk of an agent's extensions, which ask for whatever call of the agent is running."""
        return cls(swarm_bundle_for, partial(running_for, agent))

    def open_changeset(self, reason: str | None = None) -> Any:
        """Open a changeset.

        Raises:
            ChangesetError: the bundle cannot be changed here, or the policy does not allow it.
        """
        return self._answered(lambda bundle: bundle.open_changeset(reason))

    def commit_changeset(self, changeset_id: str, message: str | None = None) -> Any:
        """Commit a changeset; raises as :meth:`open_changeset`."""
        return self._answered(lambda bundle: bundle.commit_changeset(changeset_id, message))

    def get_active_ref(self) -> Any:
        """Return the ref of the revision that is active now; raises as :meth:`open_changeset`."""
        return self._answered(lambda bundle: bundle.get_active_ref())

    def _answered(self, ask: Callable[[SwarmBundleApi], Any]) -> Any:
        call = self.call_of()
        if call is None:
            raise ChangesetError(
                "Nobody wants to change the bundle: no Turn, Step or tool call is running here.",
                code="GIT_ERROR",
                suggestion="Open and commit changesets in a tool, or in a middleware.",
            )
        answer = partial(self._answer, call, ask)
        return beside_loop(answer, on_new_thread) if is_on_loop() else answer()

    def _answer(self, call: ToolCall, ask: Callable[[SwarmBundleApi], Any]) -> Any:
        bundle = self.swarm_bundle_for(call)
        if bundle is None:
            raise ChangesetError(
                "The bundle cannot be changed here.",
                code="GIT_ERROR",
                suggestion="It must stand in a git repository, and a worker must run the call.",
            )
        return ask(bundle)
