"""A request whose asker may not wait."""

import pytest

from goondan_tasks.contract.errors import HandoffError
from goondan_tasks.testing import LocalStack
from tests.integration.handoffs.conftest import HANDOFFS_BUNDLE
from tests.integration.handoffs.words import TELL, answers, ask

PATIENCE = 60


@pytest.mark.parametrize("agents", [("north", "east", "south"), ("east", "north", "west")])
def test_request_beyond_waiting_limit_is_refused_unsent(agents: tuple[str, str, str]) -> None:
    environment = {"GOONDAN_MAX_WAITING": "1"}
    with LocalStack(HANDOFFS_BUNDLE, agents=list(agents), concurrency=1, environment=environment) as stack:
        first, second, third = agents
        with pytest.raises(HandoffError) as raised:
            stack.client.request(first, ask(second, ask(third, TELL)), instance_key="l", timeout=PATIENCE)
        assert raised.value.code == "E_LIMIT"
        assert "GOONDAN_MAX_WAITING" in (raised.value.suggestion or "")
        assert stack.client.calls(third) == []
        told = stack.client.request(first, ask(second, TELL), instance_key="l", timeout=PATIENCE).response
        assert answers(told)[0]["target"] == second
