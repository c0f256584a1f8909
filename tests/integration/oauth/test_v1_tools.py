"""The older documents' Slack tool asks for tokens through its context (000 §12.5, 002 §8.2)."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.oauth.town import Town, add_documents, town
from tests.javascript_runtimes import NAMES, runtime
from tests.oauth_server.apps import app_document

pytestmark = pytest.mark.timeout(120)

BUNDLES = Path(__file__).parents[2] / "bundles"
V1_PROFILE_BUNDLE = BUNDLES / "v1-profile"
V1 = "agents.example.io/v1alpha1"

SLACK = {
    "apiVersion": V1,
    "kind": "Tool",
    "metadata": {"name": "slackToolkit", "labels": {"tier": "integration"}},
    "spec": {
        "runtime": "python",
        "entry": "./tools/slack/index.py",
        "errorMessageLimit": 1200,
        "auth": {
            "oauthAppRef": {"kind": "OAuthApp", "name": "slack-bot"},
            "scopes": ["chat:write", "channels:read"],
        },
        "exports": [
            {
                "name": "slack.postMessage",
                "parameters": {
                    "type": "object",
                    "properties": {"channel": {"type": "string"}, "text": {"type": "string"}},
                    "required": ["channel", "text"],
                },
                "auth": {"scopes": ["chat:write"]},
            },
            {"name": "slack.listChannels", "auth": {"scopes": ["channels:read"]}},
            {"name": "slack.ask", "auth": {"scopes": ["chat:write"]}},
        ],
    },
}
CLERK = {
    "apiVersion": V1,
    "kind": "Agent",
    "metadata": {"name": "clerk"},
    "spec": {
        "modelConfig": {"modelRef": {"kind": "Model", "name": "any"}},
        "tools": [{"kind": "Tool", "name": "slackToolkit"}],
    },
}


def write_bundle(place: Path, server_url: str, spec: dict[str, Any]) -> Path:
    shutil.copytree(V1_PROFILE_BUNDLE, place)
    slack, resources = place / "tools/slack/index.py", place / "goondan.yaml"
    slack.write_text(
        slack.read_text("utf-8").replace("https://slack.com/api", f"{server_url}/slack"), "utf-8"
    )
    curator = "    - { kind: Agent, name: curator }\n"
    text = resources.read_text("utf-8").replace(curator, f"{curator}    - Agent/clerk\n")
    resources.write_text(text, "utf-8")
    add_documents(place, {**app_document(server_url, **spec), "apiVersion": V1}, SLACK, CLERK)
    return place


@pytest.fixture(scope="module")
def running_town(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    with town(tmp_path_factory.mktemp("town"), write_bundle=write_bundle) as running:
        yield running


def call(running_town: Town, tool: str, args: Any = None, **fields: Any) -> Any:
    return running_town.call(tool, args, agent="clerk", **fields)


@pytest.mark.requirement("oauth.context")
def test_slack_tool_posts_once_its_user_has_consented(running_town: Town) -> None:
    message = {"channel": "C123", "text": "안녕하세요"}
    asked = call(running_town, "slack.postMessage", message)
    assert asked.output["status"] == "authorization_required"
    assert asked.output["message"]

    httpx2.get(running_town.server.decide(asked.output["authorizationUrl"], user="U1"))
    posted = call(running_town, "slack.postMessage", message)
    lost = call(running_town, "slack.postMessage", {**message, "channel": "C404"})
    narrow = call(running_town, "slack.listChannels")

    assert posted.output == {
        "ok": True,
        "channel": "C123",
        "ts": "1700000000.000100",
        "message": {"text": "안녕하세요"},
    }
    assert (lost.status, lost.error.message) == ("error", "Slack API 오류: channel_not_found")
    assert lost.output["error"]["message"] == lost.error.message
    assert narrow.output == {"status": "authorization_required"}  # the consent was for chat:write only


def test_each_obstacle_to_token_has_its_code(running_town: Town) -> None:
    app = {"oauthAppRef": {"kind": "OAuthApp", "name": "slack-bot"}}
    answers = [
        call(running_town, "slack.ask", {**app, "scopes": ["channels:read"]}),
        call(running_town, "slack.ask", {"oauthAppRef": {"kind": "OAuthApp", "name": "github"}}),
        call(running_town, "slack.ask", {**app, "minTtlSeconds": -1}),
        call(running_town, "slack.ask", app, auth=None),
    ]

    codes = [answer.output["error"]["code"] for answer in answers]
    assert codes == ["scopeNotAllowed", "oauthAppNotFound", "configurationError", "subjectUnavailable"]
    without = call(running_town, "slack.postMessage", {"channel": "C123", "text": "?"}, auth=None)
    assert "turn.auth.subjects.user" in without.error.message


def write_typescript(place: Path, server_url: str, spec: dict[str, Any]) -> Path:
    """Write the bundle whose Slack tool is the documents' own TypeScript."""
    write_bundle(place, server_url, spec)
    text = (BUNDLES / "typescript/tools/slack/index.ts").read_text("utf-8")
    slack = text.replace("https://slack.com/api", f"{server_url}/slack")
    (place / "tools/slack/index.ts").write_text(slack, "utf-8")
    # the .py beside it is gone: the entry names index.js, and index.ts is there
    (place / "tools/slack/index.py").unlink()
    resources = place / "goondan.yaml"
    python, node = ("python", "./tools/slack/index.py"), ("node", "./tools/slack/index.js")
    text = resources.read_text("utf-8")
    for old, new in zip(python, node, strict=True):
        text = text.replace(f'"{old}"', f'"{new}"')
    resources.write_text(text, "utf-8")
    return place


@pytest.mark.parametrize("name", NAMES)
def test_typescript_slack_tool_posts_after_user_consent(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOONDAN_JAVASCRIPT", runtime(name).program)
    message = {"channel": "C123", "text": "안녕하세요"}
    with town(tmp_path, write_bundle=write_typescript) as running:
        asked = call(running, "slack.postMessage", message)
        httpx2.get(running.server.decide(asked.output["authorizationUrl"], user="U1"))
        posted = call(running, "slack.postMessage", message)
        lost = call(running, "slack.postMessage", {**message, "channel": "C404"})

    assert asked.output["status"] == "authorization_required"
    assert (posted.output["ok"], posted.output["channel"]) == (True, "C123"), posted
    assert (lost.status, lost.error.message) == ("error", "Slack API 오류: channel_not_found")
