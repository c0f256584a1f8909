"""What an answer says about whether the provider has acted on the request."""

import pytest

from goondan_tasks.oauth.oauth_errors import ProviderUnavailableError
from goondan_tasks.oauth.provider_http import ProviderResponse
from goondan_tasks.oauth.provider_request import answer_fields
from tests.oauth_server.apps import make_oauth_app


@pytest.mark.parametrize(
    ("status", "text", "is_in_doubt"),
    [
        (502, "<html>Bad gateway</html>", True),
        (503, "down for maintenance", True),
        (504, "", True),
        (500, '{"error": "Internal Server Error"}', True),
        (500, '{"error": "server_error"}', True),
        (400, '{"error": "server_error"}', True),
        (200, "not a token", True),
        (200, '{"ok": false, "error": "ratelimited"}', False),
        (503, '{"error": "temporarily_unavailable"}', False),
        (429, "slow down", False),
        (403, "<html>blocked</html>", False),
        (302, "", False),
    ],
)
def test_an_unusable_answer_leaves_a_doubt_unless_the_provider_has_turned_the_request_away(
    status: int, text: str, is_in_doubt: bool
) -> None:
    with pytest.raises(ProviderUnavailableError) as failed:
        answer_fields(make_oauth_app("https://slack.example"), ProviderResponse(status, text), ())

    assert failed.value.is_in_doubt is is_in_doubt
