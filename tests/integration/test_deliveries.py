"""Signed deliveries reach agents by the built-in connectors, at the server of ``goondan connectors run``."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, serving
from tests.unit.workers.builtin.connectors.contexts import SECRET, signature
from tests.unit.workers.builtin.connectors.test_github import ISSUE, delivery
from tests.unit.workers.builtin.connectors.test_slack import MENTION, body
from tests.unit.workers.builtin.connectors.test_webhook import BINARY, CLOUD_EVENT, STRUCTURED
from tests.waiting import wait_until

DELIVERIES_BUNDLE = Path(__file__).parent.parent / "bundles" / "deliveries"
PATIENCE = 60

Headers = dict[str, str]


@pytest.fixture(scope="module")
def handled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("deliveries") / "handled"
    file.touch()
    return file


@pytest.fixture(scope="module")
def url(handled: Path) -> Iterator[str]:
    with LocalStack(DELIVERIES_BUNDLE, environment={"HANDLED_FILE": str(handled)}) as stack:
        settings = environment(bundle=DELIVERIES_BUNDLE, redis_url=stack.redis_url)
        with serving("connectors", "run", env={**settings, "DELIVERIES_SECRET": SECRET}) as server:
            yield f"{server.url}/connections"


def slack(content: Any, *, age: float = 0, signed: str | None = None) -> tuple[bytes, Headers]:
    data, sent_at = json.dumps(content).encode(), str(int(time.time() - age))
    digest = signed or signature(f"v0:{sent_at}:".encode() + data)
    return data, {"X-Slack-Request-Timestamp": sent_at, "X-Slack-Signature": f"v0={digest}"}


def github(content: Any, *, number: str = "1", signed: str | None = None) -> tuple[bytes, Headers]:
    data = json.dumps(content).encode()
    digest = signed or signature(data)
    names = {
        "X-GitHub-Event": "issues",
        "X-GitHub-Delivery": number,
        "X-Hub-Signature-256": f"sha256={digest}",
    }
    return data, {"Content-Type": "application/json", **names}


def order(content: Any, kind: str, **headers: str) -> tuple[bytes, Headers]:
    data = json.dumps(content).encode()
    return data, {"Content-Type": kind, "X-Hub-Signature-256": f"sha256={signature(data)}", **headers}


def send(url: str, place: str, delivery: tuple[bytes, Headers]) -> httpx2.Response:
    """Send a delivery; again while the connector is starting, as a service does."""
    answers: list[httpx2.Response] = []

    def is_answered() -> bool:
        data, headers = delivery
        answers.append(httpx2.post(f"{url}/{place}", content=data, headers=headers, timeout=PATIENCE))
        return answers[-1].status_code != 503

    wait_until(is_answered, PATIENCE)
    return answers[-1]


def test_delivery_begins_one_turn_and_forged_one_none(url: str, handled: Path) -> None:
    binary = {name.replace("_", "-"): text for name, text in BINARY.items()}
    ours = [
        ("slack", slack(body(MENTION))),
        ("slack", slack(body(MENTION))),  # Slack tries again with the same event_id
        ("github", github(delivery("issues"))),
        ("github", github(delivery("issues"))),
        ("orders/new", order(CLOUD_EVENT, STRUCTURED)),
        ("orders/new", order({"total": 12}, "application/json", **binary)),  # the same event, in binary mode
    ]
    nothing = "0" * 64
    forged = [
        ("slack", slack(body(MENTION, event_id="Ev2"), signed=nothing), 401),
        ("slack", slack(body(MENTION, event_id="Ev3"), age=301), 401),
        ("slack", slack(body(MENTION, event_id="Ev4", api_app_id="A999")), 403),
        ("github", github(delivery("issues"), number="2", signed=nothing), 401),
        ("orders/new", (b"{}", {"X-Hub-Signature-256": f"sha256={nothing}"}), 401),
        ("orders/new", (b"{}", {}), 401),
    ]

    asked = slack({"type": "url_verification", "challenge": "3eZbrw1aBm2rZgRNFdxV"})
    assert send(url, "slack", asked).json() == {"challenge": "3eZbrw1aBm2rZgRNFdxV"}
    assert [send(url, place, one).status_code for place, one, _ in forged] == [
        status for *_, status in forged
    ]
    assert [send(url, place, one).status_code for place, one in ours] == [200] * len(ours)
    last = order({"text": "last", "instanceKey": "desk"}, "application/json")
    assert send(url, "orders/new", last).status_code == 200
    wait_until(lambda: len(handled.read_text(encoding="utf-8").splitlines()) >= 4, PATIENCE)

    assert sorted(json.loads(line) for line in handled.read_text(encoding="utf-8").splitlines()) == [
        ["app_mention", "slack:C123ABC456:1515449522.000016", MENTION["text"]],
        ["com.example.someevent", "order-7", '{"total": 12}'],
        ["github_issue", "github:Codertocat/Hello-World", f"{ISSUE['title']}\n\n{ISSUE['body']}"],
        ["webhook_message", "desk", "last"],
    ]
