"""The audit with real doors: who did what is the same for the console, the API, the shell and programs."""

import getpass
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from goondan_tasks.client import AsyncClient, Client, acting_as
from goondan_web.application import make_application
from goondan_web.doors.api import api_door
from goondan_web.doors.console import console_door
from tests.integration.goondan_process import environment, goondan
from tests.integration.http_api.test_operators import PATIENCE, held, items
from tests.unit.goondan_tasks.cli.invoke import Outcome

VIEWER, BOSS = "v" * 40, "b" * 40
TOKENS = (
    f'{{"viewer": {{"token": "{VIEWER}", "scopes": ["read"]}}, '
    f'"boss": {{"token": "{BOSS}", "scopes": ["admin"], "user": "ann"}}}}'
)


@pytest.fixture(scope="module")
def server(client: Client) -> Iterator[TestClient]:
    """Return a server with both doors, and tokens."""
    settings = client.settings.changed(http_tokens=TOKENS)
    doors = [console_door(client, settings), api_door(AsyncClient(client), settings)]
    with TestClient(make_application(doors, settings, "127.0.0.1"), base_url="http://127.0.0.1") as server:
        server.headers["Authorization"] = f"Bearer {BOSS}"
        yield server


def typed(client: Client, *words: str) -> Outcome:
    """Run a command that must succeed."""
    outcome = goondan(*words, env=environment(redis_url=client.settings.redis_url))
    assert outcome.exit_code == 0, outcome
    return outcome


def test_each_door_records_who_acts(server: TestClient, client: Client) -> None:
    calls = [held(client, f"audit-{number}") for number in range(4)]
    ids = [one.id for one in calls]

    assert server.post(f"/console/approvals/{ids[0]}/deny", data={"reason": "hush"}).status_code == 200
    assert server.post(f"/v1/approvals/{ids[1]}", json={"decision": "approve"}).status_code == 200
    typed(client, "approvals", "deny", ids[2], "--by", "carl")
    with acting_as("dora", "our bot"):
        client.cancel(ids[3])
    server.post(f"/v1/approvals/{ids[1]}", json={"decision": "deny"})  # refused: no act

    found = {one.target: one for one in client.audit() if one.target in ids}
    assert [(found[one].by, found[one].door, found[one].act) for one in (ids[0], ids[1], ids[3])] == [
        ("ann", "console", "deny"),
        ("ann", "api", "approve"),
        ("dora", "our bot", "cancel"),
    ]
    assert [found[one].in_name_of for one in (ids[0], ids[1], ids[3])] == [None] * 3
    assert found[ids[2]].by.startswith(f"{getpass.getuser()}@")
    assert (found[ids[2]].door, found[ids[2]].in_name_of) == ("cli", "carl")
    assert "hush" not in str([one.to_wire() for one in client.audit()])
    calls[1].result(PATIENCE, wait_pending=True)


def test_act_on_many_is_one_entry_in_shell(client: Client) -> None:
    calls = [held(client, "audit-many") for _ in range(3)]
    typed(client, "cancel", "--instance", "audit-many", "--agent", "builder", "--yes")
    assert [one.status() for one in calls] == ["done"] * 3
    [entry] = [one for one in client.audit(3, door="cli") if one.count is not None]
    assert (entry.act, entry.kind, entry.count) == ("cancel_many", "calls", 3)


def test_audit_is_read_by_admins_page_by_page(server: TestClient, client: Client) -> None:
    for number in range(3):
        client.pause("clerk", reason="the audit", by=f"person-{number}")
    client.resume("clerk")
    path = "/v1/audit?by=person-1&target=clerk"

    assert [one["act"] for one in server.get(path).json()["items"]] == ["pause"]
    assert len(items(server, "/v1/audit", 2)) == len(client.audit(1_000))
    assert server.get("/v1/audit?cursor=x").status_code == 400
    for address in ("/v1/audit", "/console/audit"):
        assert server.get(address, headers={"Authorization": f"Bearer {VIEWER}"}).status_code == 403
    assert "/console/audit" in server.get("/console").text
    assert "/console/audit" not in server.get("/console", headers={"Authorization": f"Bearer {VIEWER}"}).text
    assert [one["target"] for one in typed(client, "audit", "--json", "--by", "person-2").document] == [
        "clerk"
    ]
    table = typed(client, "audit", "--act", "pause", "--limit", "1").stdout
    assert "agent clerk" in table


def test_audit_page_links_to_target_of_act(server: TestClient, client: Client) -> None:
    call = held(client, "audit-page")
    assert server.post(f"/console/calls/{call.id}/cancel", data={}).status_code == 200
    client.call("builder", "guarded__look", instance_key="<b>x", timeout=PATIENCE)
    client.delete_instance("<b>x", "builder")

    page = server.get("/console/audit?since=3600").text
    of_ann = server.get("/console/audit?by=ann&act=cancel&format=json").json()

    assert f'href="/console/calls/{call.id}"' in page
    assert 'href="/console/conversations/builder/%3Cb%3Ex"' in page
    assert "<b>x" not in page
    assert "10,000 acts are kept" in page
    assert [row["act"]["target"] for row in of_ann["rows"]][:1] == [call.id]
    for _ in range(60):
        with acting_as("<i>", "tests"):
            client.pause("clerk")
    client.resume("clerk")
    first = server.get("/console/audit?door=tests&format=json").json()
    rest = server.get(f"{first['older']}&format=json").json()
    assert (len(first["rows"]), len(rest["rows"]), rest["older"]) == (50, 10, None)
    assert server.get("/console/audit?before=x").status_code == 400
