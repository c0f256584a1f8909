"""The door ``console`` with real workers: pages, forms, who may use them, and what changes meanwhile."""

import base64
import html
import json
import re
import time
from collections.abc import Iterator
from urllib.parse import quote, unquote

import httpx2
import pytest
from starlette.testclient import TestClient

from goondan_tasks.cli.addresses import listening_socket
from goondan_tasks.client import Client
from goondan_tasks.machine.process import url_of
from goondan_web.application import make_application
from goondan_web.doors.console import console_door
from goondan_web.server import served
from tests.integration.http_api.test_operators import held
from tests.waiting import wait_until

PATIENCE = 60
#: marks that pages show as escapes: a no-break space, a joiner, one that turns the direction of text
MARKED = ' \u00a0\u200d\u200f\U000e0041/\n"<b> '
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp.exe"
PAGES = (
    "/console",
    "/console/conversations",
    "/console/calls?status=ok&agent=builder",
    "/console/traces",
    "/console/approvals",
    "/console/dead-letters",
    "/console/queues",
    "/console/workers",
    "/console/usage",
    "/console/usage?by=user&days=7",
    "/console/schedules",
    "/console/connections",
    "/console/audit?since=86400",
    "/console/bundle",
    "/console/try",
    "/console/try/builder",
    "/console/try/builder/guarded__wipe",
    "/console/search?q=nothing-like-that",
)


@pytest.fixture(scope="module")
def browser(client: Client) -> Iterator[TestClient]:
    """Return a browser on this machine, where no token is needed."""
    app = make_application([console_door(client, client.settings)], client.settings, "127.0.0.1")
    with TestClient(app, base_url="http://127.0.0.1") as browser:
        yield browser


def post(browser: TestClient, path: str, **fields: str) -> str:
    """Send a form; return the text of the page that it leads to."""
    answer = browser.post(f"/console/{path}", data=fields)
    assert answer.status_code == 200, answer.text
    return html.unescape(answer.text)


def test_page_is_self_contained_html_or_json_for_programs(browser: TestClient, client: Client) -> None:
    client.call("builder", "guarded__look", timeout=PATIENCE)
    for path in PAGES:
        page = browser.get(path)
        assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8"), path
        assert "'unsafe" not in page.headers["content-security-policy"]
        assert not re.search(r'(src|href|action)="(https?:)?//', page.text), path
        assert not re.search(r"<script>|\son\w+=|\sstyle=", page.text), path
        assert len(page.content) < 60_000
        program = browser.get(f"{path}{'&' if '?' in path else '?'}format=json")
        assert isinstance(program.json(), dict), path
    for name in (
        "console.css",
        "console.js",
        "theme.js",
        "htmx.min.js",
        "hx-sse.min.js",
        "icon.svg",
        "icon-waiting.svg",
    ):
        assert browser.get(f"/console/static/{name}").status_code == 200
    assert browser.get("/console/static/..%2Frendering.py").status_code == 404


def test_call_page_shows_given_arguments_as_text(browser: TestClient, client: Client) -> None:
    call = client.submit(
        "builder", "guarded__look", {"disk": HOSTILE, "password": "hunter2"}, instance_key="a/b"
    )
    call.result(PATIENCE)

    page = browser.get(f"/console/calls/{call.id}").text

    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "hunter2" not in page
    assert "/console/conversations/builder/a%2Fb" in page
    instance = browser.get("/console/conversations/builder/a%2Fb")
    assert instance.status_code == 200
    assert 'hx-sse:connect="/console/conversations/builder/a%2Fb"' in instance.text
    trace = browser.get(f"/console/traces/{call.id}").text
    assert "guarded__look of builder" in trace
    assert browser.get("/console/calls/no-such-call").status_code == 404
    listed = browser.get("/console/calls?tool=guarded__*&instance=a/b&format=json").json()["rows"]
    assert [row["id"] for row in listed] == [call.id]


def test_search_leads_to_call_or_agents_calls(browser: TestClient, client: Client) -> None:
    call = client.submit("builder", "guarded__look", {})
    call.result(PATIENCE)
    for text in (call.id, call.id[:13]):
        found = browser.get(f"/console/search?q={text}", follow_redirects=False)
        assert found.headers["location"] == f"/console/calls/{call.id}"
    agent = browser.get("/console/search?q=builder", follow_redirects=False)
    assert agent.headers["location"] == "/console/calls?agent=builder"


