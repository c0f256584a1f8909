"""The block by which a model learns that its agent has changed (``emitRevisionChangedEvent``).

The next Step of each instance has it, once: an instance that rests learns of it when it goes on.
"""

from dataclasses import dataclass

from goondan_tasks.clocks import wall_clock
from goondan_tasks.messages import JsonObject, ToolCall, iso_time
from goondan_tasks.revisions.active import CHANGED, ActiveRevision, RevisionChange
from goondan_tasks.steps import StepStore


@dataclass(frozen=True, slots=True)
class RevisionBlock:
    """Compares the revision of an instance's Step with that of its last one."""

    #: one that remembers revisions
    store: StepStore
    record: ActiveRevision
    #: the revision of the Steps that are opened here; ``None`` where none is followed
    ref: str | None

    def of(self, call: ToolCall) -> list[JsonObject]:
        """Return the block for the Step that a call, or event, opens, if there is to be one.

        Raises:
            redis.exceptions.RedisError: Redis is away.
        """
        if self.ref is None:
            return []
        last = self.store.last_revision(call.agent_name, call.instance_key)
        if last is None or last == self.ref:
            return []
        return [{"type": CHANGED, "data": self._change(last, self.ref).to_wire()}]

    def _change(self, last: str, ref: str) -> RevisionChange:
        """Return what has changed since the last Step: several revisions may have come and gone."""
        state = self.record.state()
        if state is not None and state.change is not None and state.change.new_ref == ref:
            return state.change.model_copy(update={"previous_ref": last})
        return RevisionChange(previous_ref=last, new_ref=ref, timestamp=iso_time(wall_clock()))
