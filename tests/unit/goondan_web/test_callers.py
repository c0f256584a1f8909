"""Whom the guard finds behind a request, and what that caller may do."""

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import structlog
from redis.exceptions import ConnectionError as RedisConnectionError
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.fleet.http_tokens import HttpToken, digest_of
from goondan_web import callers
from goondan_web.answers import RequestError, UnauthorizedError
from goondan_web.application import make_application
from goondan_web.callers import (
    OUTAGE_SECONDS,
    TABLE_SECONDS,
    UNKNOWN_SECONDS,
    USE_SECONDS,
    Caller,
    Tokens,
    UserHeader,
    require,
)
from goondan_web.door import Access, Door
from tests.waiting import wait_until


def token(name: str, *scopes: str, **fields: Any) -> HttpToken:
    """A token whose text is its name."""
    return HttpToken(name=name, digest=digest_of(name.encode()), scopes=scopes or ("read",), **fields)


class Table:
    """The tokens of Redis, how often they were read, and whose use was noted."""

    def __init__(self, *tokens: HttpToken) -> None:
        self.rows, self.reads, self.used = list(tokens), 0, list[tuple[str, int]]()
        self.is_away = False

    def tokens(self) -> list[HttpToken]:
        self.reads += 1
        if self.is_away:
            raise RedisConnectionError("away")
        return list(self.rows)

    def note_use(self, name: str, milliseconds: int) -> None:
        if self.is_away:
            raise RedisConnectionError("away")
        self.used.append((name, milliseconds))


class Clock:
    """A clock that tests set."""

    def __init__(self) -> None:
        self.seconds = 1_000.0

    def __call__(self) -> float:
        return self.seconds


async def whoami(request: Request) -> JSONResponse:
    caller: Caller = request.state.caller
    return JSONResponse({"name": caller.name, "scopes": sorted(caller.scopes), "auth": caller.auth})


async def call(request: Request) -> JSONResponse:
    return JSONResponse({"name": require(request, "call:coder").name})


def client(
    table: Table | None = None,
    access: Access = Access.TOKEN,
    host: str = "127.0.0.1",
    peer: str = "127.0.0.1",
    **settings: Any,
) -> TestClient:
    door = Door("who", "/", [Route("/", whoami), Route("/call", call)], access)
    app = make_application([door], Settings.load(**settings), host, table=table)
    return TestClient(app, base_url="http://127.0.0.1:8765", client=(peer, 5_000))


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


@pytest.mark.parametrize(
    ("scopes", "allowed"),
    [
        ({"admin"}, {"call:coder", "call:*", "read", "approve", "admin"}),
        ({"call:*"}, {"call:coder", "call:*"}),
        ({"call:coder"}, {"call:coder"}),
        ({"call:planner", "read"}, {"read"}),
        ({"approve"}, {"approve"}),
        (set(), set()),
    ],
)
def test_scopes_allow_what_they_name(scopes: set[str], allowed: set[str]) -> None:
    caller = Caller("ci", frozenset(scopes))

    assert {one for one in ("call:coder", "call:*", "read", "approve", "admin") if caller.may(one)} == allowed


def test_route_refuses_token_without_required_scope() -> None:
    served = client(Table(token("reader"), token("caller", "call:coder")))

    refused = served.get("/call", headers=bearer("reader"))

    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "E_FORBIDDEN")
    assert refused.json()["error"]["message"] == "reader lacks the scope call:coder."
    assert refused.json()["error"]["suggestion"]
    assert served.get("/call", headers=bearer("caller")).json() == {"name": "caller"}


def test_environment_token_is_admin_others_are_scoped() -> None:
    several = {"ci": {"token": "t2", "scopes": ["read"], "user": "U1"}}
    served = client(http_token="t1", http_tokens=json.dumps(several))

    one, other = (served.get("/", headers=bearer(text)).json() for text in ("t1", "t2"))

    assert one == {"name": "GOONDAN_HTTP_TOKEN", "scopes": ["admin"], "auth": None}
    assert other == {"name": "ci", "scopes": ["read"], "auth": {"subjects": {"user": "U1"}}}
    assert served.get("/", headers=bearer("t3")).status_code == 401