def test_title_and_icon_count_calls_awaiting_person(browser: TestClient, client: Client) -> None:
    def marks() -> tuple[str, str, str]:
        page = browser.get("/console/calls").text
        found = re.search(
            r"<title>(.*?)</title>.*?<link rel=\"icon\".*?static/([\w.-]+).*?id=\"rail-approvals\">(.*?)<",
            page,
            re.DOTALL,
        )
        assert found is not None
        return found[1], found[2], found[3]

    wait_until(lambda: marks() == ("Calls · Goondan", "icon.svg", ""), PATIENCE, show=marks)
    calls = [held(client, f"counted-{number}") for number in range(2)]
    assert client.approval_count() == client.approval_count("builder") == 2
    wait_until(lambda: marks() == ("(2) Calls · Goondan", "icon-waiting.svg", "2"), PATIENCE, show=marks)
    for call in calls:
        client.deny(call.id)


def test_approvals_are_decided_by_forms(browser: TestClient, client: Client) -> None:
    approved, denied, cancelled = (held(client, f"console-{number}") for number in range(3))
    assert "wait for a person" in browser.get("/console/approvals").text

    assert "is approved, and runs" in post(browser, f"approvals/{approved.id}/approve")
    assert "is denied" in post(browser, f"approvals/{denied.id}/deny", reason="not today")
    assert "is cancelled" in post(browser, f"calls/{cancelled.id}/cancel")
    late = browser.post(f"/console/approvals/{denied.id}/approve", data={})

    assert approved.result(PATIENCE, wait_pending=True).output == {"wiped": "sda"}
    assert "not today" in browser.get(f"/console/calls/{denied.id}").text
    assert (late.status_code, "E_CALL_CLOSED" in late.text) == (409, True)


def test_arguments_are_edited_in_form_before_approval(browser: TestClient, client: Client) -> None:
    call = held(client, "console-edited")
    for page in ("approvals", f"calls/{call.id}"):
        form = re.search(
            r'<textarea name="args"[^>]*>(.*?)</textarea>', browser.get(f"/console/{page}").text, re.S
        )
        assert form is not None
        assert json.loads(html.unescape(form[1])) == {"disk": "sda"}
    path = f"/console/approvals/{call.id}/approve"
    for wrong in ('{"disk": 7}', "[1]", "{", "null", '{"disk": "***"}', " ", ""):
        assert browser.post(path, data={"args": wrong}).status_code == 400, wrong
    latin = b"args=%7B%22disk%22%3A%22sd%E9%22%7D"  # é, not as UTF-8
    form_type = {"Content-Type": "application/x-www-form-urlencoded"}
    assert browser.post(path, headers=form_type, content=latin).status_code == 400
    assert client.record(call.id).awaits == "approval"

    page = post(browser, f"approvals/{call.id}/approve", args='{"disk": "sdb"}')

    assert call.result(PATIENCE, wait_pending=True).output == {"wiped": "sdb"}
    assert "What this machine has changed" in page or "has changed" in page
    page = html.unescape(browser.get(f"/console/calls/{call.id}").text)
    assert re.search(r'class="removed">-\s+"disk": "sda"', page)
    assert re.search(r'class="added">\+\s+"disk": "sdb"', page)
    program = browser.get(f"/console/calls/{call.id}?format=json").json()
    assert (program["story"]["askedArgs"]["text"], program["edited"]["asked"]["size"]) == (
        '{"disk":"sda"}',
        14,
    )


def test_arguments_left_unedited_in_form_stay_unchanged(browser: TestClient, client: Client) -> None:
    call = client.submit("builder", "guarded__wipe", {"disk": MARKED}, instance_key="marked")
    assert call.result(PATIENCE).meta.awaits == "approval"
    page = browser.get(f"/console/calls/{call.id}").text
    form = re.search(r'<textarea name="args"[^>]*>(.*?)</textarea>', page, re.S)
    assert form is not None
    post(browser, f"approvals/{call.id}/approve", args=html.unescape(form[1]))
    assert call.result(PATIENCE, wait_pending=True).output == {"wiped": MARKED}


