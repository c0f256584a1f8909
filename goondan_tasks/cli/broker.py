"""Is the broker there? Asked before something is started that could not say so as clearly."""

from kombu import Connection
from kombu.exceptions import KombuError
from redis.exceptions import RedisError

from broker_config.connections import connect, reason_unreachable
from broker_config.options import celery_url
from broker_config.settings import Settings, hidden_password
from goondan_tasks.errors import BrokerUnreachableError

CONNECT_SECONDS = 4

#: what kombu raises for a URL that it cannot use: no such transport, no such option
_UNUSABLE = (KeyError, TypeError, ValueError)


def require_broker(settings: Settings) -> None:
    """Go on if Redis answers, and the broker too if it is another one.

    Raises:
        BrokerUnreachableError: one of them does not.
    """
    _require_redis(settings.redis_url)
    if settings.effective_broker_url != settings.redis_url:
        require_other_broker(settings.effective_broker_url)


def require_other_broker(url: str) -> None:
    """Go on if a broker of any kind that kombu knows answers.

    Raises:
        BrokerUnreachableError: it does not.
    """
    try:
        with Connection(celery_url(url), connect_timeout=CONNECT_SECONDS) as connection:
            connection.ensure_connection(max_retries=1, timeout=CONNECT_SECONDS)
    except (KombuError, OSError, *_UNUSABLE) as error:
        reason = f"The broker at {hidden_password(url)} cannot be reached: {error}"
        raise BrokerUnreachableError(reason, suggestion="Start it, or correct GOONDAN_BROKER_URL.") from error


def _require_redis(url: str) -> None:
    with connect(url) as redis:
        try:
            redis.ping()
        except RedisError as error:
            raise BrokerUnreachableError(reason_unreachable(url, error)) from error
