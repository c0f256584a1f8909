"""See a user's consent from the first call to the token: python examples/oauth-local/connect.py [--browser].

It starts all that takes part, on free ports and on a copy of the bundle, and tidies up. Without --browser it
opens the page and allows itself; with it, you do.
"""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import webbrowser
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2

from goondan_tasks.testing import LocalStack

HERE = Path(__file__).parent
URL = "http://127.0.0.1:8799"
#: the user on whose behalf the agent works, and the instance that continues after the consent
ADA = {"instance_key": "thread-1", "auth": {"subjects": {"user": "mail:user:ada"}}}
PATIENCE = 30.0
#: how long a person may take at the page
PERSON_PATIENCE = 600.0


def main(*, in_browser: bool) -> None:
    """Start the mail service, the callback server and a worker, and show the example."""
    with contextlib.ExitStack() as everything:
        place = Path(everything.enter_context(tempfile.TemporaryDirectory(prefix="goondan-oauth-")))
        mail, callbacks = free_ports(2)
        bundle = copied(place / "bundle", f"http://127.0.0.1:{mail}")
        everything.enter_context(running([sys.executable, str(HERE / "provider.py"), str(mail)], mail))
        # worker and callback server share the directory of the key that encrypts tokens
        settings = {"GOONDAN_HTTP_PORT": str(callbacks), "GOONDAN_STATE_ROOT": str(place / "state")}
        stack = everything.enter_context(LocalStack(bundle, environment=settings))
        serve = [sys.executable, "-m", "goondan_tasks", "oauth", "serve"]
        settings |= {"GOONDAN_REDIS_URL": stack.redis_url, "GOONDAN_BUNDLE": str(bundle)}
        everything.enter_context(running(serve, callbacks, **settings))
        tell(stack, in_browser=in_browser)


def tell(stack: LocalStack, *, in_browser: bool) -> None:
    """Print the story."""
    client = stack.client
    asked = client.call("postman", "mail__letters", timeout=PATIENCE, **ADA).output
    show("Ada's postman has no token yet, so the tool answers with a link for her:", asked)
    if in_browser:
        show("Answer the page in your browser, or end this with Ctrl-C:", asked["authorizationUrl"])
        webbrowser.open(asked["authorizationUrl"])
    else:
        consent(asked["authorizationUrl"])
        show("She opens it, allows it, and her browser is sent to `goondan oauth serve`.")
    patience = PERSON_PATIENCE if in_browser else PATIENCE
    granted = client.receive("postman", ADA["instance_key"], timeout=patience)
    if granted is None:
        sys.exit("No consent was given.")
    client.reply(granted, "thanks")
    show("That wakes the agent, in the instance that had asked:", granted.event.input)
    letters = client.call("postman", "mail__letters", timeout=PATIENCE, **ADA).output
    show("It calls its tool again, and this time there is a token:", letters)


def consent(link: str) -> None:
    """Do what Ada and her browser do."""
    httpx2.get(link).raise_for_status()
    answer = {"user": "ada", "answer": "allow"}
    httpx2.post(link, data=answer, follow_redirects=True).raise_for_status()


def copied(folder: Path, url: str) -> Path:
    """Copy the bundle for a mail service at another address."""
    shutil.copytree(
        HERE, folder, ignore=shutil.ignore_patterns("__pycache__", "*.md", "connect.py", "provider.py")
    )
    resources = folder / "goondan.yaml"
    resources.write_text(resources.read_text(encoding="utf-8").replace(URL, url), encoding="utf-8")
    return folder


def free_ports(count: int) -> list[int]:
    """Return free ports."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [server.getsockname()[1] for server in sockets]


@contextlib.contextmanager
def running(command: list[str], port: int, **settings: str) -> Iterator[None]:
    """Run a server until the end of the ``with`` block, which begins when it listens."""
    env = {**os.environ, **settings}
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + PATIENCE
        while not listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"It does not listen: {' '.join(command)}")
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def listens(port: int) -> bool:
    """Return whether the port accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def show(said: str, value: Any = "") -> None:
    """Print a line, and its details."""
    text = value if isinstance(value, str) else json.dumps(value, indent=2)
    print(said, *(f"    {line}" for line in text.splitlines()), sep="\n", flush=True)


if __name__ == "__main__":
    with contextlib.suppress(KeyboardInterrupt):
        main(in_browser="--browser" in sys.argv[1:])
