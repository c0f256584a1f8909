"""Receives the messages that a Telegram bot is sent, by long polling of ``getUpdates``.

========================================  ==========================================================
secret ``TELEGRAM_BOT_TOKEN``             or ``BOT_TOKEN``: the bot's token, from @BotFather
config ``API_BASE_URL``                   default ``https://api.telegram.org``
config ``POLL_SECONDS``                   how long Telegram holds a request open; default 30
========================================  ==========================================================

The cursor is the ``offset``: Telegram keeps an update until a request has a higher one, and it gets one only
after the update's event is stored. What is received again after a crash has the same id, so no Turn is
begun twice. Source: https://core.telegram.org/bots/api#getupdates
"""

import json
import re
import time
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from goondan_tasks.connector_api import ConnectorContext, ConnectorEvent, TextMessage
from goondan_tasks.errors import ConnectorError

#: of a message without text and caption: the agent reads ``[photo]``, and ``file_id`` names the file
MEDIA = ("photo", "animation", "video", "video_note", "voice", "audio", "document", "sticker")
#: pauses after failed requests, in seconds; and how long Telegram may say 409 before that is a failure
FIRST_PAUSE, LONGEST_PAUSE, CONFLICT_SECONDS = 1.0, 30.0, 60.0


def connect(ctx: ConnectorContext) -> None:
    """Poll until the process ends."""
    url, seconds = _url(ctx), _poll_seconds(ctx)
    offset, pause, conflict = ctx.cursor.get() or 0, FIRST_PAUSE, 0.0
    while True:
        query = urlencode({"offset": offset, "timeout": seconds, "allowed_updates": '["message"]'})
        answer = _request(f"{url}?{query}", seconds + 10)
        if answer.get("ok"):
            pause, conflict = FIRST_PAUSE, 0.0
            for update in answer["result"]:
                try:
                    event = event_of(update)
                except (AttributeError, KeyError, TypeError, ValueError) as error:
                    ctx.logger.warning("telegram.unreadable", update=update["update_id"], error=repr(error))
                    event = None
                if event is not None:
                    _emit(ctx, event)
                offset = update["update_id"] + 1
                ctx.cursor.set(offset)
            continue
        code, reason = answer.get("error_code", 0), f"Telegram: {answer.get('description', 'no answer')}"
        wait = max(pause, float(answer.get("parameters", {}).get("retry_after", 0)))
        if code == 409:  # another program polls, or the request of a process that has died still lasts
            conflict, wait = conflict or time.monotonic(), FIRST_PAUSE
            if time.monotonic() - conflict > CONFLICT_SECONDS:
                raise ConnectorError(reason, suggestion="Stop the other program, or remove the webhook.")
        elif 400 <= code < 500 and code != 429:
            raise ConnectorError(reason, suggestion="Check the bot's token and API_BASE_URL.")
        ctx.logger.warning("telegram.refused", reason=reason, retry_in_seconds=wait)
        time.sleep(wait)
        pause = min(2 * pause, LONGEST_PAUSE)


def event_of(update: dict[str, Any]) -> ConnectorEvent | None:
    """Return the event of an update; ``None`` for one of a bot, and for one that says nothing."""
    message = update.get("message")
    if message is None or message.get("from", {}).get("is_bot"):
        return None
    chat, sender = message["chat"], message.get("from", {})
    media = next((kind for kind in MEDIA if kind in message), None)
    text = message.get("text") or message.get("caption") or (media and f"[{media}]")
    if not text:  # someone has joined, a title was changed
        return None
    file = message[media] if media else {}
    file = file[-1] if isinstance(file, list) and file else file  # of a photo's sizes the largest is last
    properties = {
        "chat_id": str(chat["id"]),
        "chat_type": chat["type"],
        "is_group": chat["type"] != "private",
        "message_id": message["message_id"],
        "update_id": update["update_id"],
        "chat_title": chat.get("title"),
        "chat_username": chat.get("username"),
        "from_id": str(sender["id"]) if sender else None,
        "from_username": sender.get("username"),
        "from_first_name": sender.get("first_name"),
        "thread_id": message.get("message_thread_id"),
        "media": media,
        "file_id": file.get("file_id") if isinstance(file, dict) else None,
    }
    return ConnectorEvent.from_wire({
        "id": str(update["update_id"]),
        "name": "telegram_message",
        "message": TextMessage(text=text).to_wire(),
        "properties": properties,
        "instanceKey": f"telegram:{chat['id']}",
    })  # fmt: skip


def _emit(ctx: ConnectorContext, event: ConnectorEvent) -> None:
    try:
        ctx.emit(event)
    except ConnectorError as error:  # it is logged and counted; the updates after it are to be received
        if error.code != ConnectorError.code:  # it passes: the update is to be received again
            raise
        ctx.logger.warning("telegram.dropped", update=event.id)


def _url(ctx: ConnectorContext) -> str:
    """Return the URL of ``getUpdates``; it has the token, so no error may have it."""
    token = (ctx.secrets.get("TELEGRAM_BOT_TOKEN") or ctx.secrets.get("BOT_TOKEN") or "").strip()
    base = ctx.config.get("API_BASE_URL", "https://api.telegram.org").rstrip("/")
    if not re.fullmatch(r"\d+:[\w-]+", token):
        raise ConnectorError(
            "TELEGRAM_BOT_TOKEN is not the token of a bot.",
            suggestion="Name it among the Connection's secrets, as @BotFather gives it: 123456:ABC-DEF…",
        )
    if not re.fullmatch(r"https?://[^\s?#]+", base):
        raise ConnectorError(f"API_BASE_URL {base!r} is not a URL.", suggestion="Write https://host.")
    return f"{base}/bot{token}/getUpdates"


def _poll_seconds(ctx: ConnectorContext) -> int:
    text = ctx.config.get("POLL_SECONDS", "30")
    if not re.fullmatch(r"\d{1,2}", text):
        raise ConnectorError(f"POLL_SECONDS {text!r} is not a number.", suggestion="Write 0 to 50.")
    return int(text)


def _request(url: str, seconds: float) -> dict[str, Any]:
    """Return Telegram's answer, or the reason why there is none as such an answer."""
    code = 0
    try:
        try:
            with urlopen(url, timeout=seconds) as response:  # noqa: S310 - the URL was checked
                answer = json.load(response)
        except HTTPError as error:
            code = error.code
            with error:
                answer = json.load(error)
    except (OSError, HTTPException, ValueError) as error:
        answer = {"description": f"{type(error).__name__}: {error}"}
    return {"error_code": code, **(answer if isinstance(answer, dict) else {})}
