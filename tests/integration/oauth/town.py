"""Worker, callback server, authorization server and producer, each a process of its own, on one Redis."""

import json
import shutil
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from goondan_tasks.client import Client
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import environment, start
from tests.oauth_server.apps import CALLBACK, app_document
from tests.oauth_server.running import OAuthServer, oauth_server
from tests.oauth_server.stage import KEY

OAUTH_BUNDLE = Path(__file__).parents[2] / "bundles" / "oauth"
AGENT, INSTANCE = "herald", "thread-1"
AUTH = {"actor": {"type": "user", "id": "slack:U1"}, "subjects": {"user": "slack:user:U1"}}
ORIGIN = {"connector": "slack-main", "channel": "C123"}
GIVEN: dict[str, Any] = {
    "instance_key": INSTANCE,
    "auth": AUTH,
    "origin": ORIGIN,
    "correlation_id": "corr-1",
}


@dataclass(frozen=True, slots=True)
class Town:
    """What stands and runs."""

    stack: LocalStack
    server: OAuthServer
    callback: "subprocess.Popen[str]"
    #: everything that anybody writes down: bundle, state root, logs
    root: Path
    environment: dict[str, str]

    @property
    def client(self) -> Client:
        """The producer's."""
        return self.stack.client

    def call(self, tool: str, args: Any = None, agent: str = AGENT, **fields: Any) -> Any:
        """Call one of an agent's tools on behalf of the user."""
        return self.client.call(agent, tool, args or {}, timeout=30, **{**GIVEN, **fields})

    def leak(self, form: str) -> Any:
        """Have a tool tell the user's token wherever it can, and answer in that form."""
        asked = self.client.submit(AGENT, "slack__leak", {"as": form}, **GIVEN)
        return asked.result(timeout=30, wait_pending=False)


#: writes a bundle into a folder, given the server's URL and fields of its OAuthApp
WriteBundle = Callable[[Path, str, dict[str, Any]], Path]


def write_herald(place: Path, server_url: str, spec: dict[str, Any]) -> Path:
    """Write the bundle whose extension asks for tokens."""
    shutil.copytree(OAUTH_BUNDLE, place)
    extension = {
        "apiVersion": "goondan.ai/v1",
        "kind": "Extension",
        "metadata": {"name": "slack"},
        "spec": {"entry": "extensions/slack.py", "config": {"api": f"{server_url}/api"}},
    }
    add_documents(place, extension, app_document(server_url, **spec))
    return place


def add_documents(place: Path, *documents: dict[str, Any]) -> None:
    """Add resources to a bundle."""
    with (place / "goondan.yaml").open("a", encoding="utf-8") as file:
        file.writelines(f"---\n{json.dumps(document)}\n" for document in documents)


@contextmanager
def town(
    root: Path, *, store: str = "redis", write_bundle: WriteBundle = write_herald, **spec: Any
) -> Iterator[Town]:
    """Let all of them run; fields of ``spec`` are those of the OAuthApp."""
    port = _free_port()
    with ExitStack() as resources:
        server = resources.enter_context(oauth_server(f"http://127.0.0.1:{port}{CALLBACK}"))
        bundle = write_bundle(root / "bundle", server.url, spec)
        settings = {
            "OAUTH_KEY": KEY,
            "OAUTH_STORE": store,
            "HTTP_PORT": str(port),
            "STATE_ROOT": str(root / "state"),
            "LOG_LEVEL": "debug",
        }
        worker = {f"GOONDAN_{name}": value for name, value in settings.items()}
        stack = resources.enter_context(LocalStack(bundle, environment=worker))
        env = environment(**{**settings, "REDIS_URL": stack.redis_url, "BUNDLE": bundle})
        log = resources.enter_context((root / "callback.log").open("w", encoding="utf-8"))
        callback = start("oauth", "serve", "--json", env=env, errors=log)
        resources.callback(callback.stdout.close)  # type: ignore[union-attr]
        resources.callback(callback.wait, 60)
        resources.callback(callback.terminate)
        _wait_until_it_listens(callback)
        yield Town(stack, server, callback, root, env)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def _wait_until_it_listens(callback: "subprocess.Popen[str]") -> None:
    assert callback.stdout is not None
    text = ""
    while not text.endswith("}\n"):
        line = callback.stdout.readline()
        assert line, "goondan oauth serve has ended"
        text += line
