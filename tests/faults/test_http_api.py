"""The HTTP API under many more requests than a test run has time for."""

from pathlib import Path

import pytest
from schemathesis import GenerationMode

from goondan_tasks.testing import LocalStack
from tests.http_api_document import document_of, require_documented_answers

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.timeout(300)]

PENDING_BUNDLE = Path(__file__).parents[1] / "bundles" / "pending"
EXAMPLES = 150


@pytest.mark.parametrize("mode", GenerationMode)
def test_no_request_is_answered_outside_document(mode: GenerationMode) -> None:
    with LocalStack(PENDING_BUNDLE, agents=["builder"]) as stack:
        call = stack.client.submit("builder", "guarded__wipe", {"disk": "sda"})
        call.result(60)
        known = {"agent": "builder", "id": call.id, "key": "default"}

        require_documented_answers(document_of(stack.client), known, mode, EXAMPLES)
