"""Lists of many calls, failures by kinds, and acts on all that a filter selects, over every road."""

import html
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from benchmarks.histories import History, Written, write_history
from broker_config.connections import connect, redis_time
from broker_config.embedded import EmbeddedRedis
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.cli.session import Session
from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.errors import BrokerUnreachableError, ToolInputValidationError
from goondan_tasks.ledger.ledger import Ledger
from goondan_web.application import make_application
from goondan_web.doors.api import api_door
from goondan_web.doors.console import console_door
from tests.integration.goondan_process import environment, goondan

LETTERS = 450
AMOUNTS = History(
    calls=1_000,
    agents=3,
    tools=4,
    conversations=60,
    dead_letters=LETTERS,
    trace_nodes=500,
    output_bytes=1_000,
)


@pytest.fixture(scope="module")
def redis() -> Iterator[EmbeddedRedis]:
    with EmbeddedRedis() as redis:
        yield redis


@pytest.fixture
def written(redis: EmbeddedRedis) -> Written:
    with connect(redis.url, name="test") as connection:
        connection.flushall()
        return write_history(Ledger(connection, Settings(redis_url=redis.url)), AMOUNTS)


@pytest.fixture
def client(redis: EmbeddedRedis, written: Written) -> Iterator[Client]:
    with Client(Settings(redis_url=redis.url)) as client:
        yield client


@pytest.fixture
def browser(client: Client) -> Iterator[TestClient]:
    doors = [console_door(client, client.settings), api_door(AsyncClient(client), client.settings)]
    app = make_application(doors, client.settings, "127.0.0.1")
    with TestClient(app, base_url="http://127.0.0.1") as browser:
        yield browser


def all_pages(browser: TestClient, path: str, **query: Any) -> list[dict[str, Any]]:
    """Return the items of all pages of a list."""
    found: list[dict[str, Any]] = []
    while True:
        page = browser.get(path, params=query).json()
        found += page["items"]
        if page["nextCursor"] is None:
            return found
        query["cursor"] = page["nextCursor"]


def test_lists_over_http_go_on_to_last_call(browser: TestClient, client: Client, written: Written) -> None:
    everything = all_pages(browser, "/v1/calls", limit=200)
    assert len({one["id"] for one in everything}) == len(everything) == 1_000 + LETTERS + 500 + 1
    tool = all_pages(browser, "/v1/calls", tool=written.tool, agent=written.agent, status="ok")
    assert tool
    assert {(one["tool"], one["agent"], one["outcome"]) for one in tool} == {
        (written.tool, written.agent, "ok")
    }
    failed = all_pages(browser, "/v1/calls", code="E_TOOL_TIMEOUT", text="WAS REFUSED")
    assert failed
    assert {one["error"]["code"] for one in failed} == {"E_TOOL_TIMEOUT"}
    user = all_pages(browser, "/v1/calls", subject="user-8")
    assert {client.record(one["id"]).call.auth["subjects"]["user"] for one in user} == {"user-8"}  # type: ignore[index]
    assert len(all_pages(browser, "/v1/dead-letters", limit=100)) == LETTERS
    refused = browser.get("/v1/calls?cursor=nonsense")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, ToolInputValidationError.code)


def test_failures_are_grouped_and_listable_by_group(browser: TestClient, client: Client) -> None:
    found = client.failures()
    assert found.total == found.counted == sum(one.count for one in found.groups)
    assert len(found.groups) < found.total / 2
    for group in found.groups[:3]:
        listed = all_pages(browser, "/v1/calls", fingerprint=group.fingerprint, limit=200)
        assert len(listed) == group.count
        assert {one["error"]["code"] for one in listed} == {group.code}
    dead = browser.get("/v1/failures?onlyDead=true").json()
    assert sum(one["count"] for one in dead["groups"]) == LETTERS


