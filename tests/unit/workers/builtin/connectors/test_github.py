"""The built-in connector `github`, with deliveries as GitHub documents them."""

import json
from typing import Any

import pytest

from goondan_tasks.contract.errors import WebhookRefusedError
from tests.unit.workers.builtin.connectors.contexts import FakeContext, serving, signature
from workers.builtin.connectors.github import connect

REPOSITORY = {"id": 186853002, "full_name": "Codertocat/Hello-World", "private": False}
SENDER = {"login": "Codertocat", "id": 21031067, "type": "User"}
ISSUE: dict[str, Any] = {
    "html_url": "https://github.com/Codertocat/Hello-World/issues/1",
    "number": 1,
    "title": "Spelling error in the README file",
    "body": "It looks like you accidently spelled 'commit' with two 't's.",
}
DELIVERIES: dict[str, dict[str, Any]] = {
    "push": {
        "ref": "refs/heads/main",
        "before": "6113728f27ae82c7b1a177c8d03f9e96e0adf246",
        "after": "0000111122223333444455556666777788889999",
        "head_commit": {
            "id": "0000111122223333444455556666777788889999",
            "message": "Correct the README",
            "url": "https://github.com/Codertocat/Hello-World/commit/0000",
        },
    },
    "pull_request": {
        "action": "opened",
        "number": 2,
        "pull_request": {
            "html_url": "https://github.com/Codertocat/Hello-World/pull/2",
            "number": 2,
            "title": "Update the README with new information.",
            "body": None,
        },
    },
    "issues": {"action": "edited", "issue": ISSUE},
    "issue_comment": {
        "action": "created",
        "issue": ISSUE,
        "comment": {"html_url": ISSUE["html_url"] + "#issuecomment-4", "body": "You are totally right!"},
    },
}


def delivery(kind: str, **fields: Any) -> dict[str, Any]:
    return {**DELIVERIES[kind], "repository": REPOSITORY, "sender": SENDER, **fields}


def post(ctx: FakeContext, kind: str, content: Any, **headers: str) -> Any:
    """Send a signed delivery; ``headers`` replace those of GitHub."""
    data = json.dumps(content).encode()
    sent = {
        "content-type": "application/json",
        "x-github-event": kind,
        "x-github-delivery": "72d3162e-cc78-11e3-81ab-4c9367dc0958",
        "x-hub-signature-256": "sha256=" + signature(data),
    }
    return ctx.post(data, {**sent, **headers})


@pytest.mark.parametrize(
    ("kind", "name", "text", "properties"),
    [
        (
            "push",
            "github_push",
            "Correct the README",
            {"ref": "refs/heads/main", "commit": "0000111122223333444455556666777788889999"},
        ),
        (
            "pull_request",
            "github_pull_request",
            "Update the README with new information.",
            {"action": "opened", "number": "2", "url": "https://github.com/Codertocat/Hello-World/pull/2"},
        ),
        (
            "issues",
            "github_issue",
            f"{ISSUE['title']}\n\n{ISSUE['body']}",
            {"action": "edited", "number": "1", "url": ISSUE["html_url"]},
        ),
        (
            "issue_comment",
            "github_issue_comment",
            "You are totally right!",
            {"action": "created", "number": "1"},
        ),
    ],
)
def test_delivery_becomes_event_of_its_repository(
    kind: str, name: str, text: str, properties: dict[str, str]
) -> None:
    ctx = serving(connect)

    assert post(ctx, kind, delivery(kind)) == {"ok": True}
    [event] = ctx.events
    assert (event.name, event.message.as_text()) == (name, text)
    assert event.id == "72d3162e-cc78-11e3-81ab-4c9367dc0958"
    assert event.instance_key == "github:Codertocat/Hello-World"
    assert event.properties["sender"] == "Codertocat"
    assert properties.items() <= event.properties.items()


def test_push_without_commit_is_described_by_its_ref() -> None:
    ctx = serving(connect)
    post(ctx, "push", delivery("push", head_commit=None, deleted=True))

    assert ctx.texts == ["push refs/heads/main"]


@pytest.mark.parametrize("kind", ["ping", "star", "workflow_run"])
def test_other_deliveries_are_answered_and_no_events(kind: str) -> None:
    ctx = serving(connect)

    assert post(ctx, kind, {"zen": "Keep it logically awesome."}) == {"ok": True, "ignored": True}
    assert ctx.events == []


def test_bot_activity_is_event_only_if_configured() -> None:
    content = delivery("issue_comment", sender={"login": "ours[bot]", "type": "Bot"})
    ignoring, accepting = serving(connect), serving(connect, {"BOTS": "accept"})

    assert post(ignoring, "issue_comment", content) == {"ok": True, "ignored": True}
    assert post(accepting, "issue_comment", content) == {"ok": True}
    assert (len(ignoring.events), len(accepting.events)) == (0, 1)


@pytest.mark.parametrize(
    ("headers", "message"),
    [
        ({"x-hub-signature-256": "sha256=" + "0" * 64}, "does not match"),
        ({"x-hub-signature-256": "sha1=" + "0" * 40}, "does not match"),
        ({"x-hub-signature-256": ""}, "no signature"),
    ],
)
def test_delivery_with_wrong_signature_is_no_event(headers: dict[str, str], message: str) -> None:
    ctx = serving(connect)

    with pytest.raises(WebhookRefusedError, match=message) as refused:
        post(ctx, "issues", delivery("issues"), **headers)
    assert refused.value.status == 401
    assert ctx.events == []


def test_delivery_of_another_webhook_is_no_event() -> None:
    ctx = serving(connect)
    ctx.secrets = {"GITHUB_WEBHOOK_SECRET": "of another webhook"}

    with pytest.raises(WebhookRefusedError, match="does not match"):
        post(ctx, "issues", delivery("issues"))
    assert ctx.events == []


@pytest.mark.parametrize(
    ("content", "headers", "status"),
    [
        ({"sender": SENDER}, {}, 400),
        (delivery("issues", sender="Codertocat"), {}, 400),
        ([], {}, 400),
        (delivery("issues"), {"content-type": "application/x-www-form-urlencoded"}, 415),
    ],
)
def test_signed_nonsense_is_refused(content: Any, headers: dict[str, str], status: int) -> None:
    ctx = serving(connect)

    with pytest.raises(WebhookRefusedError) as refused:
        post(ctx, "issues", content, **headers)
    assert refused.value.status == status
