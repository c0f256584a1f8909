"""Foreign code whose outcome is a value."""

import asyncio

import pytest

from workers.outcome import awaited_outcome, outcome_of

ERRORS = [ValueError("no"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]


@pytest.mark.parametrize("error", ERRORS)
def test_raised_exception_is_error_of_outcome(error: BaseException) -> None:
    def fail() -> None:
        raise error

    async def fail_later() -> None:
        raise error

    for outcome in (outcome_of(fail), asyncio.run(awaited_outcome(fail_later()))):
        assert outcome.error is error
        with pytest.raises(type(error)):
            outcome.get()


def test_returned_value_is_value_of_outcome() -> None:
    async def one() -> int:
        return 1

    assert outcome_of(lambda: 1).get() == 1
    assert asyncio.run(awaited_outcome(one())).get() == 1
