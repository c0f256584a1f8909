"""What tools of the older version may use, and extensions, for the call that they work on (002 §4.3)."""

from dataclasses import dataclass
from functools import partial

from goondan_tasks.bundle import BoundTool
from goondan_tasks.messages import ToolCall
from workers.extensions.events import Events
from workers.extensions.running import running_for
from workers.extensions.swarm_bundle import SwarmBundleDesk, SwarmBundleFor, no_swarm_bundle
from workers.oauth import WorkerOAuth
from workers.v1.events import RunEventBus
from workers.v1.oauth import TokenDesk, ToolAuth
from workers.v1.swarm_bundle import V1SwarmBundle


@dataclass(frozen=True, slots=True)
class V1Means:
    """The means of one revision of the bundle."""

    happenings: Events
    #: ``None`` if there are no OAuthApps
    tokens: WorkerOAuth | None = None
    swarm_bundle_for: SwarmBundleFor = no_swarm_bundle

    def swarm_bundle(self, call: ToolCall) -> V1SwarmBundle:
        """Return ``ctx.swarm_bundle`` of a call."""
        return V1SwarmBundle(SwarmBundleDesk(self.swarm_bundle_for, lambda: call))

    def oauth(self, call: ToolCall, bound: BoundTool) -> TokenDesk:
        """Return ``ctx.oauth`` of a call, which asks for what the tool's ``auth`` says."""
        return TokenDesk(self.tokens, lambda: call, ToolAuth.of(bound))

    def events(self, call: ToolCall, bound: BoundTool) -> RunEventBus:
        """Return ``ctx.events`` of a call."""
        return RunEventBus(call.agent_name, bound.name, self.happenings)


def extension_oauth(agent: str, tokens: WorkerOAuth | None) -> TokenDesk:
    """Return the ``api.oauth`` of an agent's older extensions, for whatever call of the agent is running."""
    return TokenDesk(tokens, partial(running_for, agent))
