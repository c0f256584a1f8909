"""goondan oauth: what the store holds, without any secret; revoking; keys."""

from pathlib import Path

import pytest

from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.oauth import resume_of
from goondan_tasks.contract.errors import AgentNotFoundError
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.oauth.crypto import Cipher
from goondan_tasks.oauth.file_store import FileStore
from goondan_tasks.oauth.manager import open_keys
from tests.unit.goondan_tasks.bundle.test_oauth_apps import APP as APP_TEXT
from tests.unit.goondan_tasks.bundle.writing import write
from tests.unit.goondan_tasks.cli.invoke import goondan
from tests.unit.goondan_tasks.oauth.records import APP, SECRETS, SUBJECT, device_session, grant, session
from tests.unit.goondan_tasks.oauth.stores import KEY, OTHER_KEY


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("GOONDAN_OAUTH_STORE", "file")
    monkeypatch.setenv("GOONDAN_STATE_ROOT", str(tmp_path / "root"))
    monkeypatch.setenv("GOONDAN_OAUTH_KEY", KEY)
    return tmp_path


def store() -> FileStore:
    settings = Settings.load()
    return FileStore(settings.state_root_path / "oauth", Cipher(open_keys(settings)), wall_clock)


@pytest.mark.usefixtures("root")
def test_grants_and_sessions_are_listed_without_their_secrets() -> None:
    store().replace_grant(grant(), generation=0)
    opened = store().open_session(session(now=wall_clock()))
    store().open_session(device_session(now=wall_clock()))

    outcomes = [goondan("oauth", what, *json) for what in ("grants", "sessions") for json in ([], ["--json"])]

    assert [outcome.exit_code for outcome in outcomes] == [0] * 4
    assert SUBJECT in outcomes[0].stdout
    assert outcomes[1].document[0]["name"] == grant().name
    assert opened.id in outcomes[2].stdout
    facts = next(one for one in outcomes[3].document if one["id"] == opened.id)
    assert (facts["status"], facts["resumes"]) == ("pending", ["planner@1700000000.000100"])
    everything = "".join(outcome.stdout + outcome.stderr for outcome in outcomes)
    assert [secret for secret in SECRETS if secret in everything] == []


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize(("what", "left_out"), [("grants", "name"), ("sessions", "requestedScopes")])
def test_narrow_terminal_leaves_out_columns_without_room(
    what: str, left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store().replace_grant(grant(), generation=0)
    opened = store().open_session(session(now=wall_clock()))
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "80")

    narrow = goondan("oauth", what).stdout
    monkeypatch.setenv("COLUMNS", "300")
    wide = goondan("oauth", what).stdout

    assert (left_out in narrow, left_out in wide.splitlines()[0]) == (False, True)
    assert (opened.id in narrow) == (what == "sessions")


def test_apps_of_bundle_are_listed_without_their_client(root: Path) -> None:
    outcome = goondan("oauth", "apps", "--json", "--bundle", str(write(root, {"goondan.yaml": APP_TEXT})))

    (app,) = outcome.document
    assert (app["name"], app["flow"], app["callbackPath"]) == (APP, "authorization_code", "/oauth/callback")
    assert "our-id" not in outcome.stdout


def test_login_without_app_says_which_there_are(root: Path) -> None:
    bundle = str(write(root, {"goondan.yaml": APP_TEXT}))

    assert f"The bundle's apps: {APP}." in goondan("oauth", "login", "--bundle", bundle).stderr
    assert "--bundle PATH" in goondan("oauth", "login").stderr


def test_without_bundle_there_are_no_apps() -> None:
    assert goondan("oauth", "apps").exit_code == 3


@pytest.mark.usefixtures("root")
def test_grant_is_revoked_only_if_it_exists() -> None:
    arguments = ["oauth", "revoke", APP, "--subject", SUBJECT, "--json"]
    missing = goondan(*arguments)
    store().replace_grant(grant(), generation=0)
    done = goondan(*arguments)

    assert (missing.exit_code, missing.document["error"]["code"]) == (2, "grant_not_found")
    assert (done.exit_code, done.document) == (0, {"revoked": True, "providerTold": False})
    revoked = store().grant(APP, SUBJECT)
    assert revoked is not None
    assert revoked.revoked


@pytest.mark.usefixtures("root")
def test_grant_is_revoked_though_bundle_is_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "goondan.yaml").write_text("kind: Aget\n", encoding="utf-8")
    monkeypatch.setenv("GOONDAN_BUNDLE", str(tmp_path))
    store().replace_grant(grant(), generation=0)

    done = goondan("oauth", "revoke", APP, "--subject", SUBJECT, "--json")

    assert (done.exit_code, done.document) == (0, {"revoked": True, "providerTold": False})
    assert "cannot be loaded" in done.stderr


@pytest.mark.parametrize("by_name", [True, False])
def test_grant_that_cannot_be_read_is_removed(
    root: Path, monkeypatch: pytest.MonkeyPatch, by_name: bool
) -> None:
    store().replace_grant(grant(), generation=0)
    monkeypatch.setenv("GOONDAN_OAUTH_KEY", OTHER_KEY)
    listed = goondan("oauth", "grants", "--json")
    which = [grant().name] if by_name else [APP, "--subject", SUBJECT]

    assert listed.document[0]["subject"] == SUBJECT
    assert goondan("oauth", "revoke", *which, "--json").document == {"removed": True, "providerTold": False}
    assert goondan("oauth", "grants", "--json").document == []


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("which", [[], [APP], ["--subject", SUBJECT], ["sha256"]])
def test_revoke_needs_app_and_subject(which: list[str]) -> None:
    assert goondan("oauth", "revoke", *which).exit_code == 2