def test_secrets_are_absent_from_form_yet_unchanged(browser: TestClient, client: Client) -> None:
    args = {
        "disk": "sda",
        "password": "hunter2",
        "urls": ["http://a:b@host/", "plain"],
        "deep": {"token": "t0ken"},
    }
    call = client.submit("builder", "guarded__wipe", args, instance_key="console-secrets")
    assert call.result(PATIENCE).meta.awaits == "approval"
    page = html.unescape(browser.get(f"/console/calls/{call.id}").text)
    form = re.search(r'<textarea name="args"[^>]*>(.*?)</textarea>', page, re.S)
    assert form is not None
    shown = json.loads(form[1])
    assert not re.search("hunter2|a:b@|t0ken", page)
    moved = {**shown, "disk": shown["password"]}
    refused = browser.post(f"/console/approvals/{call.id}/approve", data={"args": json.dumps(moved)})
    assert (refused.status_code, "where no secret stood" in refused.text) == (400, True)

    post(browser, f"approvals/{call.id}/approve", args=json.dumps({**shown, "disk": "sdb"}))

    call.result(PATIENCE, wait_pending=True)
    assert client.record(call.id).call.args == {**args, "disk": "sdb"}


def test_all_filtered_approvals_are_decided_after_preview(browser: TestClient, client: Client) -> None:
    calls = [held(client, f"console-all-{number}") for number in range(3)]
    page = html.unescape(browser.get("/console/approvals?agent=builder&tool=guarded__w*").text)
    assert re.search(
        r"It approves \d+ . guarded__wipe of builder\. \d+ are not known to be idempotent\.", page
    )
    assert "not idempotent" in page
    shown = browser.get("/console/approvals?tool=guarded__w*&format=json").json()
    assert {call.id for call in calls} <= set(shown["all"]["ids"].split())
    assert browser.get("/console/approvals?tool=no__*&format=json").json()["count"] == 0
    assert "Show all" in browser.get("/console/approvals?tool=no__*").text
    late = held(client, "console-all-late")

    assert "that still waited are denied" in post(
        browser, "approvals/deny", ids=" ".join(call.id for call in calls[:2]), reason="enough"
    )
    assert "that still waited are approved" in post(
        browser, "approvals/approve", ids=" ".join(call.id for call in calls)
    )

    ends = [call.result(PATIENCE, wait_pending=True) for call in calls]
    assert [one.error and one.error.code for one in ends] == ["E_APPROVAL_DENIED", "E_APPROVAL_DENIED", None]
    assert client.record(late.id).awaits == "approval"
    late.cancel()
    too_many = browser.post("/console/approvals/approve", data={"ids": "x " * 201})
    assert too_many.status_code == 400


def test_tool_is_tried_and_pending_call_completed_or_failed(browser: TestClient, client: Client) -> None:
    begun = [
        re.search(r"goondan show (\S+)", post(browser, "try/builder/jobs__begin", args="{}"))
        for _ in range(2)
    ]
    first, second = (client.pending(one[1]) for one in begun if one)
    for one in (first, second):
        assert one.result(PATIENCE).meta.awaits == "completion"

    assert "is completed" in post(browser, f"calls/{first.id}/resolve", output='{"done": true}')
    assert "is completed" in post(browser, f"calls/{second.id}/fail", message="no disk")

    assert first.result(PATIENCE, wait_pending=True).output == {"done": True}
    error = second.result(PATIENCE, wait_pending=True).error
    assert error is not None
    assert "no disk" in error.message
    for form in ({"args": "{"}, {"args": "[1"}):
        assert browser.post("/console/try/builder/build__start", data=form).status_code == 400
    assert browser.get("/console/try/builder/no__such").status_code == 404


def test_form_that_is_sent_twice_begins_one_call(browser: TestClient, client: Client) -> None:
    found = re.search(r'name="once" value="(\w+)"', browser.get("/console/try/builder/guarded__look").text)
    assert found is not None
    once = {"once": found[1], "key": "twice"}
    for form in ({"args": "{}"}, {"args": "{}"}, {"args": '{"disk": "sdb"}'}):
        post(browser, "try/builder/guarded__look", **form, **once)
    assert len(client.calls("builder", instance="twice")) == 2


