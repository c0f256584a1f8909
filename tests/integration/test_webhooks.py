"""Requests reach connectors at the servers of ``goondan connectors run`` and ``goondan serve``."""

import hashlib
import hmac
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx2
import pytest

from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, goondan, serving
from tests.waiting import wait_until

WEBHOOKS_BUNDLE = Path(__file__).parent.parent / "bundles" / "webhooks"
SECRET = "the-shop-signs-with-this"
PATIENCE = 60


@pytest.fixture(scope="module")
def handled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("webhooks") / "handled"
    file.touch()
    return file


@pytest.fixture(scope="module")
def env(handled: Path) -> Iterator[dict[str, str]]:
    with LocalStack(WEBHOOKS_BUNDLE, environment={"HANDLED_FILE": str(handled)}) as stack:
        yield {**environment(bundle=WEBHOOKS_BUNDLE, redis_url=stack.redis_url), "SHOP_SECRET": SECRET}


def send(url: str, order: str, secret: str = SECRET) -> httpx2.Response:
    body, at = json.dumps({"id": order, "customer": "ann"}).encode(), int(time.time())
    digest = hmac.new(secret.encode(), f"{at}.".encode() + body, hashlib.sha256).hexdigest()
    headers = {"stripe-signature": f"t={at},v1={digest}"}
    return httpx2.post(f"{url}/connections/shop/orders", content=body, headers=headers, timeout=PATIENCE)


def is_taken(url: str, order: str) -> bool:
    return send(url, order).status_code == 200


def test_request_at_several_servers_begins_one_turn(env: dict[str, str], handled: Path) -> None:
    order = "order at two servers"
    with serving("connectors", "run", env=env) as first, serving("serve", env=env) as second:
        for server in (first, second):
            wait_until(partial(is_taken, server.url, order), PATIENCE)
        assert send(first.url, "forged", "guessed").status_code == 401
        [status] = json.loads(goondan("connectors", "list", "--json", env=env).stdout)
    wait_until(lambda: order in handled.read_text("utf-8"), PATIENCE)

    assert handled.read_text("utf-8").count(order) == 1
    assert "forged" not in handled.read_text("utf-8")
    assert (status["name"], status["state"]) == ("shop", "running")
    assert status["process"].endswith((f":{first.process.pid}", f":{second.process.pid}"))


@pytest.mark.parametrize("command", [("connectors", "run"), ("serve",)])
def test_server_without_secret_does_not_start(env: dict[str, str], command: tuple[str, ...]) -> None:
    without = {name: value for name, value in env.items() if name != "SHOP_SECRET"}
    refused = goondan(*command, "--port", "0", env=without)

    assert (refused.exit_code, "SHOP_SECRET" in refused.stderr) == (3, True)
