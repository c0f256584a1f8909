"""The TypeScript client while its connections are cut and ``goondan serve`` is started again."""

import functools
import http.server
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from broker_config.connections import connect
from goondan_tasks.testing import LocalStack
from tests.faults.replication_link import ReplicationLink
from tests.integration.goondan_process import Server, environment, serving
from tests.integration.openai_door import tell, text
from tests.model_server import Answer, Call, ModelServer, in_turn
from tests.node_packages import FOLDERS, node, node_modules

pytestmark = [pytest.mark.faults, pytest.mark.long]

ROOT = Path(__file__).parents[2]
PENDING_BUNDLE, THINKING_BUNDLE = (ROOT / "tests" / "bundles" / name for name in ("pending", "thinking"))
CLIENT = ROOT / "clients" / "typescript"
PROGRAM = FOLDERS / "client" / "cuts.mts"
PATIENCE = 60
CALLS = 40


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    with LocalStack(PENDING_BUNDLE, agents=["builder"]) as stack:
        yield stack


@contextmanager
def served(stack: LocalStack, link: ReplicationLink) -> Iterator[Server]:
    """Run the server behind the link."""
    env = environment(redis_url=stack.redis_url, bundle=PENDING_BUNDLE)
    with serving("serve", "--door", "api", env=env) as server:
        port = urlsplit(server.url).port
        assert port is not None
        link.lead_to(port)
        yield server


@contextmanager
def started(name: str, link: ReplicationLink, instance: str) -> Iterator[Iterator[Any]]:
    """Run a program that must end in order, and yield what it sees as it does."""
    command = [node(), str(PROGRAM), name, f"http://127.0.0.1:{link.port}", instance]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout is not None
            yield map(json.loads, program.stdout)
            assert program.wait(PATIENCE) == 0
        finally:
            program.kill()


def test_turn_is_followed_and_awaited_across_cuts_and_servers(stack: LocalStack) -> None:
    with ReplicationLink() as link, connect(stack.redis_url) as redis, ExitStack() as program:
        with served(stack, link):
            seen = program.enter_context(started("follow", link, "followed"))
            event = stack.client.receive("builder", "followed", timeout=PATIENCE)
            assert event is not None
            tell(redis, event, text("one"))
            assert next(seen) == "one"
            link.lose()
            tell(redis, event, text("two"))
            assert next(seen) == "two"
        tell(redis, event, text("three"))
        with served(stack, link):
            assert next(seen) == "three"
            stack.client.reply(event, "built")
            assert list(seen) == ["end", "built"]
            program.close()


def test_calls_whose_requests_are_cut_are_begun_once(stack: LocalStack) -> None:
    with ReplicationLink() as link, served(stack, link), started(str(CALLS), link, "cut") as seen:
        ended = []
        for one in seen:
            ended.append(one)
            link.lose()
    assert sorted(number for number, _, _ in ended) == list(range(CALLS))
    assert {output for _, _, output in ended} == {"gold"}
    begun = [one.id for one in stack.client.calls(limit=1_000) if one.call.instance_key == "cut"]
    assert sorted(begun) == sorted(call_id for _, call_id, _ in ended)


@pytest.fixture
def page(tmp_path: Path) -> Iterator[str]:
    """Serve a page with the compiled client; return its origin."""
    compiler = node_modules("typescript") / "typescript" / "bin" / "tsc"
    command = [node(), str(compiler), "--project", str(CLIENT), "--outDir", str(tmp_path)]
    subprocess.run(command, check=True, timeout=PATIENCE)
    shutil.copy(FOLDERS / "client" / "page.html", tmp_path)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://localhost:{server.server_port}"
        server.shutdown()
        thread.join()


def test_page_of_named_origin_asks_agent_in_browser(page: str, tmp_path: Path) -> None:
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        pytest.skip("no Chromium is on PATH")
    with ModelServer() as model, LocalStack(thinking(tmp_path, model.url), agents=["student"]) as stack:
        model.begin(in_turn(Answer("I will.", (Call("desk__wipe", {"disk": "sda"}),)), Answer("I wait.")))
        env = environment(
            redis_url=stack.redis_url,
            bundle=stack.bundle,
            state_root=stack.state_root,
            http_origins=page,
            http_token="t0ken",
        )
        with serving("serve", "--door", "api", env=env) as server:
            address = f"{page}/page.html?url={server.url}&token=t0ken"
            command = [node(), str(FOLDERS / "client" / "page.mjs"), str(node_modules("front-ends"))]
            done = subprocess.run(
                [*command, browser, address], stdout=subprocess.PIPE, timeout=120, check=True
            )
    seen = json.loads(done.stdout)
    assert seen["error"] == ["E_CALL_NOT_FOUND", 404]
    assert (seen["text"], seen["answer"]) == ("I will.I wait.", "I wait.")
    assert (seen["args"], seen["approved"]) == ({"disk": "sda"}, "GOONDAN_HTTP_TOKEN")
    assert seen["output"] == {"wiped": {"disk": "sda"}}
    assert seen["roles"][:2] == ["user", "assistant"]
    assert seen["planned"] == ["page"]


def thinking(folder: Path, model_url: str) -> Path:
    """Copy the bundle of an agent that thinks, with this model."""
    bundle = Path(shutil.copytree(THINKING_BUNDLE, folder / "thinking"))
    resources = bundle / "goondan.yaml"
    resources.write_text(resources.read_text("utf-8").replace("http://127.0.0.1:9/v1", model_url), "utf-8")
    return bundle
