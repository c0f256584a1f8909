"""Every form in which providers answer."""

from typing import Any

import pytest

from goondan_tasks.messages import JsonObject
from goondan_tasks.oauth.token_reply import provider_data, reply_error, reply_fields, token_reply


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ('{"access_token": "a"}', {"access_token": "a"}),
        (
            "access_token=a&scope=repo%2Cgist&token_type=bearer",
            {"access_token": "a", "scope": "repo,gist", "token_type": "bearer"},
        ),
        (
            "error=bad_verification_code&error_description=It+has+expired.",
            {"error": "bad_verification_code", "error_description": "It has expired."},
        ),
        ("", None),
        ("OK", None),
        ("[1]", None),
        ("null", None),
        ("<html a=b>503</html>", None),
        ("[" * 100_000, None),
        ("&".join(["a=b"] * 101), None),
    ],
)
def test_a_reply_is_read_as_json_or_as_a_form(text: str, fields: JsonObject | None) -> None:
    assert reply_fields(text) == fields


@pytest.mark.parametrize(
    ("fields", "error"),
    [
        ({"error": "invalid_grant"}, "invalid_grant"),
        ({"ok": False, "error": "token_revoked"}, "token_revoked"),
        ({"ok": False}, "unknown_error"),
        ({"error": {"code": "190", "message": "no"}}, "190"),
        ({"error": ["a"]}, "unknown_error"),
        ({"error": "<b>"}, "unknown_error"),
        ({"error": "x" * 100}, "unknown_error"),
        ({"ok": True, "access_token": "a"}, None),
        ({"error": None, "access_token": "a"}, None),
        ({"error": "", "access_token": "a"}, None),
    ],
)
def test_an_error_is_found_whatever_the_http_status_was(fields: JsonObject, error: str | None) -> None:
    assert reply_error(fields) == error


@pytest.mark.parametrize(
    ("scope", "scopes"),
    [
        ("a b", ("a", "b")),
        ("a,b", ("a", "b")),
        ("a, b  c", ("a", "b", "c")),
        (["a", "b", 3], ("a", "b")),
        ("a a", ("a",)),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_scopes_are_read_with_any_separator(scope: Any, scopes: tuple[str, ...] | None) -> None:
    reply = token_reply({"access_token": "a", "scope": scope})

    assert reply is not None and reply.scopes == scopes


@pytest.mark.parametrize(
    ("expires_in", "seconds"),
    [
        (3600, 3600.0),
        ("3600", 3600.0),
        (0, None),
        ("0", None),
        (-5, None),
        (None, None),
        ("soon", None),
        (float("nan"), None),
        (float("inf"), None),
        (2**63 - 1, None),
        (10**400, None),
        ("1e300", None),
        (10 * 366 * 86_400, 316_224_000.0),
        ([], None),
    ],
)
def test_a_lifetime_is_read_as_a_number_or_as_text(expires_in: Any, seconds: float | None) -> None:
    reply = token_reply({"access_token": "a", "expires_in": expires_in})

    assert reply is not None and reply.expires_in == seconds


@pytest.mark.parametrize("fields", [{}, {"access_token": ""}, {"access_token": 7}, {"access_token": None}])
def test_a_reply_without_a_token_is_none(fields: JsonObject) -> None:
    assert token_reply(fields) is None


def test_what_else_the_provider_says_is_kept_without_its_secrets() -> None:
    reply = token_reply(
        {"access_token": "the-token", "refresh_token": "r", "id_token": "i", "team": {"id": "T1"}}
    )

    assert reply is not None and reply.details == {"team": {"id": "T1"}}
    assert reply.token_type == "bearer"
    assert "the-token" not in repr(reply)


def test_what_a_provider_says_beside_the_token_is_kept_without_anything_that_may_be_a_secret() -> None:
    fields = {
        "ok": True,
        "access_token": "secret-1",
        "refresh_token": "secret-2",
        "scope": "chat:write",
        "expires_in": 3600,
        "team": {"id": "T1", "name": None},
        "authed_user": {"id": "U1", "access_token": "secret-3", "list": [{"apiKey": "secret-4", "n": 1}]},
        "repeated": "Bearer secret-1",
    }
    reply = token_reply(fields)

    assert reply is not None
    assert provider_data(reply) == {
        "team": {"id": "T1", "name": None},
        "authed_user": {"id": "U1", "list": [{"n": 1}]},
        "repeated": None,
    }


def test_an_address_that_lets_whoever_knows_it_post_is_not_kept() -> None:
    webhook = {
        "channel_id": "C05",
        "configuration_url": "https://acme.slack.example/services/B1",
        "url": "https://hooks.slack.example/T1/B1/the-secret",
    }
    reply = token_reply(
        {
            "access_token": "a-token",
            "team": {"id": "T1", "name": "Acme", "image": "https://slack.example/the-secret.png"},
            "incoming_webhook": webhook,
            "anything": "the-secret-that-is-much-longer-than-a-name",
            "bot_id": "d7f3a1c2-8f5e-4d5b-9c0a-2b1f0e9d8c7b",
        }
    )

    assert reply is not None
    assert provider_data(reply) == {
        "team": {"id": "T1", "name": "Acme", "image": None},
        "anything": None,
        "bot_id": "d7f3a1c2-8f5e-4d5b-9c0a-2b1f0e9d8c7b",
    }


@pytest.mark.parametrize("extra", [{"much": "x" * 20_000}, {"deep": [[[[[[[[[["secret"]]]]]]]]]]}])
def test_a_provider_that_says_too_much_is_not_written_down(extra: dict[str, Any]) -> None:
    reply = token_reply({"access_token": "a-token", **extra})

    assert reply is not None
    assert "x" * 20_000 not in str(provider_data(reply)) and "secret" not in str(provider_data(reply))
