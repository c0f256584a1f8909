"""Providers that answer too much, too slowly, or with somebody else's address."""

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from time import monotonic

import pytest

from goondan_tasks.oauth.oauth_errors import ProviderUnavailableError
from goondan_tasks.oauth.provider_http import ProviderHttp

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
def test_an_answer_that_is_too_long_or_takes_too_long_is_given_up(answer: Answer) -> None:
    with _provider(answer) as url:
        begun = monotonic()
        with pytest.raises(ProviderUnavailableError) as given_up:
            ProviderHttp(timeout_seconds=0.3).get(url, {})

    assert monotonic() - begun < 30, "it drips for 50 s"
    assert "a-secret" not in given_up.value.message


def test_a_host_whose_name_is_not_found_in_time_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    def look_up(*_: object, **__: object) -> list[object]:
        is_over.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    begun = monotonic()
    try:
        with pytest.raises(ProviderUnavailableError, match=r"slow\.invalid"):
            ProviderHttp(timeout_seconds=0.3).get("http://slow.invalid/", {})
    finally:
        is_over.set()

    assert monotonic() - begun < 30


def test_a_redirect_is_not_followed_with_what_was_sent() -> None:
    with _provider(_redirect) as url:
        assert ProviderHttp().get(url, {"Authorization": "Bearer a-token"}).status == 302


@pytest.mark.parametrize("url", ["http://127.0.0.1:1/token", "http://no-such-host.invalid/token"])
def test_a_provider_that_is_not_there_is_told_by_its_host(url: str) -> None:
    with pytest.raises(ProviderUnavailableError, match=r"127\.0\.0\.1:1|no-such-host") as failed:
        ProviderHttp().post(url, {}, "code=a-code")

    assert not failed.value.is_in_doubt


def _hang_up(handler: BaseHTTPRequestHandler) -> None:
    handler.rfile.read(int(handler.headers["Content-Length"]))
    handler.close_connection = True


def _answer_nothing_in_time(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.settimeout(30)
    while handler.rfile.read(1):
        pass  # until the client hangs up


@pytest.mark.parametrize("answer", [_hang_up, _answer_nothing_in_time, _flood])
def test_a_form_whose_answer_was_lost_may_have_had_its_effect(answer: Answer) -> None:
    with _provider(answer) as url, pytest.raises(ProviderUnavailableError) as failed:
        ProviderHttp(timeout_seconds=0.5).post(url, {}, "refresh_token=a-token")

    assert failed.value.is_in_doubt
