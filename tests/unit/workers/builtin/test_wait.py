import asyncio
import time

import pytest

from goondan_tasks.authoring.tool_api import ToolContext
from goondan_tasks.contract.errors import ToolInputValidationError
from tests.unit.workers.builtin.conftest import CallTool
from workers.builtin.wait import seconds


@pytest.mark.parametrize(("given", "milliseconds"), [(0, 0), (0.0126, 13), (0.02, 20)])
def test_wait_says_how_long_it_waited(call: CallTool, given: float, milliseconds: int) -> None:
    assert call("wait__seconds", seconds=given) == {"waitedSeconds": given, "waitedMs": milliseconds}


def test_waiting_calls_overlap_on_one_event_loop(context: ToolContext) -> None:
    async def many() -> None:
        await asyncio.gather(*(seconds(context, {"seconds": 0.2}) for _ in range(300)))

    started = time.monotonic()
    asyncio.run(many())

    assert 0.2 <= time.monotonic() - started < 30, "a minute, one after the other"


@pytest.mark.parametrize("given", [-0.1, 300.1, 1e300, float("nan"), float("inf"), True, "1", None])
def test_wait_refuses_invalid_time(call: CallTool, given: object) -> None:
    with pytest.raises(ToolInputValidationError, match="seconds"):
        call("wait__seconds", seconds=given)
