"""From a tool that asks for a token to the tool that has it, over four processes."""

from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from tests.integration.oauth.town import AGENT, AUTH, INSTANCE, ORIGIN, Town, town

pytestmark = pytest.mark.timeout(120)


@pytest.fixture(params=["redis", "file"])
def running_town(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Town]:
    with town(tmp_path, store=request.param) as running:
        yield running


@pytest.mark.requirement("oauth.tool-result", "oauth.flow.auth-granted", "oauth.flow.resume-context")
def test_a_consent_in_the_browser_wakes_the_agent_and_the_tool_call_then_succeeds(running_town: Town) -> None:
    asked = running_town.call("slack__post")
    assert asked.output["status"] == "authorization_required"

    place = running_town.server.decide(asked.output["authorizationUrl"], user="U1")
    page = httpx2.get(place)
    assert (page.status_code, "slack is connected" in page.text) == (200, True)

    received = running_town.client.receive(AGENT, INSTANCE, timeout=20)
    assert received is not None
    assert received.event.type == "auth.granted"
    assert received.event.input["authSessionId"] == asked.output["authSessionId"]
    assert (received.auth, received.origin, received.correlation_id) == (AUTH, ORIGIN, "corr-1")
    assert received.trace_id == asked.meta.trace_id
    running_town.client.reply(received, "thanks")

    posted = running_town.call("slack__post")
    assert posted.output == {"ok": True, "as": "U1"}
    assert httpx2.get(place).status_code == 409


def test_a_step_shows_the_consent_that_its_agent_waits_for(running_town: Town) -> None:
    asked = running_town.call("slack__post")

    turn = running_town.client.turn(AGENT, instance_key=INSTANCE, auth=AUTH, origin=ORIGIN)
    [block] = turn.step().blocks
    others = running_town.client.turn(AGENT, instance_key="another", auth=AUTH, origin=ORIGIN)

    assert block["type"] == "auth.pending"
    assert [item["authSessionId"] for item in block["items"]] == [asked.output["authSessionId"]]
    assert others.step().blocks == ()


def test_async_tools_are_answered_too_and_every_refusal_has_its_code(running_town: Town) -> None:
    assert running_town.call("slack__check").output["status"] == "authorization_required"
    assert running_town.call("slack__check", {"scopes": ["admin"]}).output["code"] == "scopeNotAllowed"
    assert running_town.call("slack__check", auth=None).output["code"] == "subjectUnavailable"


@pytest.mark.requirement("oauth.secrets.never-shown")
def test_no_secret_stands_anywhere_that_it_was_not_handed_out_to(running_town: Town) -> None:
    asked = running_town.call("slack__post")
    httpx2.get(running_town.server.decide(asked.output["authorizationUrl"], user="U1"))
    shown = [running_town.call("slack__leak", {"fail": fail}).to_wire() for fail in (False, True)]
    shown.append(running_town.call("slack__post").to_wire())

    seen = running_town.server.seen()
    texts = {"results": str(shown), **_texts(running_town)}
    assert len(seen["secrets"]) >= 4 and len(seen["states"]) == 1
    for name, text in texts.items():
        for secret in seen["secrets"]:
            if name.endswith("goondan.yaml"):  # the bundle itself holds the client secret in these tests
                continue
            assert secret not in text, f"{secret} stands in {name}"
        for state in seen["states"]:
            without_links = text.replace(asked.output["authorizationUrl"], "")
            assert state not in without_links, f"a state stands in {name}"


def _texts(running: Town) -> dict[str, str]:
    """Return all that stands in Redis, in files and in logs."""
    files = {str(path): path for root in (running.root, running.stack.state_root) for path in root.rglob("*")}
    texts = {name: path.read_bytes().decode("latin-1") for name, path in files.items() if path.is_file()}
    redis = running.stack.redis_client
    return texts
