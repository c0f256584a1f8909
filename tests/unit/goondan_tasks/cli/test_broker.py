"""Is the broker there?"""

import pytest

from broker_config.settings import Settings
from goondan_tasks.cli.broker import require_broker, require_other_broker
from goondan_tasks.errors import BrokerUnreachableError


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@127.0.0.1:1/0",
        "redis://host-that-does-not-resolve.invalid/0",
        "unix:///no/such/socket",
        "rediss://127.0.0.1:1/0",
    ],
)
def test_a_redis_that_is_not_there_is_named_without_its_password(url: str) -> None:
    with pytest.raises(BrokerUnreachableError) as missing:
        require_broker(Settings.load(redis_url=url))

    assert url.replace("secret", "***") in missing.value.message


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@127.0.0.1:1/0",
        "amqp://guest:secret@127.0.0.1:1",
        "pigeon://host",
        "redis://h/0?wings=2",
    ],
)
def test_another_broker_that_is_not_there_is_named_without_its_password(url: str) -> None:
    with pytest.raises(BrokerUnreachableError) as missing:
        require_other_broker(url)

    assert url.replace("secret", "***") in missing.value.message
