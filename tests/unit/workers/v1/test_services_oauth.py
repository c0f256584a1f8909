"""What older tools ask for when they want a token (002 §2.2, §8.1)."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.bundle.binding import bound_exports
from goondan_tasks.bundle.v1_resources import V1ToolResource
from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.oauth.manager import TokenReady
from tests.unit.workers.v1.gallery import AGENT
from workers.v1.services import ToolAuth, V1OAuth

REF = {"kind": "OAuthApp", "name": "slack-bot"}
READY = TokenReady(access_token="secret", token_type="bearer", scopes=("chat:write",))


@dataclass
class Tokens:
    """Notes what it is asked for."""

    asked: list[tuple[Any, ...]] = field(default_factory=list)

    def get_access_token(self, call: Any, ref: Any, *, scopes: Any, min_ttl_seconds: Any) -> TokenReady:
        self.asked.append((call.tool_name, ref, scopes, min_ttl_seconds))
        return READY


def desk(tokens: Any, auth: Any = None, export_auth: Any = None) -> V1OAuth:
    export = {"name": "slack.post", "auth": export_auth}
    spec = {"runtime": "python", "entry": "x.py", "auth": auth, "exports": [export]}
    tool = V1ToolResource.model_validate(
        {
            "apiVersion": "agents.example.io/v1alpha1",
            "kind": "Tool",
            "metadata": {"name": "slack"},
            "spec": {name: value for name, value in spec.items() if value is not None},
        }
    )
    [bound] = bound_exports(tool, Path("/"))
    call: ToolCall = new_call(AGENT, "slack.post", {}, {})
    return V1OAuth(tokens, lambda: call, ToolAuth.of(bound))


@pytest.mark.parametrize(
    "request_object",
    [
        {"oauthAppRef": REF, "scopes": ["chat:write"], "minTtlSeconds": 60},
        {"oauth_app_ref": REF, "scopes": ["chat:write"], "min_ttl_seconds": 60},
    ],
)
def test_documents_request_object_is_understood_in_either_spelling(request_object: Any) -> None:
    tokens = Tokens()

    result = desk(tokens).get_access_token(request_object)

    assert result == READY
    assert tokens.asked == [("slack.post", REF, ["chat:write"], 60)]


def test_keyword_arguments_mean_same_and_async_code_awaits() -> None:
    tokens = Tokens()

    async def ask() -> Any:
        return await desk(tokens).get_access_token(oauth_app_ref="OAuthApp/slack-bot", min_ttl_seconds=5)

    assert asyncio.run(ask()) == READY
    assert tokens.asked == [("slack.post", "OAuthApp/slack-bot", None, 5)]


@pytest.mark.parametrize("export_scopes", [None, ("chat:write",)])
def test_omitted_fields_come_from_tools_own_auth(export_scopes: Any) -> None:
    tokens, all_scopes = Tokens(), ("chat:write", "channels:read")
    export_auth = None if export_scopes is None else {"scopes": list(export_scopes)}

    desk(tokens, {"oauthAppRef": REF, "scopes": list(all_scopes)}, export_auth).get_access_token()

    assert tokens.asked == [("slack.post", "OAuthApp/slack-bot", export_scopes or all_scopes, 300)]


@pytest.mark.requirement("v1.export-spec")
def test_token_lacks_scope_that_export_gave_up() -> None:
    tokens = Tokens()
    auth = {"oauthAppRef": REF, "scopes": ["chat:write", "channels:read"]}
    narrow, empty = desk(tokens, auth, {"scopes": ["chat:write"]}), desk(tokens, auth, {"scopes": []})

    refused = narrow.get_access_token({"scopes": ["chat:write", "channels:read"]})
    nothing = [empty.get_access_token(), empty.get_access_token(oauth_app_ref=REF, scopes=["chat:write"])]

    assert (refused.status, refused.error.code) == ("error", "scopeNotAllowed")
    assert refused.error.message == "The tool's own auth allows no scope 'channels:read'."
    assert [result.error.code for result in nothing] == ["scopeNotAllowed"] * 2
    assert tokens.asked == []


def test_empty_scope_list_asks_for_no_scope() -> None:
    tokens = Tokens()

    desk(tokens, {"oauthAppRef": REF, "scopes": ["chat:write"]}).get_access_token(scopes=[])

    assert tokens.asked == [("slack.post", "OAuthApp/slack-bot", [], 300)]


def test_another_app_is_not_limited_by_tools_auth() -> None:
    tokens = Tokens()
    auth = {"oauthAppRef": REF, "scopes": ["chat:write"]}

    desk(tokens, auth).get_access_token({"oauthAppRef": "OAuthApp/github", "scopes": ["repo"]})

    assert tokens.asked == [("slack.post", "OAuthApp/github", ["repo"], 300)]


@pytest.mark.parametrize(
    ("request_object", "named", "message"),
    [
        ({"oauthApp": "x"}, {}, "there is no field 'oauthApp'"),
        ({"oauthAppRef": REF}, {"oauth_app_ref": REF}, "oauth_app_ref is given twice"),
    ],
)
def test_request_that_cannot_be_meant_is_refused(request_object: Any, named: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        desk(Tokens()).get_access_token(request_object, **named)


def test_token_request_without_oauth_apps_is_error() -> None:
    assert desk(None).get_access_token({"oauthAppRef": REF}).error.code == "oauthAppNotFound"
