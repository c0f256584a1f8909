"""The door ``api`` with real workers, for those who look after agents."""

from typing import Any

from starlette.testclient import TestClient

from goondan_tasks.client import Client, PendingCall
from goondan_tasks.instances.table import encoded, instances_directory
from tests.waiting import wait_until

PATIENCE = 60


def held(client: Client, instance: str = "default") -> PendingCall:
    """Submit a call and wait until it waits for an approval."""
    call = client.submit("builder", "guarded__wipe", {"disk": "sda"}, instance_key=instance)
    assert call.result(PATIENCE).meta.awaits == "approval"
    return call


def items(http: TestClient, path: str, limit: int = 1) -> list[Any]:
    """Return all items of a list, read page by page."""
    found, query = [], f"?limit={limit}"
    while True:
        page = http.get(f"{path}{query}").json()
        found += page["items"]
        if page["nextCursor"] is None:
            return found
        query = f"?limit={limit}&cursor={page['nextCursor']}"


def test_approvals_are_listed_and_decided_once(http: TestClient, client: Client) -> None:
    calls = [held(client, f"approval-{number}") for number in range(3)]

    listed = {one["id"]: one["args"] for one in items(http, "/v1/approvals")}
    approved = http.post(f"/v1/approvals/{calls[0].id}", json={"decision": "approve", "by": "ann"})
    denied = http.post(f"/v1/approvals/{calls[1].id}", json={"decision": "deny", "reason": "not today"})
    late = http.post(f"/v1/approvals/{calls[1].id}", json={"decision": "approve"})
    calls[2].cancel()

    assert listed == {call.id: {"disk": "sda"} for call in calls}
    assert (approved.status_code, approved.json()["approvedBy"]) == (200, "ann")
    assert calls[0].result(PATIENCE, wait_pending=True).output == {"wiped": "sda"}
    assert denied.json()["error"]["code"] == "E_APPROVAL_DENIED"
    assert "not today" in denied.json()["error"]["message"]
    assert late.status_code == 409


def test_call_is_approved_with_other_arguments(http: TestClient, client: Client) -> None:
    call = held(client, "approval-edited")
    path, approve = f"/v1/approvals/{call.id}", {"decision": "approve", "by": "ann"}

    for wrong in ({"disk": 7}, {"disc": "sdb"}, [1], "sdb"):
        refused = http.post(path, json={**approve, "args": wrong})
        assert (refused.status_code, refused.json()["error"]["code"]) == (400, "E_TOOL_INVALID_ARGS"), wrong
    assert http.post(path, json={"decision": "deny", "args": {}}).status_code == 400
    [waiting] = [
        one for one in http.get("/v1/approvals?tool=guarded__w*").json()["items"] if one["id"] == call.id
    ]
    assert (waiting["args"], waiting["idempotent"], waiting["edited"]) == ({"disk": "sda"}, False, None)
    assert http.get("/v1/approvals?tool=no__*").json()["items"] == []
    approved = http.post(path, json={**approve, "args": {"disk": "sdb"}}).json()

    assert call.result(PATIENCE, wait_pending=True).output == {"wiped": "sdb"}
    edited = http.get(f"/v1/calls/{call.id}").json()["edited"]
    assert (approved["edited"], edited["by"]) == (edited, "ann")
    assert (edited["asked"], edited["args"]) == ({"disk": "sda"}, {"disk": "sdb"})


def test_agent_is_shown_with_tools_paused_and_resumed(http: TestClient) -> None:
    path, tool = "/v1/agents/builder", {"tool": "guarded__wipe"}

    paused = http.post(f"{path}/pause", json={**tool, "reason": "repairs", "by": "ann"}).json()
    resumed = http.post(f"{path}/resume", json=tool).json()

    assert [(one["tool"], one["reason"], one["by"]) for one in paused["paused"]] == [
        ("guarded__wipe", "repairs", "ann")
    ]
    assert resumed["paused"] == []
    assert "guarded__wipe" in resumed["tools"]
    assert "guarded__wipe" in {item["name"] for item in resumed["catalog"]}
    assert http.post(f"{path}/pause", json={"tool": "no__such"}).status_code == 404
    assert http.get("/v1/agents/nobody").json()["error"]["code"] == "E_AGENT_NOT_FOUND"


def test_agents_queues_and_workers_are_listed(http: TestClient) -> None:
    assert [one["name"] for one in items(http, "/v1/agents")] == ["builder", "clerk"]
    assert [one["agent"] for one in items(http, "/v1/queues")] == ["builder", "clerk"]
    [worker] = items(http, "/v1/workers")
    assert worker["agents"] == ["builder"]
    assert http.get("/v1/workers?agent=clerk").json()["items"] == []
    assert items(http, "/v1/connections") == items(http, "/v1/limits") == []


