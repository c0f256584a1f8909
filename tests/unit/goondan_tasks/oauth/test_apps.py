"""Whose token it is."""

from typing import Any

import pytest

from goondan_tasks.contract.messages import JsonObject
from tests.oauth_server.apps import make_oauth_app

_URL = "http://127.0.0.1:9"


@pytest.mark.parametrize("expected", ["U1", "slack:U1", "slack:user:U1"])
@pytest.mark.parametrize("claims", [{"sub": "U1"}, {"id": "U1"}, {"sub": "U1", "id": "U2"}])
def test_user_is_known_by_sub_or_id(expected: str, claims: JsonObject) -> None:
    assert make_oauth_app(_URL).is_subject(expected, claims)


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"sub": "U2"},
        {"sub": "U2", "id": "U1"},
        {"sub": None},
        {"sub": ""},
        {"sub": True},
        {"sub": ["U1"]},
        {"name": "U1"},
    ],
)
def test_claims_that_do_not_identify_user_are_refused(claims: JsonObject) -> None:
    assert not make_oauth_app(_URL).is_subject("slack:user:U1", claims)
    assert not make_oauth_app(_URL).is_subject("True", claims)


def test_id_may_be_number() -> None:
    assert make_oauth_app(_URL, provider="github").is_subject("github:user:42", {"id": 42, "login": "x"})


@pytest.mark.parametrize(
    ("template", "claims", "subject"),
    [
        ("slack:user:{team.id}:{sub}", {"team": {"id": "T1"}, "sub": "U1"}, "slack:user:T1:U1"),
        ("{https://slack.com/team_id}", {"https://slack.com/team_id": "T1"}, "T1"),
        ("{team.id}", {"team": {}}, None),
        ("{team.id}", {"team": "T1"}, None),
        ("{a}{a}", {"a": "{b}", "b": "x"}, "{b}{b}"),
    ],
)
def test_template_says_how_subject_is_made(template: str, claims: JsonObject, subject: Any) -> None:
    app = make_oauth_app(_URL, subjectMode="global", options={"goondan": {"subject": template}})

    assert not app.is_for_anyone
    assert app.is_subject(subject or "None", claims) is (subject is not None)


@pytest.mark.requirement("oauth.flow.subject-checked")
@pytest.mark.parametrize("claims", [{"sub": "U1"}, {"sub": "slack:team:T111"}, {}])
def test_shared_subject_without_rule_accepts_no_user(claims: JsonObject) -> None:
    assert not make_oauth_app(_URL, subjectMode="global").is_subject("slack:team:T111", claims)


def test_shared_subject_for_anyone_accepts_any_user() -> None:
    app = make_oauth_app(_URL, subjectMode="global", options={"goondan": {"anyone": True}})

    assert app.is_for_anyone
    assert app.is_subject("slack:team:T111", {"sub": "U1"})


def test_app_of_users_is_never_for_anyone() -> None:
    app = make_oauth_app(_URL, subjectMode="user", options={"goondan": {"anyone": True}})

    assert not app.is_subject("slack:user:U1", {"sub": "U2"})
