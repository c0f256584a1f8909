"""What becomes of a revision that was proposed."""

import time
from collections.abc import Callable
from typing import Literal

from goondan_tasks.messages import WireModel
from goondan_tasks.revisions.active import RevisionState

#: how often the record is looked at
LOOK_SECONDS = 0.2

#: ``proposed``: no worker has loaded it yet. ``failed``: one could not, and it was taken back.
#: ``superseded``: another one was proposed after it. ``unfollowed``: no worker follows revisions.
ActivationStatus = Literal["active", "proposed", "failed", "superseded", "unfollowed"]


class Activation(WireModel):
    """How a revision stands with the workers."""

    status: ActivationStatus
    ref: str
    #: the code of what went wrong, and what that was
    code: str | None = None
    reason: str | None = None

    @classmethod
    def of(cls, ref: str, state: RevisionState | None) -> "Activation":
        """Read it from the record."""
        if state is None:
            return cls(status="unfollowed", ref=ref)
        if state.active == ref:
            return cls(status="active", ref=ref)
        if state.proposed is not None and state.proposed.new_ref == ref:
            return cls(status="proposed", ref=ref)
        if state.failed is not None and state.failed.ref == ref:
            return cls(status="failed", ref=ref, code=state.failed.code, reason=state.failed.reason)
        return cls(status="superseded", ref=ref)


def await_activation(ref: str, look: Callable[[], RevisionState | None], seconds: float) -> Activation:
    """Look at the record until a proposal is decided, for at most so long; raises what ``look`` does."""
    deadline = time.monotonic() + seconds
    while True:
        activation = Activation.of(ref, look())
        left = deadline - time.monotonic()
        if activation.status != "proposed" or left <= 0:
            return activation
        time.sleep(min(LOOK_SECONDS, left))
