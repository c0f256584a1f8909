"""Whom the guard lets in, and how much they may send."""

from dataclasses import replace
from typing import Any

import pytest
from starlette.testclient import TestClient

from goondan_tasks.contract.errors import ConfigError
from goondan_web.door import Access
from goondan_web.guard import MAX_HEAD_BYTES
from tests.unit.goondan_web.doors_for_tests import application, counting_door


def status(
    host: str = "127.0.0.1",
    headers: dict[str, str] | None = None,
    access: Access = Access.TOKEN,
    **settings: Any,
) -> int:
    """Ask a guarded application and return the HTTP status."""
    guarded = application(counting_door(access), host=host, **settings)
    answer = TestClient(guarded, base_url="http://127.0.0.1:8765").get("/", headers=headers or {})
    if answer.status_code == 200:
        assert answer.text == "0 bytes"
    else:
        assert set(answer.json()["error"]) >= {"code", "message", "suggestion", "helpUrl"}
    return answer.status_code


@pytest.mark.parametrize("origin", ["http://localhost", "http://127.0.0.1:3000", "https://[::1]:1"])
def test_local_page_may_ask_local_only_server(origin: str) -> None:
    assert status(headers={"Origin": origin}) == 200
    assert status("0.0.0.0", {"Origin": origin, "Authorization": "Bearer t"}, http_token="t") == 403


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        ("http://127.0.0.1:8765", 200),
        ("https://tools.example", 200),
        ("http://127.0.0.1:3000", 403),
        ("http://127.0.0.1", 403),
        ("http://localhost:8765", 403),
        ("null", 403),
    ],
)
def test_password_door_refuses_pages_of_other_ports(origin: str, expected: int) -> None:
    door = replace(counting_door(Access.TOKEN), takes_passwords=True)
    guarded = application(door, http_token="t0ken", public_url="https://tools.example")
    asking = TestClient(guarded, base_url="http://127.0.0.1:8765")

    assert asking.get("/", headers={"Origin": origin}, auth=("x", "t0ken")).status_code == expected


@pytest.mark.parametrize("access", Access)
def test_request_with_two_body_lengths_ends_connection(access: Access) -> None:
    lengths = {"Content-Length": "5", "Transfer-Encoding": "chunked"}
    asking = TestClient(application(counting_door(access)), base_url="http://127.0.0.1:8765")

    refused = asking.post("/", headers=lengths, content=b"12345")

    assert (refused.status_code, refused.headers["connection"]) == (400, "close")
    assert "Transfer-Encoding" in refused.json()["error"]["message"]


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://127.0.0.1.evil.example",
        "null",
        "",
        "http://",
        "http://[",
        "x:y:z",
    ],
)
def test_pages_of_other_sites_may_not(origin: str) -> None:
    assert status(headers={"Origin": origin}) == 403


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8765", "", "[", "10.0.0.1"])
def test_foreign_host_name_pointing_here_is_refused(host: str) -> None:
    assert status(headers={"Host": host}) == 403


@pytest.mark.parametrize(
    "shown", ["", "t0ken", "Bearer", "Bearer ", "Bearer T0KEN", "Bearer t0ken2", "Basic t0ken"]
)
def test_request_without_right_token_is_refused(shown: str) -> None:
    assert status(headers={"Authorization": shown}, http_token="t0ken") == 401


@pytest.mark.parametrize("token", ["tökà", "t\N{NEXT LINE}"])
def test_token_may_end_in_any_byte(token: str) -> None:
    # "à" ends in the byte A0, a space in Latin-1
    shown = {b"Authorization": b"Bearer " + token.encode()}
    client = TestClient(application(http_token=token), base_url="http://127.0.0.1:8765")

    assert client.get("/", headers=shown).status_code == 200


def test_with_token_any_name_of_server_will_do() -> None:
    shown = {"Authorization": "bearer t0ken", "Host": "tools.example"}

    assert status("0.0.0.0", shown, http_token="t0ken") == 200


def test_pages_of_public_url_may_ask() -> None:
    settings: dict[str, Any] = {"http_token": "t", "public_url": "https://tools.example/some/path"}
    shown = {"Authorization": "Bearer t"}

    assert status("0.0.0.0", {**shown, "Origin": "https://tools.example"}, **settings) == 200
    assert status("0.0.0.0", {**shown, "Origin": "http://tools.example"}, **settings) == 403
    assert status("0.0.0.0", {**shown, "Origin": "https://tools.example:444"}, **settings) == 403


@pytest.mark.parametrize("public_url", ["https://Tools.Example", "https://tools.example:443/path"])
def test_unusually_written_public_url_is_accepted(public_url: str) -> None:
    shown = {"Authorization": "Bearer t", "Origin": "https://tools.example"}

    assert status("0.0.0.0", shown, http_token="t", public_url=public_url) == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7", "tools.example", ""])
def test_other_machines_are_not_served_without_token(host: str) -> None:
    with pytest.raises(ConfigError, match="no token is set"):
        status(host)


SENT_BY_A_SERVER = {"Host": "hooks.example", "Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"}


@pytest.mark.parametrize("settings", [{}, {"http_token": "t0ken"}])
@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_door_with_its_own_authentication_takes_everyone(host: str, settings: dict[str, Any]) -> None:
    assert status(host, SENT_BY_A_SERVER, Access.OWN, **settings) == 200


def test_other_machines_need_token_for_figures_only_if_set() -> None:
    other = {"Host": "metrics.internal:9464"}

    assert status("0.0.0.0", other, Access.TOKEN_IF_SET) == 200
    assert status("127.0.0.1", other, Access.TOKEN_IF_SET) == 403
    assert status("0.0.0.0", other, Access.TOKEN_IF_SET, http_token="t") == 401
    assert (
        status("0.0.0.0", {**other, "Authorization": "Bearer t"}, Access.TOKEN_IF_SET, http_token="t") == 200
    )


@pytest.mark.parametrize(
    ("fetched", "expected"),
    [
        ({"Sec-Fetch-Site": "none"}, 200),
        ({"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}, 403),
        ({"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, 200),
        ({"Sec-Fetch-Site": "cross-site", "Origin": "http://localhost:3000"}, 200),
    ],
)
def test_other_sites_page_may_link_but_not_fetch(fetched: dict[str, str], expected: int) -> None:
    assert status(headers=fetched) == expected


def test_form_of_another_site_is_refused() -> None:
    sent = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    client = TestClient(application(), base_url="http://127.0.0.1:8765")

    assert client.post("/", headers=sent).status_code == 403


def test_unknown_path_needs_token_too() -> None:
    client = TestClient(application(http_token="t0ken"), base_url="http://127.0.0.1:8765")

    refused = client.get("/no-such-path")
    missing = client.get("/no-such-path", headers={"Authorization": "Bearer t0ken"})

    assert (refused.status_code, refused.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "E_NOT_FOUND")


@pytest.mark.parametrize("access", [Access.OWN, Access.TOKEN])
def test_head_that_is_too_large_is_refused(access: Access) -> None:
    assert status(headers={"X-Large": "x" * MAX_HEAD_BYTES}, access=access) == 431


def test_announced_or_arriving_oversized_body_is_refused() -> None:
    client = TestClient(
        application(counting_door(Access.OWN, max_body_bytes=1_000)), base_url="http://127.0.0.1:8765"
    )

    fits = client.post("/", content=b"x" * 1_000)
    announced = client.post("/", content=b"x" * 1_001)
    arrived = client.post("/", content=iter([b"x" * 600] * 2))

    assert fits.text == "1000 bytes"
    for answer in (announced, arrived):
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "E_PAYLOAD_TOO_LARGE")
