import pytest
from starlette.testclient import TestClient
from structlog.testing import capture_logs

from broker_config.settings import Settings, SettingsError
from tests.unit.goondan_web.doors_for_tests import application, counting_door

PAGE = "https://app.example"
ASKS = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}


def client(is_for_pages: bool = True, origins: str = f"http://localhost:3000, {PAGE}") -> TestClient:
    door = counting_door(is_for_pages=is_for_pages)
    app = application(door, host="0.0.0.0", http_token="t0ken", http_origins=origins)
    return TestClient(app, base_url="http://127.0.0.1:8765")


def test_browser_learns_what_named_origin_may_send() -> None:
    with capture_logs() as logs:
        answer = client().options("/", headers={"Origin": PAGE, **ASKS})
    assert [line["status"] for line in logs if line["event"] == "http.request"] == [204]
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (204, PAGE)
    assert "DELETE" in answer.headers["Access-Control-Allow-Methods"]
    sent = set(answer.headers["Access-Control-Allow-Headers"].split(", "))
    assert {"Authorization", "Idempotency-Key", "Last-Event-ID", "Prefer", "Range"} <= sent
    assert "Access-Control-Allow-Credentials" not in answer.headers


def test_named_origin_may_ask_and_read_with_token() -> None:
    headers = {"Origin": PAGE, "Authorization": "Bearer t0ken", "Sec-Fetch-Site": "cross-site"}
    answer = client().post("/", content=b"abc", headers=headers)
    assert (answer.text, answer.headers["Access-Control-Allow-Origin"]) == ("3 bytes", PAGE)
    assert answer.headers["Vary"] == "Origin"
    read = set(answer.headers["Access-Control-Expose-Headers"].split(", "))
    assert {"Content-Range", "ETag", "Location", "Retry-After"} <= read


def test_named_origin_without_token_can_read_error() -> None:
    answer = client().post("/", headers={"Origin": PAGE})
    assert (answer.status_code, answer.headers["Access-Control-Allow-Origin"]) == (401, PAGE)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "http://app.example", f"{PAGE}.evil.example", f"{PAGE}:444"]
)
def test_pages_of_other_origins_stay_refused(origin: str) -> None:
    headers = {"Origin": origin, "Authorization": "Bearer t0ken"}
    for answer in (client().post("/", headers=headers), client().options("/", headers={**headers, **ASKS})):
        assert answer.status_code == 403
        assert "Access-Control-Allow-Origin" not in answer.headers


def test_door_not_for_pages_refuses_named_origins() -> None:
    headers = {"Origin": PAGE, "Authorization": "Bearer t0ken"}
    assert client(is_for_pages=False).post("/", headers=headers).status_code == 403


def test_without_named_origins_foreign_pages_are_refused() -> None:
    headers = {"Origin": PAGE, "Authorization": "Bearer t0ken"}
    assert client(origins="").post("/", headers=headers).status_code == 403


@pytest.mark.parametrize(
    "origins",
    ["*", "app.example", "https://app.example/", "https://APP.example", "https://app.example:x", "null"],
)
def test_invalid_origin_is_refused_as_setting(origins: str) -> None:
    with pytest.raises(SettingsError, match="HTTP_ORIGINS"):
        Settings.load(http_origins=origins)
