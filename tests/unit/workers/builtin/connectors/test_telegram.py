"""The built-in connector `telegram`, with a scripted Telegram."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.contract.errors import ConnectorError, TooManyWaitingError
from tests.scripted_telegram import EXAMPLE, TOKEN, scripted_telegram
from tests.unit.workers.builtin.connectors.contexts import Enough, FakeContext, KeptCursor
from workers.builtin.connectors import telegram


@pytest.fixture
def server() -> Iterator[Any]:
    with scripted_telegram() as running:
        yield running


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Keep the pauses instead of taking them."""
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    return pauses


def context(server: Any, *, last: int, **fields: Any) -> FakeContext:
    """Return a context of a connector that ends after this update."""
    return FakeContext(
        config={"API_BASE_URL": server.url, "POLL_SECONDS": "5"},
        secrets={"TELEGRAM_BOT_TOKEN": TOKEN},
        cursor=KeptCursor(fields.pop("cursor", None), lambda value: value > last),
        **fields,
    )


def run(ctx: FakeContext) -> FakeContext:
    with pytest.raises(Enough):
        telegram.connect(ctx)
    return ctx


def test_example_is_valid_bundle_answering_by_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("TELEGRAM_URL", "TELEGRAM_BOT_TOKEN"):
        monkeypatch.setenv(variable, "set")
    bundle, findings = inspect_bundle(EXAMPLE)

    assert findings == []
    assert bundle is not None
    assert bundle.bound_connector("telegram").entry_path == Path(telegram.__file__)


def test_message_becomes_event_of_its_chat(server: Any) -> None:
    server.say("hello", chat=5)
    server.say("in a topic", chat=-77, kind="supergroup", message_thread_id=12)

    ctx = run(context(server, last=2))

    private, topic = ctx.events
    assert private.to_wire() == {
        "id": "1",
        "name": "telegram_message",
        "message": {"type": "text", "text": "hello"},
        "instanceKey": "telegram:5",
        "properties": {
            "chat_id": "5", "chat_type": "private", "is_group": "false", "message_id": "1", "update_id": "1",
            "from_id": "7", "from_username": "ann", "from_first_name": "Ann",
        },
    }  # fmt: skip
    assert topic.instance_key == "telegram:-77"
    assert topic.properties["is_group"] == "true"
    assert topic.properties["chat_type"] == "supergroup"
    assert topic.properties["thread_id"] == "12"
    assert ctx.cursor.value == 3


def test_message_without_text_is_described_by_its_content(server: Any) -> None:
    sizes = [{"file_id": "small"}, {"file_id": "large"}]
    server.say(None, photo=sizes)
    server.say(None, photo=sizes, caption="my cat")
    server.say(None, voice={"file_id": "said"})
    server.say(None, new_chat_title="nothing said")
    server.say("a bot speaks", **{"from": {"id": 8, "is_bot": True}})
    server.say("last")

    ctx = run(context(server, last=6))

    assert ctx.texts == ["[photo]", "my cat", "[voice]", "last"]
    assert [one.properties.get("file_id") for one in ctx.events] == ["large", "large", "said", None]


def test_cursor_is_offset(server: Any) -> None:
    for number in range(1, 6):
        server.say(str(number))

    assert run(context(server, last=5, cursor=3)).texts == ["3", "4", "5"]


def test_refused_event_keeps_no_other_back(server: Any) -> None:
    for text in ("one", "odd", "two"):
        server.say(text)

    assert run(context(server, last=3, refused=frozenset({"odd"}))).texts == ["one", "two"]


@pytest.mark.parametrize(
    "message", [{"text": "no chat"}, {"chat": 7, "text": "x"}, {"chat": {}, "text": "x"}, [7]]
)
def test_unreadable_update_keeps_no_other_back(
    server: Any, monkeypatch: pytest.MonkeyPatch, message: Any
) -> None:
    event_of = telegram.event_of

    def changed(update: dict[str, Any]) -> Any:
        return event_of({**update, "message": message} if update["update_id"] == 1 else update)

    monkeypatch.setattr(telegram, "event_of", changed)
    for text in ("odd", "two"):
        server.say(text)

    assert run(context(server, last=2)).texts == ["two"]


def test_update_undeliverable_for_now_is_received_again(server: Any) -> None:
    server.say("one")
    ctx = context(server, last=1, failure=TooManyWaitingError("The connector is ending."))

    with pytest.raises(TooManyWaitingError):
        telegram.connect(ctx)

    assert ctx.cursor.value is None


def test_pause_is_as_long_as_telegram_says(server: Any, short_pauses: list[float]) -> None:
    limit = {"ok": False, "error_code": 429, "description": "Too Many Requests: retry after 17"}
    server.refusals.append({**limit, "parameters": {"retry_after": 17}})
    server.refusals.extend([{"ok": False, "error_code": 502, "description": "Bad Gateway"}] * 2)
    server.say("after all")

    ctx = run(context(server, last=1))

    assert ctx.texts == ["after all"]
    assert short_pauses == [17, 2, 4]


def test_short_conflict_is_waited_for(server: Any, short_pauses: list[float]) -> None:
    server.refusals.extend([{"ok": False, "error_code": 409, "description": "Conflict: other"}] * 3)
    server.say("after all")

    assert run(context(server, last=1)).texts == ["after all"]
    assert short_pauses == [1, 1, 1]


def test_lasting_conflict_is_failure(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(telegram, "CONFLICT_SECONDS", 0.0)
    server.refusals.extend([{"ok": False, "error_code": 409, "description": "Conflict: a webhook"}] * 2)

    with pytest.raises(ConnectorError, match="Telegram: Conflict: a webhook"):
        telegram.connect(context(server, last=1))


@pytest.mark.parametrize("name", ["TELEGRAM_BOT_TOKEN", "BOT_TOKEN"])
def test_either_name_of_token_is_read(server: Any, name: str) -> None:
    server.say("hello")
    ctx = context(server, last=1)
    ctx.secrets = {name: f"{TOKEN}\n"}

    assert run(ctx).texts == ["hello"]


@pytest.mark.parametrize(
    ("secrets", "config", "message"),
    [
        ({"TELEGRAM_BOT_TOKEN": "9:wrong"}, {}, "Telegram: Unauthorized"),
        ({"TELEGRAM_BOT_TOKEN": "no token"}, {}, "is not the token of a bot"),
        ({"TELEGRAM_BOT_TOKEN": ""}, {}, "is not the token of a bot"),
        ({}, {"API_BASE_URL": "file:///etc"}, "is not a URL"),
        ({}, {"POLL_SECONDS": "soon"}, "is not a number"),
    ],
)
def test_wrong_setting_ends_run(
    server: Any, secrets: dict[str, str], config: dict[str, str], message: str
) -> None:
    ctx = context(server, last=1)
    ctx.config, ctx.secrets = {**ctx.config, **config}, {**ctx.secrets, **secrets}

    with pytest.raises(ConnectorError, match=message):
        telegram.connect(ctx)


def test_unreachable_server_is_asked_again(server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    def end_after_three(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            raise Enough

    monkeypatch.setattr(time, "sleep", end_after_three)
    ctx = context(server, last=1)
    ctx.config = {**ctx.config, "API_BASE_URL": "http://127.0.0.1:1"}
    run(ctx)

    assert pauses == [1, 2, 4]
    event, fields = ctx.logger.lines[-1]
    assert event == "telegram.refused"
    assert "Connection refused" in fields["reason"]
    assert TOKEN not in fields["reason"]