def test_without_tokens_local_is_admin_others_read() -> None:
    assert client(Table()).get("/").json() == {"name": "local", "scopes": ["admin"], "auth": None}
    others = client(Table(), Access.TOKEN_IF_SET, "0.0.0.0", "10.0.0.7").get("/").json()
    assert others == {"name": "anyone", "scopes": ["read"], "auth": None}


def test_redis_token_allows_and_secures_remote_listening() -> None:
    with pytest.raises(ConfigError, match="no token is set"):
        client(Table(), host="0.0.0.0")
    served = client(Table(token("ci")), host="0.0.0.0")

    assert served.get("/").status_code == 401
    assert served.get("/", headers=bearer("ci")).json()["name"] == "ci"


def test_caller_is_logged_by_name() -> None:
    served = client(Table(token("ci")))
    with structlog.testing.capture_logs() as logs:
        served.get("/", headers=bearer("ci"))

    assert [line["caller"] for line in logs if line["event"] == "http.request"] == ["ci"]


def test_expired_token_is_refused() -> None:
    tokens = Tokens([], Table(token("ci", expires_at=iso_time(2_000))), now=lambda: now)
    now = 1_999.0
    assert asyncio.run(tokens.caller(b"ci")).name == "ci"
    now = 2_000.0
    with pytest.raises(UnauthorizedError):
        asyncio.run(tokens.caller(b"ci"))


@contextmanager
def known(*rows: HttpToken, own: list[HttpToken] | None = None) -> Iterator[tuple[Tokens, Table, Clock]]:
    table, clock = Table(*rows), Clock()
    tokens = Tokens(own or [], table, clock, lambda: clock.seconds * 1_000)
    tokens.begin()
    yield tokens, table, clock


def shown(tokens: Tokens, text: str) -> str | type[Exception]:
    try:
        return asyncio.run(tokens.caller(text.encode())).name
    except (UnauthorizedError, BrokerUnreachableError) as error:
        return type(error)


def test_known_tokens_cost_no_trip_until_old() -> None:
    with known(token("ci")) as (tokens, table, clock):
        assert [shown(tokens, "ci") for _ in range(10)] == ["ci"] * 10
        assert table.reads == 1
        clock.seconds += TABLE_SECONDS
        assert shown(tokens, "ci") == "ci"
        assert table.reads == 2


def test_revoked_token_is_refused_after_next_read() -> None:
    with known(token("ci"), token("other")) as (tokens, table, clock):
        table.rows.pop(0)
        clock.seconds += TABLE_SECONDS
        assert shown(tokens, "ci") is UnauthorizedError


def test_revocation_of_last_token_opens_no_door() -> None:
    with known(token("ci")) as (tokens, table, clock):
        table.rows.clear()
        clock.seconds += TABLE_SECONDS
        assert shown(tokens, "ci") is UnauthorizedError
        assert tokens.has_any


def test_new_token_works_within_second_with_one_trip() -> None:
    with known(token("ci")) as (tokens, table, clock):
        table.rows.append(token("new"))
        assert [shown(tokens, "new") for _ in range(5)] == [UnauthorizedError] * 5
        assert table.reads == 1
        clock.seconds += UNKNOWN_SECONDS
        assert shown(tokens, "new") == "new"
        assert table.reads == 2


def test_running_server_requires_first_added_token() -> None:
    with known() as (tokens, table, clock):
        table.rows.append(token("ci"))
        clock.seconds += TABLE_SECONDS
        asyncio.run(tokens.look())
        assert tokens.has_any


