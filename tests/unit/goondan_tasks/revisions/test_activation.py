"""What becomes of a proposal."""

import pytest

from goondan_tasks.revisions.active import (
    Activation,
    RevisionChange,
    RevisionFailure,
    RevisionState,
    await_activation,
)

OLD, NEW = (f"git:{digit * 40}" for digit in "12")

FAILURE = RevisionFailure(ref=NEW, code="E_EXT_INIT", reason="it raised", worker="w", timestamp="now")


def proposing(ref: str) -> RevisionChange:
    return RevisionChange(new_ref=ref, timestamp="now")


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        (None, Activation(status="unfollowed", ref=NEW)),
        (RevisionState(active=NEW), Activation(status="active", ref=NEW)),
        (RevisionState(active=OLD, proposed=proposing(NEW)), Activation(status="proposed", ref=NEW)),
        (
            RevisionState(active=OLD, proposed=proposing(NEW), failed=FAILURE),
            Activation(status="proposed", ref=NEW),
        ),
        (
            RevisionState(active=OLD, failed=FAILURE),
            Activation(status="failed", ref=NEW, code="E_EXT_INIT", reason="it raised"),
        ),
        (RevisionState(active=OLD), Activation(status="superseded", ref=NEW)),
    ],
)
def test_record_says_how_revision_stands(state: RevisionState | None, expected: Activation) -> None:
    assert Activation.of(NEW, state) == expected


def test_proposal_is_awaited_until_all_workers_run() -> None:
    looks = [
        Activation(status="proposed", ref=NEW),
        Activation(status="active", ref=NEW, behind=("w",)),
        Activation(status="active", ref=NEW),
    ]

    assert await_activation(lambda: looks.pop(0), 10) == Activation(status="active", ref=NEW)


@pytest.mark.parametrize(
    "undecided", [Activation(status="proposed", ref=NEW), Activation(status="active", ref=NEW, behind=("w",))]
)
def test_wait_has_end(undecided: Activation) -> None:
    assert await_activation(lambda: undecided, 0.05) == undecided
