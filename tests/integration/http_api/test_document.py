"""The HTTP API as its document says: whatever is sent, every answer is one that the document has."""

from collections.abc import Iterator

import pytest
from schemathesis import GenerationMode

from goondan_tasks.client import Client
from tests.http_api_document import document_of, require_documented_answers

EXAMPLES = 5


@pytest.fixture
def known(client: Client) -> Iterator[dict[str, str]]:
    """Yield names that lead to something, by their places in paths; the agent has no worker."""
    client.schedules.add("weekly", "clerk", every="7d", tool="guarded__look")
    call = client.submit("clerk", "guarded__look")
    yield {"agent": "clerk", "id": call.id, "name": "weekly", "key": "default"}
    client.schedules.remove("weekly")


@pytest.mark.parametrize("mode", GenerationMode)
def test_every_answer_is_in_document(client: Client, known: dict[str, str], mode: GenerationMode) -> None:
    require_documented_answers(document_of(client), known, mode, EXAMPLES)