def test_message_to_unserved_agent_reports_missing_worker(browser: TestClient, client: Client) -> None:
    page = post(browser, "try/clerk", text="hello", key="k9")
    assert "No worker serves clerk" in page
    found = re.search(r"goondan show (\S+)", page)
    assert found is not None
    assert "is cancelled" in post(browser, f"calls/{found[1]}/cancel")
    assert browser.post("/console/try/clerk", data={"text": " "}).status_code == 400


def test_message_reaches_conversation_of_its_page(browser: TestClient, client: Client) -> None:
    sent = client.start_turn("clerk", "first", instance_key=MARKED)
    page = browser.get(f"/console/conversations/clerk/{quote(MARKED, safe='')}").text
    form = re.search(r'<form class="send" method="post" action="/console/([^"]*)"', page)
    assert form is not None
    found = re.search(r"goondan show (\S+)", post(browser, form[1], text="second"))
    assert found is not None
    assert client.record(found[1]).call.instance_key == MARKED
    for call_id in (sent.id, found[1]):
        client.cancel(call_id)


def test_form_fields_show_given_values(browser: TestClient) -> None:
    given = MARKED.strip()
    for path, field in (
        ("calls", "instance"),
        ("conversations", "key"),
        ("try/clerk", "key"),
        ("audit", "target"),
        ("approvals", "tool"),
    ):
        page = browser.get(f"/console/{path}", params={field: given}).text
        value = re.search(rf'name="{field}" value="([^"]*)"', page)
        assert value is not None, path
        assert html.unescape(value[1]) == given, path


def test_agent_is_paused_and_resumed(browser: TestClient, client: Client) -> None:
    assert "It is paused" in post(browser, "agents/builder/pause", tool="guarded__wipe", reason="repairs")
    assert "guarded__wipe is paused by local: repairs" in " ".join(
        browser.get("/console/queues").text.split()
    )
    assert "It goes on" in post(browser, "agents/builder/resume", tool="guarded__wipe")
    assert "It is paused" in post(browser, "agents/builder/pause")
    assert "The agent is paused by local" in " ".join(browser.get("/console/queues").text.split())
    assert "It is paused by local." in browser.get("/console").text
    assert "It goes on" in post(browser, "agents/builder/resume")
    assert client.paused() == []
    assert browser.post("/console/agents/nobody/pause", data={}).status_code == 404


def test_schedule_is_run_paused_and_resumed(browser: TestClient, client: Client) -> None:
    state = client.schedules.add("nightly", cron="0 3 * * *", agent="builder", tool="guarded__look")
    name = quote(state.full_name, safe="")

    def shown() -> str:
        return " ".join(html.unescape(browser.get("/console/schedules").text).split())

    try:
        assert "0 3 * * * (UTC): guarded__look to builder" in shown()
        once = re.findall(r'name="once" value="([^"]*)"', shown())
        for _ in range(2):  # the form is sent twice
            assert "has fired" in post(browser, f"schedules/{name}/run", once=once[0])
        assert "fired 1 times" in shown()
        assert "It is paused" in post(browser, f"schedules/{name}/pause", reason="repairs")
        [paused] = [one for one in client.schedules.list() if one.full_name == state.full_name]
        assert paused.paused is not None
        assert (paused.paused.reason, paused.paused.by, paused.last_id is None) == ("repairs", "local", False)
        assert "It goes on" in post(browser, f"schedules/{name}/resume")
    finally:
        client.schedules.remove("nightly")
    assert "There are no schedules" in shown()


