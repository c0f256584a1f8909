"""URLs of a master that Sentinels watch, and what Celery makes of them."""

import pytest

from broker_config.connections import connect
from broker_config.options import celery_options, celery_url, tls, transport_options
from broker_config.sentinel_url import SentinelUrl
from broker_config.settings import Settings, SettingsError, hidden_password

HOSTS = (("one", 26379), ("two", 7000))


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("sentinel://one,two:7000/swarm", SentinelUrl(HOSTS, "swarm", 0, is_encrypted=False)),
        ("sentinel://one:26379,two:7000/swarm/3", SentinelUrl(HOSTS, "swarm", 3, is_encrypted=False)),
        ("sentinel://one,two:7000/swarm?db=3", SentinelUrl(HOSTS, "swarm", 3, is_encrypted=False)),
        (
            "sentinel://me:s%40@one,two:7000/swarm/1",
            SentinelUrl(HOSTS, "swarm", 1, is_encrypted=False, login="me:s%40@"),
        ),
        (
            "rediss+sentinel://:pw@one,two:7000/a%20b?ssl_ca_certs=/ca&sentinel_password=x%26y&sentinel_username=u",
            SentinelUrl(
                HOSTS,
                "a b",
                0,
                is_encrypted=True,
                login=":pw@",
                sentinel_username="u",
                sentinel_password="x&y",
                options="ssl_ca_certs=/ca",
            ),
        ),
        ("sentinel://[::1]:7000/swarm", SentinelUrl((("::1", 7000),), "swarm", 0, is_encrypted=False)),
    ],
)
def test_sentinel_url_names_hosts_service_database_and_logins(url: str, expected: SentinelUrl) -> None:
    assert SentinelUrl.parse(url) == expected
    assert Settings(redis_url=url).redis_url == url
    with connect(url) as redis:
        assert redis.connection_pool.connection_kwargs["db"] == expected.database


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("sentinel://one:26379", "must name the service"),
        ("sentinel://one:26379/", "must name the service"),
        ("sentinel:///swarm", "must name the Sentinels by host"),
        ("sentinel://one,,two/swarm", "must name the Sentinels by host"),
        ("sentinel://one:port/swarm", "must name the Sentinels by host"),
        ("sentinel://one:99999/swarm", "must name the Sentinels by host"),
        ("sentinel://one/swarm/first", "number of a database"),
        ("sentinel://one/swarm?db=x", "number of a database"),
        ("sentinel://one/swarm?password=x", "before the first host"),
        ("sentinel://u:p@one,u:p@two/swarm", "once, before the first host"),
        ("redis://one,two/0", "several Sentinels are sentinel://"),
        ("redis+cluster://one/0", "must not be a Redis Cluster"),
    ],
)
def test_wrong_multi_server_url_shows_correct_form(url: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        Settings.load(redis_url=url)


def test_no_password_of_sentinel_url_is_shown() -> None:
    shown = hidden_password(
        "sentinel://me:hush@one,two:7000/swarm/0?sentinel_password=hush&sentinel_username=u"
    )

    assert shown == "sentinel://me:***@one,two:7000/swarm/0?sentinel_password=***&sentinel_username=u"


def test_celery_gets_sentinels_with_login_and_service_apart() -> None:
    url = "sentinel://me:pw@one,[::1]:7000/swarm/2?sentinel_password=other"

    assert celery_url(url) == "sentinel://me:pw@one:26379/2;sentinel://me:pw@[::1]:7000/2"
    options = transport_options(url)
    assert options["master_name"] == "swarm"
    assert options["sentinel_kwargs"]["password"] == "other"
    assert tls(url) is None
    configuration = celery_options(Settings(redis_url=url), [])
    for name in ("broker_transport_options", "result_backend_transport_options"):
        assert configuration[name]["master_name"] == "swarm"


def test_encrypted_sentinel_url_verifies_certificates_unless_disabled() -> None:
    verified, own = (
        f"rediss+sentinel://one/swarm{options}" for options in ("", "?ssl_ca_certs=/ca&ssl_cert_reqs=none")
    )

    assert tls(verified) == {"ssl_cert_reqs": "required"}
    assert tls(own) == {"ssl_cert_reqs": "none", "ssl_ca_certs": "/ca"}
    assert transport_options(verified)["sentinel_kwargs"]["ssl"] is True
    assert celery_options(Settings(redis_url=own), [])["broker_use_ssl"] == tls(own)
    with connect(own) as redis:
        assert redis.connection_pool.connection_kwargs["ssl_ca_certs"] == "/ca"


def test_unknown_redis_py_option_is_refused_before_sending() -> None:
    with pytest.raises(SettingsError, match="cannot be used"):
        connect("sentinel://one/swarm?foo=1")
