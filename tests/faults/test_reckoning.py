"""What the reckoning says of calls with an unknown outcome whose handlers have left no line."""

import pytest

from goondan_tasks.contract.errors import ToolOutcomeUnknownError
from goondan_tasks.contract.messages import ResultMeta, ToolCallError, ToolCallResult
from tests.faults.crowd import Answer, NumberedCall
from tests.faults.fleet import Death
from tests.faults.reckoning import MOST_STARTING, Claim, Reckoning

WORKER, OTHER = 7, 8
META = ResultMeta(
    id="c", agent_name="tester", instance_key="i", turn_id="t", trace_id="t", span_id="s", correlation_id="c"
)


def unknown(number: int) -> Answer:
    """Return the end of a call whose outcome is unknown, and that must not run again."""
    error = ToolCallError(name="AnError", code=ToolOutcomeUnknownError.code, message="Lost.")
    result = ToolCallResult(
        tool_call_id=str(number), tool_name="once__sync", status="error", error=error, meta=META
    )
    return Answer(NumberedCall(number, "once__sync", {}), str(number), result)


@pytest.mark.parametrize(
    ("claim", "is_explained"),
    [
        pytest.param(Claim(WORKER, 10.0), True, id="its worker died after the claim"),
        pytest.param(Claim(WORKER, 20.1), False, id="its worker died before the claim"),
        pytest.param(Claim(OTHER, 19.9), False, id="another worker died"),
        pytest.param(Claim(None, 19.9), False, id="its worker is not known"),
    ],
)
def test_only_own_workers_death_explains_unstarted_call(claim: Claim, is_explained: bool) -> None:
    reckoning = Reckoning([unknown(1)], {}, deaths=[Death(WORKER, 20.0)], claims={"1": claim})
    assert (reckoning.unknown_without_start == []) is is_explained


def test_calls_explained_per_death_stay_within_concurrency() -> None:
    answers = [unknown(number) for number in range(MOST_STARTING + 2)]
    claims = {answer.id: Claim(WORKER, 10.0) for answer in answers}
    reckoning = Reckoning(answers, {}, deaths=[Death(WORKER, 20.0)], claims=claims)
    assert reckoning.unknown_without_start == [MOST_STARTING, MOST_STARTING + 1]