def test_call_is_decided_on_its_conversation_page(browser: TestClient, client: Client) -> None:
    approved, cancelled = held(client, "in place"), held(client, "in place")
    path = "/console/conversations/builder/in%20place"
    page = browser.get(path).text
    assert page.count("a person must approve it") == 2
    assert f'action="/console/approvals/{approved.id}/deny"' in page

    form = {"back": path}
    decided = browser.post(f"/console/approvals/{approved.id}/approve", data=form, follow_redirects=False)
    assert decided.headers["location"] == f"{path}?done=approved"
    assert approved.result(PATIENCE, wait_pending=True).output == {"wiped": "sda"}
    assert "is cancelled" in post(browser, f"calls/{cancelled.id}/cancel", **form)
    assert "a person must approve it" not in browser.get(path).text
    for elsewhere in ("https://evil.example/console/x", "//evil.example", "/v1/x", "/console/\r\nx"):
        back = {"back": elsewhere}
        answer = browser.post("/console/agents/clerk/resume", data=back, follow_redirects=False)
        assert answer.headers["location"] == "/console/queues?done=resumed"


def test_workdir_files_are_listed_and_shown_as_text(browser: TestClient, client: Client) -> None:
    client.call("builder", "guarded__look", instance_key="workdir", timeout=PATIENCE)
    path = "/console/conversations/builder/workdir/files"
    assert "has no files" in browser.get(path).text
    workdir = client._housekeeping.workdir("workdir", "builder")
    (workdir / "a <b>").mkdir()
    (workdir / "a <b>" / "note.txt").write_text(f"{HOSTILE} password=hunter2 ü")
    (workdir / "large.txt").write_text("ü" * 200_000)
    (workdir / "image.bin").write_bytes(b"\x89PNG\xff")

    note = browser.get(f"{path}/{quote('a <b>/note.txt', safe='')}").text
    large = browser.get(f"{path}/large.txt?format=json").json()

    assert f'href="{path}/a%20%3Cb%3E%2Fnote.txt"' in browser.get(path).text
    assert ("&lt;script&gt;" in note, "<script>alert" in note, "hunter2" in note) == (True, False, False)
    assert (large["size"], large["isCut"], set(large["text"]), len(large["text"])) == (
        400_000,
        True,
        {"ü"},
        131_072,
    )
    assert "It is no text" in browser.get(f"{path}/image.bin").text
    for missing in ("..%2F..%2Fetc%2Fpasswd", "no.txt", "%00"):
        assert browser.get(f"{path}/{missing}").status_code in {400, 404}, missing
    assert browser.get("/console/conversations/builder/nothing-here/files").status_code == 404


def test_instance_is_deleted(browser: TestClient, client: Client) -> None:
    client.call("builder", "guarded__look", instance_key="to-delete", timeout=PATIENCE)
    assert "is deleted" in post(browser, "conversations/builder/to-delete/delete")
    assert browser.get("/console/conversations/builder/to-delete").status_code == 404


def test_open_page_is_sent_again_after_change(client: Client) -> None:
    door = console_door(client, client.settings)
    app = make_application([door], client.settings, "127.0.0.1")
    address = "/console/calls?tool=guarded__look&instance=watched"
    with listening_socket("127.0.0.1", 0) as server, served(app, server), httpx2.Client() as watcher:
        asked = {"Accept": "text/event-stream"}
        with watcher.stream("GET", url_of(server) + address, headers=asked, timeout=PATIENCE) as stream:
            assert stream.headers["content-type"].startswith("text/event-stream")
            lines = stream.iter_lines()
            before = part(lines)
            call = client.submit("builder", "guarded__look", {}, instance_key="watched")
            call.result(PATIENCE)
            seen = ""
            while call.id not in seen or "✓" not in seen:
                seen = part(lines)
    assert "No such call" in before
    assert "<html" not in before


