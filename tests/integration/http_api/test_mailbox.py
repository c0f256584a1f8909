"""What waits for an instance whose agent has no worker: over HTTP, in the console, and in the shell."""

import asyncio
from urllib.parse import unquote

import pytest
from starlette.testclient import TestClient

from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.errors import AgentNotFoundError
from tests.integration.goondan_process import environment, goondan
from tests.integration.http_api.test_console import browser as browser

HOSTILE = "<script>alert(1)</script>"
PAGE = "/console/conversations/clerk/a%2Fb"


def test_events_wait_in_order_and_are_cancelled_singly(
    browser: TestClient, http: TestClient, client: Client
) -> None:
    for number in range(60):
        assert client.send("clerk", f"{HOSTILE} {number}", instance_key="a/b").accepted

    box = http.get("/v1/instances/clerk/a%2Fb/mailbox?limit=60").json()
    first, second = (one["id"] for one in box["events"][:2])
    assert box["count"] == 60
    assert [one["text"]["text"] for one in box["events"]] == [f"{HOSTILE} {number}" for number in range(60)]
    page = browser.get(PAGE).text
    assert (page.count('<li id="event-'), "60 events, one by one" in page) == (10, True)
    assert ("alert(1)" in page, "<script>alert" in page) == (True, False)
    cancelled = browser.post(f"/console/calls/{second}/cancel", data={"back": PAGE})
    assert (cancelled.url.path, "is cancelled" in cancelled.text) == (unquote(PAGE), True)

    left = client.mailbox("clerk", "a/b")
    assert (left.count, left.events[0].id) == (59, first)
    assert second not in [one.id for one in left.events]
    assert http.get("/v1/instances/nobody/x/mailbox").status_code == 404


def test_mailbox_is_shown_in_shell(client: Client) -> None:
    for number in range(52):
        client.send("clerk", f"task {number}", instance_key="shell")
    words = ["instances", "show", "shell", "--mailbox", "--agent", "clerk"]
    env = environment(redis_url=client.settings.redis_url)

    [shown] = goondan(*words, "--json", env=env).document
    table = goondan(*words, env=env)

    assert (shown["count"], len(shown["events"])) == (52, 50)
    assert ("task 49" in table.stdout, "task 50" in table.stdout) == (True, False)
    assert "2 more events of clerk" in table.stderr
    client.cancel_all("clerk")
    assert "No event waits" in goondan(*words, env=env).stderr


def test_unbegun_conversation_page_goes_with_its_events(browser: TestClient, client: Client) -> None:
    client.send("clerk", "hello", instance_key="new")
    assert "It begins with its first event" in browser.get("/console/conversations/clerk/new").text
    client.cancel_all("clerk")
    assert browser.get("/console/conversations/clerk/new").status_code == 404


def test_mailbox_is_read_by_coroutines(client: Client) -> None:
    assert asyncio.run(AsyncClient(client).mailbox("clerk", "empty")).count == 0
    with pytest.raises(AgentNotFoundError):
        asyncio.run(AsyncClient(client).mailbox("nobody"))
