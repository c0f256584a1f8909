"""Running the provider as a process of its own, and being its user's browser."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2

from goondan_tasks.contract.messages import JsonObject
from tests.node_packages import node_modules
from tests.oauth_server.accounts import CLIENT_ID, CLIENT_SECRET
from tests.oauth_server.running import OAuthServer

_FOLDER = Path(__file__).parent
_SCOPES = ["openid", "offline_access"]


@dataclass(frozen=True, slots=True)
class OidcProvider(OAuthServer):
    """A running provider; its ways are those of ``server.mjs``."""

    @property
    def spec(self) -> JsonObject:
        """The fields of its OAuthApp that are not those of our own authorization server."""
        endpoints = {
            "authorizationUrl": f"{self.url}/auth",
            "tokenUrl": f"{self.url}/token",
            "userInfoUrl": f"{self.url}/me",
        }
        # OpenID Connect Core 1.0 §11: without the prompt there is no offline_access
        return {"endpoints": endpoints, "scopes": _SCOPES, "options": {"prompt": "consent"}}

    def decide(self, authorization_url: str, *, user: str, allow: bool = True) -> str:
        """Be a user's browser: log in and consent; return where it is sent."""
        with httpx2.Client() as browser:
            place = _next(browser.get(authorization_url))
            for form in ({"prompt": "login", "login": user, "password": "any"}, {"prompt": "consent"}):
                if not allow and form["prompt"] == "consent":
                    return _next(browser.get(_next(browser.get(f"{self.url}{place}/abort"))))
                browser.get(f"{self.url}{place}").raise_for_status()
                place = _next(browser.get(_next(browser.post(f"{self.url}{place}", data=form))))
            return place


def _next(answer: httpx2.Response) -> str:
    assert answer.is_redirect, answer.text
    return str(answer.headers["location"])


@contextmanager
def oidc_provider(redirect_uri: str) -> Iterator[OidcProvider]:
    """Run a provider whose client may have its users sent there; skip the test where that cannot be."""
    command = [
        "node",
        "server.mjs",
        str(node_modules("oidc-provider")),
        CLIENT_ID,
        CLIENT_SECRET,
        redirect_uri,
    ]
    process = subprocess.Popen(
        command, cwd=_FOLDER, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert url, "the provider has not started"
            yield OidcProvider(url)
        finally:
            process.kill()