def test_page_stream_ends_so_browser_shows_token_again(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goondan_web.doors.console.FOLLOWED_SECONDS", 0.0)
    app = make_application([console_door(client, client.settings)], client.settings, "127.0.0.1")
    with listening_socket("127.0.0.1", 0) as server, served(app, server), httpx2.Client() as watcher:
        asked = {"Accept": "text/event-stream"}
        with watcher.stream("GET", f"{url_of(server)}/console", headers=asked, timeout=PATIENCE) as stream:
            assert "Overview" in "".join(stream.iter_lines())  # ends


def test_browser_waits_before_asking_again_for_missing_page(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("goondan_web.doors.console.FOLLOWED_SECONDS", 0.5)
    app = make_application([console_door(client, client.settings)], client.settings, "127.0.0.1")
    with listening_socket("127.0.0.1", 0) as server, served(app, server), httpx2.Client() as watcher:
        asked, begun = {"Accept": "text/event-stream"}, time.monotonic()
        path = "/console/calls/00000000-0000-0000-0000-000000000000"
        with watcher.stream("GET", url_of(server) + path, headers=asked, timeout=PATIENCE) as stream:
            assert "".join(stream.iter_lines()) == ""
        assert time.monotonic() >= begun + 0.5


def part(lines: Iterator[str]) -> str:
    """Return the next part of a page that a stream sends."""
    text = []
    for line in lines:
        if line.startswith("data: "):
            text.append(line.removeprefix("data: "))
        elif text:
            break
    return "\n".join(text)


def shown(token: str) -> dict[str, str]:
    """Return the header with which a browser sends a token as a password."""
    return {"Authorization": "Basic " + base64.b64encode(f"anybody:{token}".encode()).decode()}


def test_token_is_asked_as_password_and_limited_to_scopes(client: Client) -> None:
    tokens = '{"viewer": {"token": "%s", "scopes": ["read"]}, "boss": {"token": "%s", "scopes": ["admin"]}}'
    viewer, boss = "v" * 40, "b" * 40
    settings = client.settings.changed(http_tokens=tokens % (viewer, boss))
    app = make_application([console_door(client, settings)], settings, "127.0.0.1")
    call = held(client, "tokens")
    with TestClient(app, base_url="http://127.0.0.1") as browser:
        stranger = browser.get("/console")
        wrong = browser.get("/console", headers=shown("x" * 40))
        garbage = browser.get("/console", headers={"Authorization": "Basic ???"})
        assert {one.status_code for one in (stranger, wrong, garbage)} == {401}
        assert stranger.headers["www-authenticate"].startswith("Basic ")

        page = browser.get("/console/approvals", headers=shown(viewer)).text
        assert (call.id in page, 'method="post"' in page) == (True, False)
        path = f"/console/approvals/{call.id}/deny"
        assert browser.post(path, data={}, headers=shown(viewer)).status_code == 403
        assert (
            browser.post("/console/try/builder/build__start", data={}, headers=shown(viewer)).status_code
            == 403
        )
        foreign = {**shown(boss), "Origin": "https://elsewhere.example"}
        assert browser.post(path, data={}, headers=foreign).status_code == 403
        assert browser.post(path, json={}, headers=shown(boss)).status_code == 415
        assert browser.post(path, data={}, headers=shown(boss)).status_code == 200
    record = client.record(call.id)
    assert record.error is not None
    assert "boss" in record.error.message


def test_names_in_addresses_may_be_anything(browser: TestClient) -> None:
    for name in ("%00", "..%2F..%2Fetc", quote("<b>"), "%F0%9F%A6%86", "a" * 2_000):
        for path in (f"calls/{name}", f"traces/{name}", f"conversations/builder/{name}", f"try/{name}"):
            answer = browser.get(f"/console/{path}")
            assert answer.status_code in {400, 404}, path
            assert "<b>E_" not in answer.text
    for query in ("limit=x", "limit=-1", "limit=" + "9" * 400, "status=%00", "before=1e9"):
        assert browser.get(f"/console/calls?{query}").status_code in {200, 400}, query
    wait_until(lambda: browser.get("/console").status_code == 200)


def test_instance_key_unfit_for_path_has_page(browser: TestClient, client: Client) -> None:
    for key in (".", "..", "~..", "~", "...", "~a"):
        client.call("builder", "guarded__look", instance_key=key, timeout=PATIENCE)
        listed = browser.get("/console/conversations?agent=builder").text
        # a browser takes dots out of a path, though they are encoded
        [address] = {
            one
            for one in re.findall(r'href="(/console/conversations/builder/[^"/]+)"', listed)
            if re.search(f'href="{re.escape(one)}">{re.escape(key)}</a>', listed)
        }
        assert unquote(address.rpartition("/")[2]) not in {".", ".."}
        page = browser.get(address)
        assert (page.status_code, f"<h1>{key} <small>of builder" in page.text) == (200, True), address
        assert "has no files" in browser.get(f"{address}/files").text