@pytest.mark.usefixtures("root")
@pytest.mark.parametrize("name", ["sha256:../../keys", "sha256:00"])
def test_only_grant_is_removed(name: str) -> None:
    outcome = goondan("oauth", "revoke", name, "--json")

    assert outcome.document["error"]["code"] == "grant_not_found"


@pytest.mark.usefixtures("root")
def test_session_is_removed_by_name_whatever_its_key(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = store().open_session(session(now=wall_clock()))
    monkeypatch.setenv("GOONDAN_OAUTH_KEY", OTHER_KEY)

    assert goondan("oauth", "revoke", opened.id, "--json").document == {"removed": True}
    again = goondan("oauth", "revoke", opened.id, "--json")
    assert again.document["error"]["code"] == "session_not_found"
    assert goondan("oauth", "sessions", "--json").document == []


@pytest.mark.parametrize("place", ["a-file", "a-file/root", "/proc/no-such-place"])
@pytest.mark.parametrize("key", [KEY, ""])
def test_unusable_state_root_is_reported_in_words(
    root: Path, monkeypatch: pytest.MonkeyPatch, place: str, key: str
) -> None:
    (root / "a-file").touch()
    monkeypatch.setenv("GOONDAN_STATE_ROOT", str(root / place))
    monkeypatch.setenv("GOONDAN_OAUTH_KEY", key)

    outcome = goondan("oauth", "grants", "--json")

    error = outcome.document["error"]
    assert (outcome.exit_code, error["code"]) == (3, "E_OAUTH_STORE")
    assert "cannot be used" in error["message"] and "GOONDAN_STATE_ROOT" in error["suggestion"]


def test_damaged_grant_is_listed_beside_others(root: Path) -> None:
    store().replace_grant(grant(), generation=0)
    store().replace_grant(grant(subject="U2"), generation=0)
    record = root / "root" / "oauth" / "grants" / f"{grant().name.removeprefix('sha256:')}.json"
    record.write_text("{", encoding="utf-8")

    outcome = goondan("oauth", "grants", "--json")
    whole, damaged = outcome.document

    assert (outcome.exit_code, whole["subject"]) == (0, "U2")
    assert (damaged["name"], damaged["status"]) == (grant().name, "unreadable")
    assert f"goondan oauth revoke {grant().name}" in outcome.stderr
    assert "U2" in goondan("oauth", "grants").stdout


@pytest.mark.usefixtures("root")
def test_rotation_encrypts_with_first_key(monkeypatch: pytest.MonkeyPatch) -> None:
    store().replace_grant(grant(), generation=0)
    monkeypatch.setenv("GOONDAN_OAUTH_KEY", f"{OTHER_KEY},{KEY}")
    assert goondan("oauth", "rotate-key", "--json").document["encryptedAgain"] == 1
    assert goondan("oauth", "rotate-key", "--json").document["encryptedAgain"] == 0
    monkeypatch.setenv("GOONDAN_OAUTH_KEY", OTHER_KEY)

    assert store().grant(APP, SUBJECT) is not None


@pytest.mark.usefixtures("root")
def test_rotation_without_configured_key_makes_new_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GOONDAN_OAUTH_KEY")
    store().replace_grant(grant(), generation=0)

    (before,) = store().grants()
    told = goondan("oauth", "rotate-key", "--json").document
    (after,) = store().grants()

    assert told == {"keyId": after.key_ids[0], "encryptedAgain": 1}
    assert before.key_ids != after.key_ids
    assert store().grant(APP, SUBJECT) is not None


@pytest.mark.usefixtures("root")
def test_unreadable_store_is_reported_with_its_page(monkeypatch: pytest.MonkeyPatch) -> None:
    store().open_session(session(now=wall_clock()))
    monkeypatch.setenv("GOONDAN_OAUTH_KEY", OTHER_KEY)

    (listed,) = goondan("oauth", "sessions", "--json").document
    outcome = goondan("oauth", "rotate-key", "--json")

    assert (listed["status"], listed["subject"]) == ("unreadable", SUBJECT)
    assert outcome.exit_code == 3
    assert outcome.document["error"]["code"] == "E_OAUTH_STORE"
    assert outcome.document["error"]["helpUrl"].endswith("/E_OAUTH_STORE")


BUNDLE = """apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: planner }
spec: {}
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: sales }
spec: { entryAgent: Agent/planner, agents: [Agent/planner] }
"""


def test_agent_is_woken_in_its_workers_swarm(tmp_path: Path) -> None:
    bundle = load_bundle(write(tmp_path, {"goondan.yaml": BUNDLE}))

    resume = resume_of(bundle, None, "planner", "thread-1")

    assert resume is not None
    assert (resume.swarm, resume.agent_name, resume.instance_key) == ("sales", "planner", "thread-1")
    assert resume_of(bundle, None, None, "default") is None
    with pytest.raises(AgentNotFoundError, match="planer"):
        resume_of(bundle, None, "planer", "default")