def test_usage_is_listed_by_group_and_handoffs_by_edge(http: TestClient, client: Client) -> None:
    client.call("builder", "guarded__look", timeout=PATIENCE, auth={"subjects": {"user": "ann"}})
    wait_until(lambda: any(one.user == "ann" for one in client.usage(2, by="user")), PATIENCE)
    rows = http.get("/v1/usage?days=2&by=agent,user").json()["items"]
    assert [one["calls"] for one in rows if one["user"] == "ann"] == [1]
    assert {one["agent"] for one in rows} == {"builder"}
    assert {one["day"] for one in rows} == {None}
    page = http.get("/v1/usage?days=2&by=agent,user&limit=1").json()
    assert page["items"] == rows[:1]
    assert http.get(f"/v1/usage?days=2&by=agent,user&cursor={page['nextCursor']}").json()["items"] == rows[1:]
    assert http.get("/v1/usage?by=tool").json()["error"]["code"] == "E_TOOL_INVALID_ARGS"
    assert http.get("/v1/usage?days=0").status_code == 400

    found = http.get("/v1/handoffs?hours=3").json()
    assert found["edges"] == list(client.handoffs(3).to_wire()["edges"])
    assert found["seconds"] >= 3 * 3_600
    assert http.get("/v1/handoffs?hours=49").status_code == 400


def test_instance_with_slash_is_found_and_deleted(http: TestClient, client: Client) -> None:
    client.call("builder", "guarded__look", instance_key="a/b c", timeout=PATIENCE)
    path = "/v1/instances/builder/a%2Fb%20c"

    shown = http.get(path)
    rehearsed = http.delete(f"{path}?dryRun=true").json()["items"]
    deleted = http.delete(path).json()["items"]

    assert shown.json()["instanceKey"] == "a/b c"
    assert [(one["instanceKey"], one["removed"]) for one in (*rehearsed, *deleted)] == [
        ("a/b c", False),
        ("a/b c", True),
    ]
    assert http.get(path).json()["error"]["code"] == "E_INSTANCE_NOT_FOUND"
    assert http.delete(path).status_code == 404


def test_instance_in_use_is_not_deleted(http: TestClient, client: Client) -> None:
    call = held(client, "busy")

    refused = http.delete("/v1/instances/builder/busy")
    call.cancel()

    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "E_INSTANCE_BUSY")


def test_agent_without_thinking_has_no_messages(http: TestClient, client: Client) -> None:
    client.call("builder", "guarded__look", instance_key="quiet", timeout=PATIENCE)

    assert items(http, "/v1/instances/builder/quiet/messages") == []
    assert http.get("/v1/instances/builder/nobody/messages").status_code == 404


def test_files_of_instance_are_listed_and_read(http: TestClient, client: Client) -> None:
    client.call("builder", "guarded__look", instance_key="files", timeout=PATIENCE)
    [workspace] = {one.workspace for one in client.instances("builder")}
    workdir = instances_directory(client.settings.state_root_path, encoded(workspace)) / "files" / "workspace"
    (workdir / "notes").mkdir(parents=True, exist_ok=True)
    (workdir / "notes" / "a.txt").write_text("0123456789")
    path = "/v1/instances/builder/files/files"

    listed = [one["path"] for one in items(http, path)]
    whole = http.get(f"{path}/notes%2Fa.txt")
    part = http.get(f"{path}/notes%2Fa.txt", headers={"Range": "bytes=2-3"})

    assert listed == ["notes/a.txt"]
    assert (whole.status_code, whole.text, whole.headers["x-content-type-options"]) == (
        200,
        "0123456789",
        "nosniff",
    )
    assert (part.status_code, part.text, part.headers["content-range"]) == (206, "23", "bytes 2-3/10")
    assert http.get(f"{path}/..%2Fsecret").json()["error"]["code"] == "E_INSTANCE_FILE"


def test_traces_are_listed_and_shown(http: TestClient, client: Client) -> None:
    client.call("builder", "guarded__look", correlation_id="trace/1", timeout=PATIENCE)

    assert "trace/1" in {one["correlationId"] for one in items(http, "/v1/traces", limit=5)}
    [node] = http.get("/v1/traces/trace%2F1").json()["nodes"]
    assert (node["tool"], node["state"]) == ("guarded__look", "ok")
    assert http.get("/v1/traces/none").status_code == 404


def test_schedule_is_run_paused_and_resumed(http: TestClient, client: Client) -> None:
    client.schedules.add("nightly", "builder", every="1d", tool="guarded__look")
    path = "/v1/schedules/nightly"

    run, again = (http.post(f"{path}/run", headers={"Idempotency-Key": "at-nine"}) for _ in range(2))
    paused = http.post(f"{path}/pause", json={"reason": "holidays", "by": "ann"}).json()
    resumed = http.post(f"{path}/resume").json()

    assert (run.status_code, again.json()["id"]) == (202, run.json()["id"])
    assert client.pending(run.json()["id"]).result(PATIENCE).output == "gold"
    assert (paused["paused"]["reason"], resumed["paused"]) == ("holidays", None)
    assert [one["schedule"]["name"] for one in items(http, "/v1/schedules")] == ["nightly"]
    client.schedules.remove("nightly")
    assert http.post(f"{path}/run").json()["error"]["code"] == "E_SCHEDULE_NOT_FOUND"


def test_non_dead_letter_is_neither_replayed_nor_dropped(http: TestClient, client: Client) -> None:
    call = client.submit("builder", "guarded__look")
    call.result(PATIENCE)

    assert items(http, "/v1/dead-letters") == []
    assert http.post(f"/v1/dead-letters/{call.id}/replay").json()["error"]["code"] == "E_CALL_NOT_REPLAYABLE"
    assert http.delete(f"/v1/dead-letters/{call.id}").status_code == 404
