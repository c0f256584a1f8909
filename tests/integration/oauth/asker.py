"""A process that asks for tokens when it is told to: ``python -m tests.integration.oauth.asker``.

A line of JSON says ``server`` (URL), ``spec`` (fields of its OAuthApp), ``store`` (a directory, or the URL of
a Redis), ``subject``, how long its lock is kept at first (``lockSeconds``) and while it refreshes
(``inDoubtSeconds``), and whether it is to die as soon as the provider has answered (``dies``). It opens all
of it anew, prints ``ready``, waits for a line, and answers; then it takes the next one.
"""

import hashlib
import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from broker_config.connections import connect
from broker_config.keys import Keys
from goondan_tasks.contract.messages import wall_clock
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.consent import Consent
from goondan_tasks.oauth.crypto import Cipher, Keyring
from goondan_tasks.oauth.file_store import FileStore
from goondan_tasks.oauth.manager import OAuthManager, Refresher, TokenReady
from goondan_tasks.oauth.provider import Provider, TokenReply
from goondan_tasks.oauth.redis_store import LOCK_SECONDS, RedisStore
from goondan_tasks.oauth.store import OAuthStore
from tests.oauth_server.apps import make_oauth_app
from tests.oauth_server.stage import KEY, PLANNER, PUBLIC_URL


class DeadlyProvider(Provider):
    """Refreshes at the provider, and lives no longer."""

    def refresh(self, app: OAuthApp, refresh_token: SecretStr) -> TokenReply:
        super().refresh(app, refresh_token)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


def open_store(place: str, lock_seconds: float = LOCK_SECONDS) -> OAuthStore:
    """Open the store in a directory or in a Redis."""
    cipher = Cipher(Keyring.of((KEY,)))
    if "://" in place:
        return RedisStore(connect(place), Keys("goondan"), cipher, lock_seconds=lock_seconds)
    return FileStore(Path(place), cipher, wall_clock)


def main() -> None:
    """Ask for one token after the other."""
    for line in iter(sys.stdin.readline, ""):
        ask(json.loads(line))


def ask(asked: Mapping[str, Any]) -> None:
    """Ask, and tell the answer; of a token only its digest."""
    app = make_oauth_app(asked["server"], **asked["spec"])
    store = open_store(asked["store"], asked["lockSeconds"])
    provider = DeadlyProvider() if asked["dies"] else Provider()
    manager = OAuthManager(
        apps={app.name: app},
        store=store,
        refresher=Refresher(store, provider, wall_clock, in_doubt_seconds=asked["inDoubtSeconds"]),
        consent=Consent(store, provider, wall_clock, PUBLIC_URL),
        clock=wall_clock,
    )
    print("ready", flush=True)
    sys.stdin.readline()
    auth = {"subjects": {"user": asked["subject"]}}
    answer = manager.get_access_token("OAuthApp/slack-bot", auth=auth, resume=PLANNER)
    token = answer.access_token if isinstance(answer, TokenReady) else ""
    told = {"status": answer.status, "token": hashlib.sha256(token.encode()).hexdigest()}
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
