"""Bundles over HTTP and in the console: revisions that are activated, files with faults, consents revoked."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import SecretStr
from starlette.testclient import TestClient

from goondan_tasks.client import AsyncClient, Client
from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.oauth.manager import open_store
from goondan_tasks.revisions.active import ActiveRevision, RevisionFailure
from goondan_web.application import make_application
from goondan_web.doors.api import api_door
from goondan_web.doors.console import console_door
from tests.unit.goondan_tasks.oauth.records import APP, SECRETS, SUBJECT, grant
from tests.unit.goondan_tasks.oauth.stores import KEY

FIRST, SECOND = f"git:{'a' * 40}", f"git:{'b' * 40}"
FAULTY = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: coder}
spec: {tols: []}
"""


@pytest.fixture
def own(client: Client, tmp_path: Path) -> Iterator[Client]:
    """Return a client of the same Redis with a key for consents, and a bundle with a fault."""
    (tmp_path / "goondan.yaml").write_text(FAULTY, encoding="utf-8")
    settings = client.settings.changed(
        oauth_key=SecretStr(KEY), bundle=tmp_path, state_root=tmp_path / "root"
    )
    with Client(settings) as own:
        yield own


@pytest.fixture
def server(own: Client) -> Iterator[TestClient]:
    doors = [console_door(own, own.settings), api_door(AsyncClient(own), own.settings)]
    with TestClient(
        make_application(doors, own.settings, "127.0.0.1"), base_url="http://127.0.0.1"
    ) as server:
        yield server


@pytest.fixture
def revisions(own: Client) -> Iterator[ActiveRevision]:
    """Return the record of a workspace without workers, whose second revision is active."""
    [workspace] = {one.workspace for one in own.agents().values()}
    revisions = ActiveRevision(own._redis, own._ledger.keys, workspace)
    before = revisions.state()
    if before is not None:
        revisions.end(before)
    yield revisions
    if (state := revisions.state()) is not None:
        revisions.end(state)


def test_revision_that_was_active_before_is_proposed_again(
    server: TestClient, own: Client, revisions: ActiveRevision
) -> None:
    [workspace] = [one.workspace for one in own.bundles()]
    nobody = server.post(f"/v1/bundles/{workspace}/activate", json={"ref": FIRST})
    assert (nobody.status_code, "No worker follows" in nobody.text) == (409, True)
    revisions.begin(FIRST)
    own.activate_revision(workspace, SECOND)
    revisions.activate(SECOND)
    failure = RevisionFailure(
        ref=f"git:{'c' * 40}",
        code="E_CONFIG",
        reason="<b>no such tool",
        worker="w1",
        timestamp="2026-01-01T00:00:00.000Z",
    )
    revisions.withdraw(failure)

    page = server.get("/console/bundle").text
    assert (SECOND in page, FIRST in page, "&lt;b&gt;no such tool" in page) == (True, True, True)
    form = server.post(f"/console/bundle/{workspace}/activate", data={"ref": FIRST})
    assert (form.status_code, "is proposed" in form.text) == (200, True)
    [listed] = server.get("/v1/bundles").json()["items"]
    assert (listed["revisions"]["active"], listed["revisions"]["proposed"]["newRef"]) == (SECOND, FIRST)
    assert "guarded__look" in {tool for agent in listed["agents"] for tool in agent["tools"]}
    assert [(one.act, one.target) for one in own.audit(1)] == [("activate_revision", FIRST)]
    for wrong in ("HEAD", "git:abc", f"git:{'A' * 40}"):
        assert server.post(f"/v1/bundles/{workspace}/activate", json={"ref": wrong}).status_code == 400
    with pytest.raises(ToolInputValidationError, match="No bundle has the workspace"):
        own.activate_revision("elsewhere", FIRST)


def test_files_are_checked_with_file_and_line(server: TestClient, tmp_path: Path) -> None:
    page = server.get("/console/bundle").text
    files = server.get("/console/bundle?format=json").json()["files"]

    assert (files["valid"], files["path"]) == (False, str(tmp_path))
    [finding] = [one for one in files["findings"] if one["path"] == "spec.tols"]
    assert (finding["file"], finding["line"]) == (str(tmp_path / "goondan.yaml"), 4)
    assert f"{tmp_path / 'goondan.yaml'}:4" in page
    assert [(one["kind"], one["name"]) for one in files["resources"]] == [("Agent", "coder")]


def test_consent_is_listed_without_tokens_and_revoked(server: TestClient, own: Client) -> None:
    assert "No user has given consent" in server.get("/console/bundle").text
    store = open_store(own.settings, own._redis)
    store.replace_grant(grant(), generation=0)

    page = server.get("/console/bundle")
    [listed] = server.get("/v1/grants").json()["items"]
    everything = page.text + str(listed) + server.get("/console/bundle?format=json").text
    assert (listed["oauthApp"], listed["subject"], APP in page.text) == (APP, SUBJECT, True)
    assert [secret for secret in SECRETS if secret in everything] == []

    assert "is revoked" in server.post(f"/console/grants/{grant().name}/revoke").text
    revoked = store.grant(APP, SUBJECT)
    assert (revoked is not None and revoked.revoked, own.audit(1)[0].act) == (True, "revoke_grant")
    told = server.post("/v1/grants/revoke", json={"oauthApp": APP, "subject": SUBJECT})
    assert told.json()["providerTold"] is False
    assert server.post("/console/grants/sha256:no/revoke").status_code == 404
    assert (own.forget_grant(grant().name), own.forget_grant(grant().name), own.grants()) == (True, False, [])
    assert server.post("/v1/grants/revoke", json={"oauthApp": APP, "subject": SUBJECT}).status_code == 404
