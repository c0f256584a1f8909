from pathlib import Path

from goondan_tasks.testing import LocalStack

BUNDLE = Path(__file__).parent


def test_the_editor_asks_the_counter() -> None:
    with LocalStack(BUNDLE) as stack:
        answer = stack.client.request("editor", "hello agents", timeout=60)
    assert answer.response == {"text": "HELLO AGENTS", "words": 2}