def test_bulk_act_is_counted_first_and_limited(client: Client) -> None:
    planned = client.act_on_all("replay", dry_run=True)
    assert (planned.selected, planned.done, planned.not_idempotent) == (LETTERS, 0, LETTERS)
    assert sum(one.calls for one in planned.tools) == LETTERS
    steps: list[int] = []
    first = client.act_on_all("replay", limit=250, watch=steps.append)
    assert (first.done, first.has_more, steps) == (250, True, [200, 250])
    second = client.act_on_all("replay")
    assert (second.done, second.has_more) == (LETTERS - 250, False)
    replays = {**first.replays, **second.replays}
    assert len(set(replays.values())) == len(replays) == LETTERS
    assert all(client.record(old).replays == 1 for old in replays)
    assert client.act_on_all("replay").selected == 0
    assert client.act_on_all("cancel", dry_run=True).selected == LETTERS
    assert client.act_on_all("cancel", "customer-agent-00").done + client.act_on_all("cancel").done == LETTERS
    assert client.act_on_all("drop").done == LETTERS
    with pytest.raises(ToolInputValidationError, match="replay, drop, cancel"):
        client.act_on_all("delete")  # type: ignore[arg-type]


def test_interrupted_act_continues_where_it_stopped(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    submit_again, trips = Client.submit_again, iter(range(3))

    def broken_off(self: Client, calls: Any) -> Any:
        if next(trips) == 1:
            raise BrokerUnreachableError("Redis has gone.")
        return submit_again(self, calls)

    monkeypatch.setattr(Client, "submit_again", broken_off)
    with pytest.raises(BrokerUnreachableError):
        client.act_on_all("replay")
    monkeypatch.undo()
    rest = client.act_on_all("replay")
    assert rest.done == LETTERS - 200
    assert {one.replays for one in client.dead_letters(None, None)} == {1}


def test_call_failing_bulk_act_does_not_stop_others(client: Client, redis: EmbeddedRedis) -> None:
    with connect(redis.url, name="test") as connection:
        letters = client.dead_letters("customer-agent-01", None)
        connection.zadd("goondan:dead-letters:customer-agent-00", {one.id: 1 for one in letters[:3]})
        connection.hdel("goondan:agents", "customer-agent-01")
    with Client(Settings(redis_url=redis.url)) as other:
        found = other.act_on_all("replay", "customer-agent-00")
    assert (found.failed, found.done) == (3, 150)
    assert {one.code for one in found.faults} == {"E_AGENT_NOT_FOUND"}


def test_page_announces_bulk_act_before_doing_it(browser: TestClient, client: Client) -> None:
    [group, *_] = browser.get("/console/dead-letters?format=json").json()["groups"]
    page = html.unescape(browser.get(group["replay"]).text)
    assert f"Will replay {group['count']} calls of " in page
    assert f"{group['count']} are not known to be idempotent" in page
    fields = dict(re.findall(r'<input type="hidden" name="(\w+)" value="([^"]*)">', page))
    assert set(fields) == {"tool", "code", "fingerprint", "from", "until"}
    path = re.findall(r'method="post" action="([^"]+)"', page)[0]
    done = html.unescape(browser.post(path, data=fields).text)
    assert f"{group['count']} done" in done
    assert "Nothing is left" in done
    assert client.act_on_all("replay", dry_run=True).selected == LETTERS - group["count"]


def test_bulk_acts_are_audited_but_not_counting(client: Client) -> None:
    client.act_on_all("drop", dry_run=True)
    assert client.audit() == []
    client.act_on_all("drop", "customer-agent-00")
    client.act_on_all("replay")
    client.act_on_all("cancel")
    entries = [(one.act, one.kind, one.agent, one.count) for one in client.audit()]
    assert entries == [
        ("cancel_all", "calls", None, 300),
        ("replay_all", "deadLetters", None, 300),
        ("drop_all", "deadLetters", "customer-agent-00", 150),
    ]


def test_form_that_is_sent_twice_replays_letter_once(browser: TestClient, client: Client) -> None:
    letter = client.dead_letters(None, 1)[0].id
    path = f"/console/dead-letters/{letter}/replay"

    def form() -> dict[str, str]:
        page = html.unescape(browser.get(f"/console/calls/{letter}").text)
        return dict(re.findall(r'name="(before)" value="([^"]*)"', page))

    first = form()
    sent = [browser.post(path, data=first, follow_redirects=False) for _ in range(2)]
    assert [one.status_code for one in sent] == [303, 409]
    assert "was replayed before" in sent[1].text
    assert client.record(letter).replays == 1
    again = form()
    assert again == {"before": client.record(letter).replayed_by}
    sent = [browser.post(path, data=again, follow_redirects=False) for _ in range(2)]
    assert [one.status_code for one in sent] == [303, 409]
    assert client.record(letter).replays == 2


def test_calls_newer_than_page_are_left_alone(browser: TestClient, client: Client) -> None:
    earliest, latest = client.act_on_all("drop", dry_run=True).between
    earlier = {"from": str(earliest), "until": str(latest - 3_600_000)}
    answer = browser.post("/console/bulk/drop", data=earlier)
    assert "0 done" in answer.text
    hostile = {**earlier, "did": "9" * 5_000}
    assert browser.post("/console/bulk/drop", data=hostile).status_code == 200
    assert "0 done" in browser.post("/console/bulk/drop", data={}).text  # it is not known what was shown
    broken = {"until": str(latest + 1_000), "did": "-1"}  # refused before anything is done
    assert browser.post("/console/bulk/drop", data=broken).status_code == 400
    assert client.act_on_all("drop", dry_run=True).selected == LETTERS


def test_letter_arriving_during_confirmation_is_not_dropped(
    client: Client, redis: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = client.dead_letters(None, 1)[0]
    client.drop(late.id)

    def said_yes(*_: Any, **__: Any) -> None:
        with connect(redis.url, name="test") as connection:
            connection.zadd(Keys().dead_letters(late.call.agent_name), {late.id: redis_time(connection) + 1})

    monkeypatch.setattr(Session, "confirm", said_yes)
    done = goondan("dead-letters", "drop", "--all", "--json", env=environment(redis_url=redis.url))
    assert done.document == {"dropped": LETTERS - 1}
    assert [one.id for one in client.dead_letters(None, None)] == [late.id]


def test_call_pages_continue_and_say_what_was_searched(browser: TestClient, written: Written) -> None:
    first = browser.get(f"/console/calls?agent={written.agent}&status=ok&format=json").json()
    second = browser.get(f"{first['next']}&format=json").json()
    assert len(first["rows"]) == len(second["rows"]) == 50
    assert not {one["id"] for one in first["rows"]} & {one["id"] for one in second["rows"]}
    assert 50 <= first["searched"] <= first["total"]
    text = html.unescape(browser.get("/console/calls?text=refused").text)
    assert "that ended with an error, in the order of their ends" in text
    letters = browser.get("/console/dead-letters?tool=*&format=json").json()
    assert len(letters["rows"]) == 50
    assert letters["next"]


def test_large_trace_parts_lead_to_each_call(browser: TestClient, written: Written) -> None:
    seen: set[str] = set()
    left, visited = [f"/console/traces/{written.trace}"], set[str]()
    while left:
        address = left.pop()
        if address in visited:
            continue
        visited.add(address)
        page = browser.get(address)
        assert page.status_code == 200
        assert len(page.content) <= 60_000
        text = html.unescape(page.text)
        seen |= set(re.findall(r'<tr id="node-([^"]+)"', text))
        links = re.findall(rf'href="(/console/traces/{written.trace}\?[^"]+)"', text)
        left += [one for one in links if "fold=" not in one]
    assert len(seen) == 500


def test_conversations_are_found_without_reading_all(browser: TestClient) -> None:
    found = browser.get("/console/conversations?key=0004&format=json").json()["rows"]
    keys = {f"customer-{number:05}" for number in (4, *range(40, 50))}
    assert {one["instanceKey"] for one in found} == keys
    pages = [browser.get(f"/console/conversations{query}").text for query in ("?key=000", "?key=000&from=51")]
    first, second = (re.findall(r'<tr id="[^"]+(customer-\d+)"', page) for page in pages)
    assert (len(first), len(second), len({*first, *second})) == (50, 10, 60)
    assert 'href="?key=000&amp;from=51"' in pages[0]
    assert 'href="?key=000"' in pages[1]
