"""What ``goondan doctor`` checks of the settings for HTTP."""

from collections.abc import Sequence

from broker_config.settings import Settings, networks_of
from goondan_tasks.cli.fleet_checks import Check
from goondan_tasks.contract.errors import ConfigError, RecordDamagedError
from goondan_tasks.contract.wording import counted
from goondan_tasks.fleet.http_tokens import HttpToken, TokenStore, environment_tokens

#: a shorter one may be guessed: GOONDAN_HTTP_TOKEN has whatever length its author gives it
SHORTEST_TOKEN = 16
#: how many expired tokens a check names
_NAMED = 5


def http_checks(settings: Settings, now: float) -> list[Check]:
    """Check the tokens of the environment, and the proxies that name users; empty if there are none.

    ``now`` is in ms since the epoch.
    """
    return [*_token_checks(settings, now), *_proxy_checks(settings)]


def stored_token_checks(store: TokenStore, now: float) -> list[Check]:
    """Check the tokens of Redis; empty if there are none.

    Raises:
        redis.exceptions.RedisError: Redis cannot be reached.
    """
    try:
        tokens = store.tokens()
    except RecordDamagedError as error:
        return [Check("HTTP tokens in Redis", "problem", error.message, error.suggestion)]
    if not tokens:
        return []
    remedy = "Run `goondan tokens revoke NAME`, and `goondan tokens add` if it is still needed."
    return [_expiry_check("HTTP tokens in Redis", tokens, now, remedy)]


def _token_checks(settings: Settings, now: float) -> list[Check]:
    if settings.http_token is None and settings.http_tokens is None:
        return []
    try:
        tokens = environment_tokens(settings)
    except ConfigError as error:
        return [Check("HTTP tokens", "problem", error.message, error.suggestion)]
    if settings.http_token is not None and len(settings.http_token.get_secret_value()) < SHORTEST_TOKEN:
        remedy = "Use the output of `openssl rand -base64 32`, or `goondan tokens add`."
        return [Check("HTTP tokens", "warning", "GOONDAN_HTTP_TOKEN is short enough to be guessed", remedy)]
    return [
        _expiry_check("HTTP tokens", tokens, now, "Remove them from GOONDAN_HTTP_TOKENS, or set expiresAt.")
    ]


def _expiry_check(name: str, tokens: Sequence[HttpToken], now: float, remedy: str) -> Check:
    expired = [token.name for token in tokens if token.has_expired(now)]
    if not expired:
        return Check(name, "ok", counted(len(tokens), "token"))
    more = ", …" if len(expired) > _NAMED else ""
    return Check(
        name, "warning", f"expired, so they open nothing: {', '.join(expired[:_NAMED])}{more}", remedy
    )


def _proxy_checks(settings: Settings) -> list[Check]:
    proxies = networks_of(settings.http_trusted_proxies)
    header = settings.http_user_header
    if header is None and not proxies:
        return []
    if header is None or not proxies:
        lacking = "HTTP_USER_HEADER" if header is None else "HTTP_TRUSTED_PROXIES"
        message = f"GOONDAN_{lacking} is not set, so `goondan serve` needs it as an option"
        return [Check("HTTP proxies", "warning", message, f"Set GOONDAN_{lacking}, or unset the other one.")]
    everyone = [str(network) for network in proxies if network.prefixlen == 0]
    if everyone:
        message = f"{everyone[0]} lets every client name the user in {header}"
        remedy = "Name only the proxies in GOONDAN_HTTP_TRUSTED_PROXIES."
        return [Check("HTTP proxies", "problem", message, remedy)]
    return [Check("HTTP proxies", "ok", f"{header} names the user, from {', '.join(map(str, proxies))}")]
