"""What a provider is asked, and what it may answer."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic
from typing import Any

import pytest
from joserfc import jws, jwt
from joserfc.jwk import OctKey

from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.oauth.provider import (
    ProviderHttp,
    ProviderResponse,
    answer_fields,
    device_code_of,
    id_token_claims,
    reply_error,
    reply_fields,
    token_reply,
)
from goondan_tasks.oauth.records import ProviderRefusedError, ProviderUnavailableError
from tests.oauth_server.apps import make_oauth_app

Answer = Callable[[BaseHTTPRequestHandler], None]


@contextmanager
def _provider(answer: Answer) -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self)

        def do_POST(self) -> None:
            answer(self)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/userinfo?key=a-secret"
        server.shutdown()


def _drip(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(1_000):
        try:
            handler.wfile.write(b" ")
        except OSError:
            return
        threading.Event().wait(0.05)


def _trickle_headers(handler: BaseHTTPRequestHandler) -> None:
    try:
        for letter in b"HTTP/1.1 200 OK\r\nX-Long: " + b"x" * 1_000:
            handler.wfile.write(bytes([letter]))
            threading.Event().wait(0.05)
    except OSError:
        return


def _flood(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    try:
        handler.wfile.write(b" " * 10_000_000)
    except OSError:
        return


def _redirect(handler: BaseHTTPRequestHandler) -> None:
    handler.send_response(302)
    handler.send_header("Location", "http://127.0.0.1:1/elsewhere")
    handler.end_headers()


@pytest.mark.parametrize("answer", [_drip, _trickle_headers, _flood])
def test_too_long_or_slow_answer_is_abandoned(answer: Answer) -> None:
    with _provider(answer) as url:
        begun = monotonic()
        with pytest.raises(ProviderUnavailableError) as given_up:
            ProviderHttp(timeout_seconds=0.3).send("GET", url, {})

    assert monotonic() - begun < 30, "it drips for 50 s"
    assert "a-secret" not in given_up.value.message


def test_slow_lookup_of_host_is_abandoned(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def look_up(*_: object, **__: object) -> list[object]:
        is_over.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    begun = monotonic()
    try:
        with pytest.raises(ProviderUnavailableError, match=r"slow\.invalid"):
            ProviderHttp(timeout_seconds=0.3).send("GET", "http://slow.invalid/", {})
    finally:
        is_over.set()

    assert monotonic() - begun < 30


def test_redirect_is_not_followed_with_sent_credentials() -> None:
    with _provider(_redirect) as url:
        assert ProviderHttp().send("GET", url, {"Authorization": "Bearer a-token"}).status == 302


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/token", "http://no-such-host.invalid/token"])
def test_unreachable_provider_is_named_by_host(url: str) -> None:
    with pytest.raises(ProviderUnavailableError, match=r"127\.0\.0\.1:1|no-such-host") as failed:
        ProviderHttp().send("POST", url, {}, "code=a-code")

    assert not failed.value.is_in_doubt


def _hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(int(handler.headers["Content-Length"]))
    handler.close_connection = True


def _answer_nothing_in_time(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.settimeout(30)
    while handler.rfile.read(1):
        pass  # until the client hangs up


@pytest.mark.parametrize("answer", [_hang_up, _answer_nothing_in_time, _flood])
def test_form_with_lost_answer_is_in_doubt(answer: Answer) -> None:
    with _provider(answer) as url, pytest.raises(ProviderUnavailableError) as failed:
        ProviderHttp(timeout_seconds=3).send("POST", url, {}, "refresh_token=a-token")

    assert failed.value.is_in_doubt


@pytest.mark.parametrize(
    ("status", "text", "is_in_doubt"),
    [
        (502, "<html>Bad gateway</html>", True),
        (503, "down for maintenance", True),
        (504, "", True),
        (500, '{"error": "Internal Server Error"}', True),
        (500, '{"error": "server_error"}', True),
        (400, '{"error": "server_error"}', True),
        (200, "not a token", True),
        (200, '{"ok": false, "error": "ratelimited"}', False),
        (503, '{"error": "temporarily_unavailable"}', False),
        (429, "slow down", False),
        (403, "<html>blocked</html>", False),
        (302, "", False),
    ],
)
def test_unusable_answer_leaves_doubt_unless_provider_refused(
    status: int, text: str, is_in_doubt: bool
) -> None:
    with pytest.raises(ProviderUnavailableError) as failed:
        answer_fields(make_oauth_app("https://slack.example"), ProviderResponse(status, text), ())

    assert failed.value.is_in_doubt is is_in_doubt


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
def test_reply_is_read_as_json_or_as_form(text: str, fields: JsonObject | None) -> None:
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
def test_error_is_found_whatever_http_status_was(fields: JsonObject, error: str | None) -> None:
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
def test_lifetime_is_read_as_number_or_as_text(expires_in: Any, seconds: float | None) -> None:
    reply = token_reply({"access_token": "a", "expires_in": expires_in})

    assert reply is not None and reply.expires_in == seconds


@pytest.mark.parametrize("fields", [{}, {"access_token": ""}, {"access_token": 7}, {"access_token": None}])
def test_reply_without_token_is_none(fields: JsonObject) -> None:
    assert token_reply(fields) is None


def test_other_reply_fields_are_kept_without_secrets() -> None:
    reply = token_reply(
        {"access_token": "the-token", "refresh_token": "r", "id_token": "i", "team": {"id": "T1"}}
    )

    assert reply is not None and reply.details == {"team": {"id": "T1"}}
    assert reply.token_type == "bearer"
    assert "the-token" not in repr(reply)


def test_provider_data_is_kept_without_possible_secrets() -> None:
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
    assert reply.provider_data() == {
        "team": {"id": "T1", "name": None},
        "authed_user": {"id": "U1", "list": [{"n": 1}]},
        "repeated": None,
    }


def test_incoming_webhook_address_is_not_kept() -> None:
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
    assert reply.provider_data() == {
        "team": {"id": "T1", "name": "Acme", "image": None},
        "anything": None,
        "bot_id": "d7f3a1c2-8f5e-4d5b-9c0a-2b1f0e9d8c7b",
    }


@pytest.mark.parametrize("extra", [{"much": "x" * 20_000}, {"deep": [[[[[[[[[["secret"]]]]]]]]]]}])
def test_excessive_provider_data_is_not_kept(extra: dict[str, Any]) -> None:
    reply = token_reply({"access_token": "a-token", **extra})

    assert reply is not None
    assert "x" * 20_000 not in str(reply.provider_data()) and "secret" not in str(reply.provider_data())


_REPLY = {
    "device_code": "secret",
    "user_code": "WDJB-MJHT",
    "verification_uri": "https://slack.example/device",
    "expires_in": 600,
}


def test_device_code_is_polled_at_default_interval() -> None:
    device = device_code_of(_REPLY)

    assert device is not None
    assert (device.user_code, device.interval, device.device_code.get_secret_value()) == (
        "WDJB-MJHT",
        5,
        "secret",
    )


def test_google_calls_place_by_another_name() -> None:
    place = _REPLY["verification_uri"]
    device = device_code_of({**_REPLY, "verification_uri": None, "verification_url": place})

    assert device is not None and device.verification_uri == place


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("device_code", ""),
        ("device_code", None),
        ("user_code", ""),
        ("verification_uri", "javascript:alert(1)"),
        ("verification_uri", None),
        ("verification_uri_complete", "file:///etc/passwd"),
        ("expires_in", 0),
        ("expires_in", "soon"),
        ("expires_in", 10**12),
        ("interval", 0),
        ("interval", 601),
    ],
)
def test_unusable_device_code_is_none(field: str, value: Any) -> None:
    assert device_code_of({**_REPLY, field: value}) is None


_KEY = OctKey.import_key("a key of the provider, which we need not know")


def _id_token(**claims: Any) -> str:
    usual = {"sub": "U1", "aud": "our-id", "exp": int(time.time()) + 300}
    return jwt.encode({"alg": "HS256"}, {**usual, **claims}, _KEY)


def _signed(text: str) -> str:
    return jws.serialize_compact({"alg": "HS256"}, text.encode(), _KEY)


def test_id_token_names_user() -> None:
    assert id_token_claims(_id_token(), "our-id")["sub"] == "U1"
    assert id_token_claims(_id_token(aud=["another", "our-id"]), "our-id")["sub"] == "U1"


@pytest.mark.parametrize(
    "token",
    [
        _id_token(aud="another"),
        _id_token(exp=1),
        _id_token(sub=None),
        "",
        "a.b",
        "a.b.c",
        "é.é.é",
        _id_token()[:-200],
        _signed('["sub", "aud", "exp"]'),
        _signed('"sub aud exp"'),
        _signed("null"),
        _signed("[" * 100_000),
    ],
)
def test_invalid_id_token_is_refused_without_being_repeated(token: str) -> None:
    with pytest.raises(ProviderRefusedError) as refused:
        id_token_claims(token, "our-id")

    assert refused.value.error == "invalid_id_token"
    assert not token or token not in refused.value.message
