"""The door to Connections: what reaches a connector, and what its answer becomes."""

import base64
import json
from typing import Any

import pytest
from starlette.testclient import TestClient

from broker_config.settings import Settings
from goondan_tasks.authoring.webhooks import MAX_BODY_BYTES
from goondan_tasks.connectors.open_requests import OpenRequests
from goondan_tasks.connectors.running import Entrance, RunningConnections
from goondan_tasks.contract.messages import JsonObject
from goondan_web.application import make_application
from goondan_web.doors.connections import connections_door

PATH = "/connections/shop/orders"


class Shop:
    """A connector that gives one answer, and keeps the requests."""

    def __init__(self, **answer: Any) -> None:
        self.requests = OpenRequests("shop")
        self.seen: list[JsonObject] = []
        self._answer = answer
        self.requests.attach(self._take, print)

    def _take(self, message: JsonObject) -> None:
        self.seen.append(message)
        self.requests.respond({"type": "response", "id": message["id"], **self._answer})

    def client(self, **settings: Any) -> TestClient:
        loaded = Settings.load(**settings)
        entrance = Entrance("shop", PATH, ("POST", "PUT"), self.requests.answer)
        door = connections_door(RunningConnections([], [entrance]), loaded)
        app = make_application([door], loaded, "127.0.0.1", lambda: None)
        return TestClient(app, base_url="http://shop.example", raise_server_exceptions=False)


def test_request_reaches_connector_unchanged() -> None:
    shop, body = Shop(status=200), bytes(range(256))
    headers = [("X-Own", "1"), ("X-Own", "2"), ("Origin", "https://elsewhere.example")]
    answer = shop.client().post(f"{PATH}?a=1&a=2&b=%C3%BC", content=body, headers=headers)

    [seen] = shop.seen
    assert answer.status_code == 200
    assert (seen["method"], seen["path"], seen["query"]) == ("POST", PATH, {"a": "2", "b": "ü"})
    assert seen["headers"]["x-own"] == "1, 2"
    assert base64.b64decode(seen["body"]) == body


def test_answer_is_connectors() -> None:
    body = base64.b64encode(b"\xff").decode()
    answer = Shop(status=418, headers={"X-Own": "1"}, body=body).client().put(PATH)

    assert (answer.status_code, answer.content, answer.headers["x-own"]) == (418, b"\xff", "1")


def test_token_of_other_doors_is_not_asked_for() -> None:
    assert Shop(status=204).client(http_token="t" * 40).post(PATH).status_code == 204


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("GET", PATH, b"", 405),
        ("POST", f"{PATH}/more", b"", 404),
        ("POST", "/connections/other", b"", 404),
        ("POST", PATH, b"x" * MAX_BODY_BYTES, 200),
        ("POST", PATH, b"x" * (MAX_BODY_BYTES + 1), 413),
    ],
)
def test_unfit_request_does_not_reach_connector(method: str, path: str, body: bytes, status: int) -> None:
    shop = Shop(status=200)
    answer = shop.client().request(method, path, content=body)

    assert (answer.status_code, len(shop.seen)) == (status, int(status == 200))


def test_connection_is_reached_below_public_url_as_well() -> None:
    client = Shop(status=200).client(public_url="https://x.example/swarm")

    assert [client.post(path).status_code for path in (PATH, f"/swarm{PATH}")] == [200, 200]


def test_request_to_unavailable_connector_gets_retry_time() -> None:
    shop = Shop(status=200)
    shop.requests.detach()
    answer = shop.client().post(PATH)

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")
    error = {"code": "E_CONNECTOR", "message": "The connector cannot answer now."}
    assert json.loads(answer.content) == {"error": error}
