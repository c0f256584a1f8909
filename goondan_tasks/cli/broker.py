"""Is the broker there? Asked before something is started that could not say so as clearly."""

from redis.exceptions import RedisError

from broker_config.connections import connect, reason_unreachable
from broker_config.settings import Settings
from goondan_tasks.errors import BrokerUnreachableError


def require_broker(settings: Settings) -> None:
    """Go on if the Redis servers of the settings answer.

    Raises:
        BrokerUnreachableError: one does not, within 10 s.
    """
    for url in dict.fromkeys((settings.redis_url, settings.effective_broker_url)):
        with connect(url) as redis:
            try:
                redis.ping()
            except RedisError as error:
                raise BrokerUnreachableError(reason_unreachable(url, error)) from error
