"""Receives the messages that a Slack app hears, by the Events API over HTTP.

========================================  ==========================================================
``verify.webhook.signingSecret``          or secret ``SLACK_SIGNING_SECRET``: the app's signing secret
config ``MODE``                           ``mention`` (the default): mentions and direct messages;
                                          ``channel_and_threads``: mentions, and all messages of the
                                          channels that the app is in; ``all``: all three
config ``APP_ID``                         if set, events of other apps are refused
========================================  ==========================================================

A request is signed and at most 5 minutes old, or it is refused. Slack sends an event again if it has no
answer within 3 s: ``event_id`` is the event's id, so no Turn is begun twice. Messages of bots are left out:
the app would hear itself. Source: https://docs.slack.dev/apis/events-api/
"""

from typing import Any

from goondan_tasks.connector_api import ConnectorContext, HttpRequest, HttpResponse
from goondan_tasks.errors import ConnectorError, WebhookRefusedError

#: which events each mode takes
MODES = {
    "mention": {"app_mention", "message_im"},
    "channel_and_threads": {"app_mention", "message_channel"},
    "all": {"app_mention", "message_im", "message_channel"},
}
#: kinds of messages that someone has written; others are notices, and changes of earlier messages
WRITTEN = {None, "file_share", "me_message", "thread_broadcast"}


async def connect(ctx: ConnectorContext) -> None:
    """Answer Slack's requests until the process ends."""
    mode = ctx.config.get("MODE", "mention")
    if mode not in MODES:
        raise ConnectorError(f"There is no MODE {mode!r}.", suggestion=f"Write one of {', '.join(MODES)}.")

    async def answer(request: HttpRequest) -> HttpResponse | dict[str, Any]:
        ctx.verify(request, "slack", secret=ctx.secrets.get("SLACK_SIGNING_SECRET"))
        body = request.json()
        if not isinstance(body, dict):
            raise WebhookRefusedError("The body is not an object.", status=400)
        if body.get("type") == "url_verification":  # Slack asks once, when the URL is entered
            return {"challenge": body.get("challenge")}
        if ctx.config.get("APP_ID", body.get("api_app_id")) != body.get("api_app_id"):
            raise WebhookRefusedError(f"The event is of another app: {body.get('api_app_id')}.", status=403)
        try:
            event = event_of(body)
        except (AttributeError, KeyError, TypeError) as error:
            raise WebhookRefusedError(f"That is no event of Slack: {error!r}.", status=400) from error
        if event is None or event["name"] not in MODES[mode]:
            return {"ok": True, "ignored": True}
        await ctx.emit(event)
        return {"ok": True}

    await ctx.http(answer)


def event_of(body: dict[str, Any]) -> dict[str, Any] | None:
    """Return the event in a request; ``None`` if nobody has written to anybody."""
    said = body.get("event")
    if body.get("type") != "event_callback" or not isinstance(said, dict):
        return None
    is_of_a_bot = said.get("bot_id") or said.get("subtype") not in WRITTEN
    if said.get("type") not in ("app_mention", "message") or is_of_a_bot or not said.get("ts"):
        return None
    name = _name(said, body)
    text = said.get("text") or " ".join(f"[file:{one.get('name')}]" for one in said.get("files", ()))
    if name is None or not text:
        return None
    channel, thread = said["channel"], said.get("thread_ts") or said["ts"]
    team, user = body.get("team_id"), said.get("user")
    return {
        "id": body["event_id"],
        "name": name,
        "message": {"type": "text", "text": text},
        "properties": {
            "channel_id": channel,
            "channel_type": said.get("channel_type"),
            "ts": said["ts"],
            "thread_ts": thread,
            "user_id": user,
            "team_id": team,
        },
        "instanceKey": f"slack:{channel}:{thread}",
        "auth": {
            "actor": {"id": f"slack:{user}"},
            "subjects": {"global": f"slack:team:{team}", "user": f"slack:user:{team}:{user}"},
        },
    }


def _name(said: dict[str, Any], body: dict[str, Any]) -> str | None:
    if said["type"] == "app_mention":
        return "app_mention"
    if said.get("channel_type") == "im":
        return "message_im"
    # a mention in a channel comes twice, the other time as app_mention
    own = [f"<@{one.get('user_id')}>" for one in body.get("authorizations") or () if one.get("is_bot")]
    return None if any(mention in said.get("text", "") for mention in own) else "message_channel"