def test_requests_do_not_wait_for_silent_redis(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(callers, "LOOK_SECONDS", 0.01)
    may_answer = threading.Event()

    class Silent(Table):
        def tokens(self) -> list[HttpToken]:
            assert may_answer.wait(30)
            return super().tokens()

    async def looked() -> None:
        table = Silent(token("ci"))
        tokens = Tokens([], table)
        for _ in range(3):
            await tokens.look()
        assert not tokens.has_any
        may_answer.set()
        while not tokens.has_any:
            await tokens.look()
        assert table.reads == 1

    asyncio.run(looked())


def test_during_outage_only_tokens_of_environment_are_known() -> None:
    with known(token("ci"), own=[token("own", "admin")]) as (tokens, table, clock):
        table.is_away = True
        assert shown(tokens, "ci") == "ci"
        clock.seconds += TABLE_SECONDS
        assert [shown(tokens, text) for text in ("own", "ci", "wrong")] == [
            "own",
            BrokerUnreachableError,
            BrokerUnreachableError,
        ]
        assert table.reads == 2, "requests do not queue for a Redis that was away a moment ago"
        table.is_away = False
        clock.seconds += OUTAGE_SECONDS
        assert shown(tokens, "ci") == "ci"


def test_outage_gives_503_without_naming_redis() -> None:
    table = Table()
    table.is_away = True
    served = client(table, http_token="own")

    away = served.get("/", headers=bearer("ci"))

    assert (away.status_code, away.json()["error"]["code"]) == (503, "E_BROKER_UNREACHABLE")
    assert away.json()["error"]["message"] != "away"
    assert away.headers["Retry-After"]
    assert served.get("/", headers=bearer("own")).status_code == 200


def test_use_is_noted_each_minute_and_failure_is_harmless() -> None:
    with known(token("ci")) as (tokens, table, clock):
        assert [shown(tokens, "ci") for _ in range(3)] == ["ci"] * 3
        wait_until(lambda: table.used == [("ci", 1_000_000)])
        clock.seconds += USE_SECONDS
        assert shown(tokens, "ci") == "ci"
        wait_until(lambda: table.used[1:] == [("ci", 1_060_000)])


PROXY: dict[str, Any] = {"http_user_header": "X-Forwarded-User", "http_trusted_proxies": "10.0.0.0/8, ::1"}


@pytest.mark.parametrize(
    ("peer", "expected"),
    [
        ("10.1.2.3", "ann"),
        ("::ffff:10.1.2.3", "ann"),
        ("::1", "ann"),
        ("11.0.0.1", None),
        ("127.0.0.1", None),
        ("/run/socket", None),
    ],
)
def test_only_trusted_proxy_names_user(peer: str, expected: str | None) -> None:
    served = client(peer=peer, http_token="t", **PROXY)

    auth = served.get("/", headers={**bearer("t"), "X-Forwarded-User": "ann"}).json()["auth"]

    assert auth == (expected and {"subjects": {"user": expected}})


def test_proxy_replaces_neither_token_nor_its_user() -> None:
    several = {"ci": {"token": "t2", "scopes": ["read"], "user": "U1"}}
    served = client(peer="10.0.0.1", http_token="t", http_tokens=json.dumps(several), **PROXY)
    named = {"X-Forwarded-User": "ann"}

    assert served.get("/", headers=named).status_code == 401
    assert served.get("/", headers={**bearer("t2"), **named}).json()["auth"] == {"subjects": {"user": "U1"}}
    assert served.get("/", headers=bearer("t")).json()["auth"] is None


@pytest.mark.parametrize("value", [b"a\tb", b"x" * 257, b" "])
def test_user_that_cannot_be_read_is_refused(value: bytes) -> None:
    served = client(peer="10.0.0.1", http_token="t", **PROXY)

    answer = served.get("/", headers={b"Authorization": b"Bearer t", b"X-Forwarded-User": value})

    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "E_REQUEST")


def test_user_that_is_not_utf_8_is_refused() -> None:
    header = UserHeader.of(Settings.load(**PROXY))
    scope = {"client": ("10.0.0.1", 1), "headers": [(b"x-forwarded-user", b"\xff")]}

    with pytest.raises(RequestError, match="does not name one user"):
        header.applied(Caller("t", frozenset()), scope)


def test_two_users_are_refused() -> None:
    served = client(peer="10.0.0.1", http_token="t", **PROXY)

    sent = [("Authorization", "Bearer t"), ("X-Forwarded-User", "ann"), ("X-Forwarded-User", "bob")]
    assert served.get("/", headers=sent).status_code == 400


@pytest.mark.parametrize("name", PROXY)
def test_header_and_proxies_go_together(name: str) -> None:
    with pytest.raises(ConfigError, match="go together"):
        client(**{name: PROXY[name]})
