"""Running the authorization server as a process of its own, and being its user's browser."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2

_ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, slots=True)
class OAuthServer:
    """A running server."""

    url: str

    def behave(self, **ways: Any) -> None:
        """Have it behave in these ways, and else as usual."""
        httpx2.post(f"{self.url}/ways", json=ways).raise_for_status()

    def seen(self) -> Any:
        """Return what came: counts, secrets, states."""
        return httpx2.get(f"{self.url}/seen").raise_for_status().json()

    def decide(self, authorization_url: str, *, user: str, allow: bool = True) -> str:
        """Be a user's browser at the consent page; return where it is sent."""
        httpx2.get(authorization_url).raise_for_status()
        answer = httpx2.post(authorization_url, data={"user": user, "allow": "yes" if allow else "no"})
        assert answer.status_code == 302, answer.text
        return str(answer.headers["location"])

    def type_code(self, user_code: str, *, user: str, allow: bool = True) -> None:
        """Be a user who types his code."""
        form = {"user_code": user_code, "user": user, "allow": "yes" if allow else "no"}
        httpx2.post(f"{self.url}/device", data=form).raise_for_status()


@contextmanager
def oauth_server(*redirect_uris: str) -> Iterator[OAuthServer]:
    """Run a server whose client may have its users sent to these places."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.oauth_server", str(listener.fileno()), *redirect_uris],
            pass_fds=[listener.fileno()],
            cwd=_ROOT,
        )
    try:
        yield OAuthServer(url)
    finally:
        process.kill()
        process.wait()
