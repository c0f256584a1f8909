"""From a tool that asks for a token to the tool that has it, over four processes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.integration.oauth.town import AGENT, AUTH, INSTANCE, ORIGIN, Town, town
from tests.oauth_server.leaks import file_texts, monitored, places_of
from tests.waiting import wait_until

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module", params=["redis", "file"])
def running_town(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Town]:
    """The tests' own: each has a user and an instance of its own there."""
    with town(tmp_path_factory.mktemp("town"), store=request.param) as running:
        yield running


@pytest.fixture(params=["redis", "file"])
def own_town(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    """One where nobody has been."""
    with town(tmp_path, store=request.param) as running:
        yield running


def on_behalf_of(user: str) -> dict[str, Any]:
    """Return the fields of a call for another user, in an instance of that user."""
    auth = {"actor": {"type": "user", "id": f"slack:{user}"}, "subjects": {"user": f"slack:user:{user}"}}
    return {"auth": auth, "instance_key": f"thread-of-{user.lower()}"}


@pytest.mark.requirement("oauth.tool-result", "oauth.flow.auth-granted", "oauth.flow.resume-context")
def test_browser_consent_wakes_agent_and_tool_call_succeeds(running_town: Town) -> None:
    asked = running_town.call("slack__post")
    assert asked.output["status"] == "authorization_required"

    place = running_town.server.decide(asked.output["authorizationUrl"], user="U1")
    page = httpx2.get(place)
    assert (page.status_code, "slack is connected" in page.text) == (200, True)

    received = running_town.client.receive(AGENT, INSTANCE, timeout=30)
    assert received is not None
    assert received.event.type == "auth.granted"
    assert received.event.input["authSessionId"] == asked.output["authSessionId"]
    assert (received.auth, received.origin, received.correlation_id) == (AUTH, ORIGIN, "corr-1")
    assert received.trace_id == asked.meta.trace_id
    running_town.client.reply(received, "thanks")

    posted = running_town.call("slack__post")
    assert posted.output == {"ok": True, "as": "U1"}
    assert httpx2.get(place).status_code == 409


def test_step_shows_consent_that_its_agent_waits_for(running_town: Town) -> None:
    given = on_behalf_of("U2")
    asked = running_town.call("slack__post", **given)

    turn = running_town.client.turn(AGENT, origin=ORIGIN, **given)
    [block] = turn.step().blocks
    others = running_town.client.turn(AGENT, origin=ORIGIN, **{**given, "instance_key": "another"})

    assert block["type"] == "auth.pending"
    assert [item["authSessionId"] for item in block["items"]] == [asked.output["authSessionId"]]
    assert others.step().blocks == ()


def test_async_tools_are_answered_and_refusals_have_codes(running_town: Town) -> None:
    given = on_behalf_of("U3")
    assert running_town.call("slack__check", **given).output["status"] == "authorization_required"
    assert (
        running_town.call("slack__check", {"scopes": ["admin"]}, **given).output["code"] == "scopeNotAllowed"
    )
    assert running_town.call("slack__check", auth=None).output["code"] == "subjectUnavailable"


@pytest.mark.requirement("oauth.refresh.single-flight")
@pytest.mark.parametrize(("tool", "user"), [("slack__post", "U4"), ("slack__check", "U5")])
def test_call_ending_during_token_refresh_loses_no_grant(running_town: Town, tool: str, user: str) -> None:
    given, server = on_behalf_of(user), running_town.server
    server.behave(token_lifetime=4)
    asked = running_town.call("slack__post", **given)
    httpx2.get(server.decide(asked.output["authorizationUrl"], user=user)).raise_for_status()
    due = time.monotonic() + 2.5  # in the second half of its life
    before = server.seen()["counts"].get("refresh_token", 0)
    server.behave(token_lifetime=3600, delay=2)
    wait_until(lambda: time.monotonic() > due)

    wanted = {"scopes": ["chat:write"]}
    late = running_town.call(tool, wanted, **given, timeout_seconds=1)
    answers = [running_town.call(tool, wanted, **given).output for _ in range(2)]
    server.behave()

    assert late.error is not None and late.error.code == "E_TOOL_TIMEOUT"
    expected = {"ok": True, "as": user} if tool == "slack__post" else {"status": "ready", "code": None}
    assert answers == [expected] * 2
    assert server.seen()["counts"]["refresh_token"] == before + 1


@pytest.mark.requirement("oauth.refresh.stored")
def test_stopped_worker_stores_token_refreshed_for_ended_call(
    running_town: Town,
) -> None:
    given, server, stack = on_behalf_of("U6"), running_town.server, running_town.stack
    server.behave(token_lifetime=4)
    asked = running_town.call("slack__post", **given)
    httpx2.get(server.decide(asked.output["authorizationUrl"], user="U6")).raise_for_status()
    due = time.monotonic() + 2.5  # in the second half of its life
    before = server.seen()["counts"].get("refresh_token", 0)
    server.behave(token_lifetime=3600, delay=4)
    wait_until(lambda: time.monotonic() > due)

    wanted = {"scopes": ["chat:write"]}
    late = running_town.call("slack__check", wanted, **given, timeout_seconds=1)
    [worker] = stack.workers
    stack.stop_worker(worker)
    server.behave()
    stack.start_worker()

    assert late.error is not None and late.error.code == "E_TOOL_TIMEOUT"
    assert worker.returncode == 0
    assert running_town.call("slack__check", wanted, **given).output == {"status": "ready", "code": None}
    assert server.seen()["counts"]["refresh_token"] == before + 1


@pytest.mark.requirement("oauth.secrets.never-shown")
def test_secrets_appear_only_where_handed_out(own_town: Town) -> None:
    stack = own_town.stack
    with monitored(stack.redis_url) as sent:
        asked = own_town.call("slack__post")
        link = asked.output["authorizationUrl"]
        httpx2.get(own_town.server.decide(link, user="U1"))
        shown = [own_town.leak(form) for form in ("output", "pending", "error")]
        step = stack.client.turn(AGENT, instance_key=INSTANCE, auth=AUTH, origin=ORIGIN).step()
        shown.append(own_town.call("slack__post"))
        assert [result.status for result in shown] == ["ok", "pending", "error", "ok"]
        assert [block["type"] for block in step.blocks] == ["leak"] * 3
        wait_until(lambda: shown[-1].meta.id.encode() in b"".join(text for _, text in list(sent)))
    (own_town.root / "bundle" / "goondan.yaml").unlink()  # it holds the client secret, as it says
    results = [("results", str([asked.to_wire(), *(result.to_wire() for result in shown)]).encode())]
    results.append(("step", f"{step.blocks} {step.catalog}".encode()))
    logs = [(f"log of {worker.pid}", stack.log(worker).encode()) for worker in stack.workers]
    assert any(b"leaking" in text for _, text in logs)
    texts = [*sent, *results, *logs, *file_texts(own_town.root)]

    seen = own_town.server.seen()

    assert len(seen["secrets"]) >= 5 and len(seen["states"]) == 1
    leaks = {secret: places_of(secret, texts) for secret in seen["secrets"]}
    assert {secret: places for secret, places in leaks.items() if places} == {}
    without_links = [(place, text.replace(link.encode(), b"")) for place, text in texts]
    assert places_of(seen["states"][0], without_links) == []


def test_search_finds_planted_secret(running_town: Town) -> None:
    with monitored(running_town.stack.redis_url) as sent:
        running_town.call("slack__check", {"note": "a secret that is written down"})
        wait_until(lambda: places_of("a secret that is written down", list(sent)))
