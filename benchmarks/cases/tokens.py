"""How long the OAuth manager takes for a token that is there, with many subjects in one store."""

import statistics
import tempfile
import time
from pathlib import Path

from pydantic import SecretStr
from redis import Redis

from benchmarks.bench import Bench
from benchmarks.figures import Section, Table, at_most, number, percentile
from broker_config.keys import Keys
from goondan_tasks.bundle.oauth_app_spec import OAuthAppResource
from goondan_tasks.contract.messages import iso_time, wall_clock
from goondan_tasks.oauth.apps import OAuthApp
from goondan_tasks.oauth.consent import make_manager
from goondan_tasks.oauth.crypto import Cipher, Keyring
from goondan_tasks.oauth.file_store import FileStore
from goondan_tasks.oauth.manager import OAuthManager
from goondan_tasks.oauth.records import OAuthGrant, OAuthToken
from goondan_tasks.oauth.redis_store import RedisStore
from goondan_tasks.oauth.store import OAuthStore

SUBJECTS = 1_000
_ROUNDS = 3
_HOUR_MS = 3_600_000

_TEXT = f"""\
One process asks for the tokens of {SUBJECTS:,} subjects of one OAuthApp, one after another; each answer is
read from the store and decrypted. *First* is the first round of all, when nothing is warm."""

_APP = {
    "apiVersion": "goondan.ai/v1",
    "kind": "OAuthApp",
    "metadata": {"name": "app"},
    "spec": {
        "provider": "none",
        "flow": "authorizationCode",
        "subjectMode": "user",
        "client": {"clientId": {"value": "id"}, "clientSecret": {"value": "a secret"}},
        "endpoints": {"authorizationUrl": "http://127.0.0.1:9/a", "tokenUrl": "http://127.0.0.1:9/t"},
        "scopes": ["read", "write"],
        "redirect": {"callbackPath": "/callback"},
    },
}


def measure(bench: Bench) -> Section:
    """Measure tokens of 1,000 subjects, from both kinds of OAuth store."""
    cipher = Cipher(Keyring.of(["0f" * 32]))
    with tempfile.TemporaryDirectory() as folder:
        stores = _stores(bench.fleet.redis, Path(folder), cipher)
        rounds = {name: _rounds(store) for name, store in stores.items()}
    bench.fleet.redis.flushall()
    rows = [(name, *map(_figures, (first, warm))) for name, (first, *_, warm) in rounds.items()]
    header = ("ms: p50 / p99", "first", "warm")
    aims = [
        at_most(f"a warm `ready` answer, {name}, p50", statistics.median(warm), 1, "ms")
        for name, (*_, warm) in rounds.items()
    ]
    return Section("Tokens", _TEXT, [Table("", header, rows)], aims)


def _stores(redis: Redis, folder: Path, cipher: Cipher) -> dict[str, OAuthStore]:
    return {
        "store in Redis": RedisStore(redis, Keys("goondan"), cipher),
        "store in files": FileStore(folder / "oauth", cipher, wall_clock),
    }


def _rounds(store: OAuthStore) -> list[list[float]]:
    """Return, for each round, the milliseconds of each answer."""
    app = OAuthApp.of(OAuthAppResource.model_validate(_APP))
    for subject in range(SUBJECTS):
        store.replace_grant(_grant(f"user:{subject}"), generation=0)
    manager = make_manager({app.name: app}, store, public_url=None, clock=wall_clock)
    return [
        [_milliseconds(manager, f"user:{subject}") for subject in range(SUBJECTS)] for _ in range(_ROUNDS)
    ]


def _milliseconds(manager: OAuthManager, subject: str) -> float:
    begun = time.perf_counter()
    answer = manager.get_access_token("OAuthApp/app", auth={"subjects": {"user": subject}}, resume=None)
    took = (time.perf_counter() - begun) * 1000
    assert answer.status == "ready"
    return took


def _grant(subject: str) -> OAuthGrant:
    now = wall_clock()
    token = OAuthToken(
        access_token=SecretStr(f"access-token-of-{subject}"),
        refresh_token=SecretStr(f"refresh-token-of-{subject}"),
        expires_at=iso_time(now + _HOUR_MS),
    )
    return OAuthGrant(
        oauth_app="app",
        provider="none",
        subject=subject,
        flow="authorization_code",
        scopes_granted=("read", "write"),
        token=token,
        created_at=iso_time(now),
        updated_at=iso_time(now),
    )


def _figures(samples: list[float]) -> str:
    return f"{number(statistics.median(samples))} / {number(percentile(samples, 99))}"
