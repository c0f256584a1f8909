"""Which errors are tried again, and after how long."""

import pytest

from goondan_tasks.bundle.resources import Retry
from workers.delivery.result_writer import is_retried, pause_seconds


def a_retry(**fields: object) -> Retry:
    return Retry.model_validate({"max": 3, **fields})


@pytest.mark.parametrize(
    ("backoff", "retries", "seconds"),
    [
        (1, 0, 1),
        (1, 1, 2),
        (1, 4, 16),
        (0.5, 3, 4),
        (1, 20, 300),
        (1, 10**6, 300),
        (0, 5, 0),
        (400, 0, 400),
        (400, 3, 400),
    ],
)
def test_pauses_double_up_to_limit(backoff: float, retries: int, seconds: float) -> None:
    assert pause_seconds(a_retry(backoffSeconds=backoff), retries) == seconds


@pytest.mark.parametrize(
    ("codes", "code", "is_again"),
    [
        ([], "E_TOOL", True),
        ([], "ECONNRESET", True),
        ([], "E_TOOL_TIMEOUT", True),
        (["ECONNRESET"], "ECONNRESET", True),
        (["ECONNRESET"], "E_TOOL", False),
        ([], "E_TOOL_CANCELLED", False),
        (["E_TOOL_CANCELLED"], "E_TOOL_CANCELLED", False),
        ([], "E_TOOL_INVALID_ARGS", False),
        ([], "E_TOOL_NOT_FOUND", False),
        ([], "E_TOOL_NOT_IN_CATALOG", False),
        ([], "E_TOOL_EXPIRED", False),
        ([], "E_TOOL_OUTCOME_UNKNOWN", False),
    ],
)
def test_only_errors_fixable_by_rerun_are_retried(codes: list[str], code: str, is_again: bool) -> None:
    assert is_retried(a_retry(codes=codes), code) is is_again
