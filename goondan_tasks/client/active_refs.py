"""Which revision of a bundle is active, as a producer last read it: the one that its calls name."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from redis import Redis

from broker_config.keys import Keys
from goondan_tasks.calls import Draft
from goondan_tasks.messages import ToolCall
from goondan_tasks.names import SEPARATOR, SYSTEM_TOOL
from goondan_tasks.revisions.active import ActiveRevision

_SYSTEM_TOOLS = f"{SYSTEM_TOOL}{SEPARATOR}"

#: how long what was read is good, and how long it is that no worker follows revisions
GOOD_SECONDS = 1.0
NONE_SECONDS = 10.0


@dataclass(slots=True)
class ActiveRefs:
    """The active refs of some workspaces."""

    redis: Redis
    keys: Keys
    clock: Callable[[], float] = time.monotonic
    #: workspace -> ref, and until when it is good
    _known: dict[str, tuple[str | None, float]] = field(default_factory=dict)

    def of(self, workspace: str) -> str | None:
        """Return the ref that is active in a workspace; ``None`` if no worker follows revisions there.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        ref, until = self._known.get(workspace, (None, 0.0))
        now = self.clock()
        if now >= until:
            ref = self._read(workspace)
            self._known[workspace] = ref, now + (NONE_SECONDS if ref is None else GOOD_SECONDS)
        return ref

    def named(self, draft: Draft, workspace: str) -> Draft:
        """Return a call that names the active revision; raises as :meth:`of`.

        One of a Step names the Step's, or leaves it to the worker, and so does one that opens a Step.
        """
        call = draft.call
        if call.bundle_ref is not None or call.step_id is not None or _is_of_the_system(call):
            return draft
        ref = self.of(workspace)
        return draft if ref is None else draft._replace(call=call.model_copy(update={"bundle_ref": ref}))

    def _read(self, workspace: str) -> str | None:
        try:
            state = ActiveRevision(self.redis, self.keys, workspace).state()
        except ValueError:  # of a newer version: workers know which revision is active
            return None
        return None if state is None else state.active


def _is_of_the_system(call: ToolCall) -> bool:
    return call.tool_name.startswith(_SYSTEM_TOOLS)
