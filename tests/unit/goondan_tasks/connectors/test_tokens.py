"""Requests of connectors for tokens."""

from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.connectors.tokens import ConnectionTokens
from goondan_tasks.contract.errors import ConnectorError
from goondan_tasks.oauth.manager import MIN_TTL_SECONDS, TokenReady


class Manager:
    """Notes what it is asked for."""

    def __init__(self) -> None:
        self.apps = {"bot": SimpleNamespace(subject_mode="user")}
        self.asked: list[tuple[Any, ...]] = []

    def get_access_token(self, app: Any, scopes: Any, ttl: Any, *, auth: Any, resume: Any) -> TokenReady:
        self.asked.append((app, scopes, ttl, auth, resume.agent_name, resume.instance_key, resume.origin))
        return TokenReady(access_token="t", token_type="bearer", scopes=())


ORIGIN = {"connector": "main"}
SUBJECT = {"subjects": {"user": "U1"}}
WHOLE = {
    "oauthAppRef": "OAuthApp/other", "scopes": ["a"], "minTtlSeconds": 0, "instanceKey": "k",
    "auth": {"subjects": {"global": "T1"}},
}  # fmt: skip


@pytest.mark.parametrize(
    ("request_", "asked"),
    [
        ({"subject": "U1"}, ("OAuthApp/bot", None, MIN_TTL_SECONDS, SUBJECT, "clerk", "main", ORIGIN)),
        ({"auth": SUBJECT}, ("OAuthApp/bot", None, MIN_TTL_SECONDS, SUBJECT, "clerk", "main", ORIGIN)),
        (WHOLE, ("OAuthApp/other", ["a"], 0, {"subjects": {"global": "T1"}}, "clerk", "k", ORIGIN)),
    ],
)
def test_token_is_that_of_named_subject(request_: Any, asked: Any) -> None:
    manager: Any = Manager()
    found = ConnectionTokens(manager, "bot", "main", "default", "clerk")(request_)
    assert found == {"status": "ready", "accessToken": "t", "tokenType": "bearer", "scopes": ()}
    assert manager.asked == [asked]


@pytest.mark.parametrize("request_", [None, "OAuthApp/bot", ["U1"]])
def test_request_that_is_no_object_is_refused(request_: Any) -> None:
    manager: Any = Manager()
    with pytest.raises(ConnectorError):
        ConnectionTokens(manager, "bot", "main", "default", "clerk")(request_)
    assert manager.asked == []
