"""What a pending call is completed with."""

import pytest

from goondan_tasks.ledger.record import Outcome


def test_outcome_comes_back_from_ledger() -> None:
    kept = b"token " + Outcome({"n": 1}).to_json()
    assert Outcome.of(kept) == Outcome({"n": 1})


@pytest.mark.parametrize(
    "kept", [b"", b"token", b"token {", b"token []", b'token {"error": {}}', b'token {"error": 1}']
)
def test_damaged_outcome_is_error_but_raises_nothing(kept: bytes) -> None:
    error = Outcome.of(kept).error
    assert error is not None
    assert error.code == "E_TOOL_BAD_OUTPUT"
