"""Receives the webhooks of GitHub: pushes, pull requests, issues and comments.

========================================  ==========================================================
``verify.webhook.signingSecret``          or secret ``GITHUB_WEBHOOK_SECRET``: the webhook's secret
config ``BOTS``                           ``ignore`` (the default) what apps and bots do, or
                                          ``accept``: an agent that comments may hear itself then
========================================  ==========================================================

The webhook's content type is ``application/json``. The id of a delivery is the event's id, so one that is
delivered again begins no second Turn. Source: https://docs.github.com/en/webhooks/webhook-events-and-payloads
"""

from typing import Any

from goondan_tasks.connector_api import ConnectorContext, HttpRequest
from goondan_tasks.errors import ConnectorError, WebhookRefusedError

#: the events of GitHub that are taken, with their names here, and where their texts are
EVENTS = {
    "push": ("github_push", "head_commit"),
    "pull_request": ("github_pull_request", "pull_request"),
    "issues": ("github_issue", "issue"),
    "issue_comment": ("github_issue_comment", "comment"),
}


async def connect(ctx: ConnectorContext) -> None:
    """Answer GitHub's requests until the process ends."""
    bots = ctx.config.get("BOTS", "ignore")
    if bots not in ("ignore", "accept"):
        raise ConnectorError(f"There is no BOTS {bots!r}.", suggestion="Write ignore or accept.")

    async def answer(request: HttpRequest) -> dict[str, Any]:
        ctx.verify(request, "github", secret=ctx.secrets.get("GITHUB_WEBHOOK_SECRET"))
        if not request.headers.get("content-type", "").startswith("application/json"):
            raise WebhookRefusedError("Set the webhook's content type to application/json.", status=415)
        body, kind = request.json(), request.headers.get("x-github-event", "")
        if not isinstance(body, dict):
            raise WebhookRefusedError("The body is not an object.", status=400)
        if kind not in EVENTS:
            return {"ok": True, "ignored": True}
        try:
            if bots == "ignore" and (body.get("sender") or {}).get("type") == "Bot":
                return {"ok": True, "ignored": True}
            event = event_of(kind, body)
        except (AttributeError, KeyError, TypeError) as error:
            raise WebhookRefusedError(f"That is no {kind} of GitHub: {error!r}.", status=400) from error
        await ctx.emit({"id": request.headers.get("x-github-delivery"), **event})
        return {"ok": True}

    await ctx.http(answer)


def event_of(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """Return the event of a delivery, without its id."""
    name, place = EVENTS[kind]
    repo, subject = body["repository"]["full_name"], body.get(place) or {}  # a deleted branch has no commit
    numbered = body.get("issue") or body.get("pull_request") or {}
    properties = {
        "repo": repo,
        "sender": (body.get("sender") or {}).get("login"),
        "action": body.get("action"),
        "number": numbered.get("number"),
        "ref": body.get("ref"),
        "commit": body.get("after"),
        "url": subject.get("html_url") or subject.get("url"),
    }
    written = [subject.get("title"), subject.get("message"), subject.get("body")]
    text = "\n\n".join(filter(None, written)) or " ".join(
        filter(None, [kind, body.get("action"), body.get("ref")])
    )
    return {
        "name": name,
        "message": {"type": "text", "text": text},
        "properties": properties,
        "instanceKey": f"github:{repo}",
    }
