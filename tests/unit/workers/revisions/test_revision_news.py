"""Who is told what has become of a revision."""

from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.revisions.active import RevisionChange, RevisionFailure
from workers.revisions.sync import RevisionNews

AT = "2026-01-01T00:00:00.000Z"
CHANGE = RevisionChange(previous_ref="r1", new_ref="r2", timestamp=AT, agent_name="newt", instance_key="i")


def sent(failure: RevisionFailure, *, is_wanted: bool) -> list[str]:
    """Return whom a worker tells of a failure."""
    events: list[ToolCall] = []
    changesets = SimpleNamespace(emit_revision_changed_event=is_wanted)
    swarm = SimpleNamespace(spec=SimpleNamespace(policy=SimpleNamespace(changesets=changesets)))
    bundle = SimpleNamespace(agents={"newt": None}, swarm=lambda name: swarm)
    revisions: Any = SimpleNamespace(active=SimpleNamespace(bundle=bundle))
    handoffs: Any = SimpleNamespace(get_ready=lambda: None, submit_event=events.append)
    RevisionNews(revisions, handoffs, None).tell_failure(failure)
    return [f"{event.agent_name}@{event.instance_key}" for event in events]


@pytest.mark.parametrize(
    ("change", "is_wanted", "told"),
    [
        (CHANGE, True, ["newt@i"]),
        (CHANGE, False, []),
        (CHANGE.model_copy(update={"agent_name": "gone"}), True, []),
        (None, True, []),
    ],
)
def test_policy_decides_if_committer_hears_failed_load(
    change: RevisionChange | None, is_wanted: bool, told: list[str]
) -> None:
    failure = RevisionFailure(
        ref="r2", code="E_EXT_INIT", reason="no ear", worker="w", timestamp=AT, change=change
    )
    assert sent(failure, is_wanted=is_wanted) == told
