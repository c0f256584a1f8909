"""Redis clients of URLs with options."""

import pytest

from broker_config.connections import connect
from broker_config.settings import SettingsError


@pytest.mark.parametrize(
    "url",
    [
        "redis://h/0?foo=1",
        "redis://h/0?socket_timeout=soon",
        "redis://h/0?protocol=9",
        "rediss://h/0?ssl_cert_reqs=perhaps",
    ],
)
def test_unusable_option_is_refused_before_sending(url: str) -> None:
    with pytest.raises(SettingsError, match=r"GOONDAN_REDIS_URL: .* cannot be used"):
        connect(url)
