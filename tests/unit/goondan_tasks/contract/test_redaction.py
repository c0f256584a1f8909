"""Secrets in what is logged and answered."""

import logging
import sys
from collections.abc import Iterator
from io import StringIO
from pathlib import Path

import pytest
import structlog
from pydantic import SecretStr

from broker_config.settings import Settings
from goondan_tasks.contract.failure import describe
from goondan_tasks.contract.logs import configure_logging
from goondan_tasks.contract.redaction import KNOWN_SECRETS, KnownSecrets, hidden_by_place, hide_secrets
from goondan_tasks.oauth.crypto import Cipher, Keyring, SecretField

TOKEN = "xoxb-4711-token-of-a-test"


def test_known_secret_is_hidden_wherever_it_stands() -> None:
    secrets = KnownSecrets()
    secrets.add(TOKEN)

    assert secrets.hidden_in_log(f"Bearer {TOKEN}, {TOKEN}!") == "Bearer ***, ***!"
    assert secrets.hidden_in_answer({"a": [f"t={TOKEN}", 5, None], TOKEN: (TOKEN,)}) == {
        "a": ["t=***", 5, None],
        "***": ["***"],
    }


def test_possible_secret_beginning_is_held_at_text_end() -> None:
    secrets = KnownSecrets()
    assert secrets.hidden_in_part("xoxb") == ("xoxb", "")
    secrets.add(TOKEN)
    secrets.add("xx-state-of-a-link", is_handed_out=True)

    ends = ["", "word", "word x", "word xoxb-47", TOKEN[:-1], TOKEN, "oxb-47", "xx-state"]
    assert [secrets.hidden_in_part(end)[1] for end in ends] == [
        *("", "", "x", "xoxb-47", TOKEN[:-1]),
        *("",) * 3,
    ]
    assert secrets.hidden_in_part(f"{TOKEN} xo") == ("*** ", "xo")


def test_secret_ending_like_secret_start_stays_whole() -> None:
    secrets = KnownSecrets()
    secrets.add("abcd-1234-abcd")
    secrets.add("abcd-1234-abcd-and-more")

    assert secrets.hidden_in_part("is abcd-1234-abcd") == ("is ", "abcd-1234-abcd")
    assert secrets.hidden_in_part("is abcd-1234-abcd.") == ("is ***.", "")
    secrets = KnownSecrets()
    secrets.add("abcd-1234-abcd")
    assert secrets.hidden_in_part("is abcd-1234-abcd") == ("is ", "abcd-1234-abcd")


def test_of_secret_that_begins_with_another_nothing_stays() -> None:
    secrets = KnownSecrets()
    secrets.add(TOKEN)
    secrets.add(f"{TOKEN}-and-more")

    assert secrets.hidden_in_log(f"{TOKEN}-and-more {TOKEN}") == "*** ***"


def test_secret_used_as_logged_key_is_hidden(log: StringIO) -> None:
    KNOWN_SECRETS.add(TOKEN)

    structlog.get_logger("tool").warning("seen", rows={TOKEN: 1})

    assert TOKEN not in log.getvalue() and '"***": 1' in log.getvalue()


def test_handed_out_secret_is_hidden_only_in_logs() -> None:
    secrets = KnownSecrets()
    secrets.add("state-of-a-session", is_handed_out=True)
    secrets.add(TOKEN)
    link = "https://p.example/authorize?state=state-of-a-session"

    assert secrets.hidden_in_answer(link) == link
    assert secrets.hidden_in_log(link) == "https://p.example/authorize?state=***"


def test_secret_also_handed_out_stays_hidden_from_answers() -> None:
    secrets = KnownSecrets()
    secrets.add("opensesame")
    secrets.add("opensesame", is_handed_out=True)

    assert secrets.hidden_in_answer("opensesame") == "***"


def test_answer_is_not_touched_where_nothing_is_known() -> None:
    answer = {"password": "short", "n": [1]}

    assert KnownSecrets().hidden_in_answer(answer) is answer


def test_words_are_no_secrets_and_longest_unused_are_forgotten() -> None:
    secrets = KnownSecrets()
    secrets.add("bearer")
    for number in range(514):
        secrets.add(f"secret-{number:06}")
        secrets.add("secret-000001")

    shown = secrets.hidden_in_log("bearer secret-000002 secret-000001 secret-000003 secret-000513")
    assert shown == "bearer secret-000002 *** *** ***"


@pytest.mark.parametrize(
    "name",
    [
        "access_token",
        "refreshToken",
        "client_secret",
        "codeVerifier",
        "Authorization",
        "password",
        "apiKey",
        "token",
        "X-Auth-Token",
        "X-Api-Key",
        "Set-Cookie",
        "privateKey",
        "passwd",
        "credentials",
        "secret",
    ],
)
def test_field_is_hidden_by_its_name(name: str) -> None:
    event = hide_secrets(
        None, "info", {name: "v", "nested": {name: "v"}, "list": [{name: "v"}], "event": "e"}
    )

    assert event == {name: "***", "nested": {name: "***"}, "list": [{name: "***"}], "event": "e"}


@pytest.mark.parametrize("name", ["tokens", "author", "state", "key", "authorization_url"])
def test_field_resembling_secret_is_shown(name: str) -> None:
    assert hide_secrets(None, "info", {name: "v"}) == {name: "v"}


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Iterator[StringIO]:
    written = StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    configure_logging(Settings(log_format="json"))
    yield written
    root.handlers, root.level = handlers, level
    structlog.reset_defaults()


@pytest.mark.requirement("oauth.secrets.never-shown")
def test_decrypted_secret_reaches_no_log_or_error(log: StringIO) -> None:
    cipher, place = (
        Cipher(Keyring.of(["00" * 32])),
        SecretField("OAuthGrantRecord", "sha256:1", "accessToken"),
    )
    cipher.decrypt(cipher.encrypt(SecretStr(TOKEN), place), place)
    error = ValueError(f"401 for Bearer {TOKEN}")

    logging.getLogger("httpx2").warning("GET /?access_token=%s", TOKEN)
    structlog.get_logger("tool").warning("failed", error=error, at=(Path("/x"), {"y": error}))
    structlog.get_logger("tool").warning("asked", headers={"X": f"Bearer {TOKEN}"}, exc_info=error)
    described = describe(error, help_url="https://docs.example/")

    assert log.getvalue().count("\n") == 3
    assert "401 for Bearer ***" in log.getvalue()
    assert TOKEN not in log.getvalue()
    assert described.message == "401 for Bearer ***"
    assert KNOWN_SECRETS.hidden_in_answer([TOKEN]) == ["***"]


@pytest.mark.parametrize("part", ["pwd", "token-", "pwd= ", "bearer ", "://", "https://a:b@", "pwd '"])
def test_long_text_of_names_is_searched_in_moment(part: str) -> None:
    hidden = hidden_by_place(part * 200_000 + " and password=opensesame")

    assert hidden.endswith("password=***"), "hours if each place of the text is a beginning"


def test_names_without_value_stay_as_they_are() -> None:
    assert hidden_by_place("the token-count of pwd pwd tokens, passcode") == (
        "the token-count of pwd pwd tokens, passcode"
    )
