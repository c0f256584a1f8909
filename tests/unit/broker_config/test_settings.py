"""The settings of a process."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker_config import settings as settings_module
from broker_config.settings import Settings, SettingsError, hidden_password


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in Settings.model_fields:
        monkeypatch.delenv(f"GOONDAN_{name.upper()}", raising=False)


def test_environment_variables_are_read_with_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_LEASE_SECONDS", "5")
    assert Settings.load().lease_seconds == 5


def test_command_line_overrides_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://environment/0")
    assert Settings.load(redis_url="redis://command-line/0").redis_url == "redis://command-line/0"


def test_option_missing_on_command_line_keeps_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://environment/0")
    assert Settings.load(redis_url=None).redis_url == "redis://environment/0"


def test_empty_variable_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_MAX_ATTEMPTS", "")
    assert Settings.load().max_attempts == 3


def test_every_wrong_variable_is_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_MAX_ATTEMPTS", "many")
    monkeypatch.setenv("GOONDAN_LOG_FORMAT", "xml")
    monkeypatch.setenv("GOONDAN_LEASE_SECONDS", "0")
    monkeypatch.setenv("GOONDAN_NAMESPACE", "a b")
    with pytest.raises(SettingsError) as refused:
        Settings.load()
    assert set(str(refused.value).split("; ")) == {
        "GOONDAN_MAX_ATTEMPTS: must be a whole number, not 'many'",
        "GOONDAN_LEASE_SECONDS: must be above 0.0, not '0'",
        "GOONDAN_LOG_FORMAT: must be 'console' or 'json', not 'xml'",
        "GOONDAN_NAMESPACE: may contain only letters, digits, '.', '_' and '-'",
    }


@pytest.mark.parametrize("url", ["http://h", "localhost:6379", "redis://a,redis://b", "", "sentinel://h"])
def test_url_that_names_no_redis_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="GOONDAN_REDIS_URL"):
        Settings.load(redis_url=url)


@pytest.mark.parametrize(
    "url",
    [
        "redis://h:port/0",
        "redis://h:65536/0",
        "redis://[::1/0",
        "redis://h/first",
        "redis://.svc:6379/0",  # a variable was empty
        "redis://a..b/0",
        f"redis://{'a' * 64}/0",
        "redis://\udcff/0",
        "redis://h/0?password=hush",  # workers could not log in
        "unix:///run/r.sock?db=1&username=hush",
    ],
)
def test_url_with_unusable_part_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="GOONDAN_REDIS_URL: must ") as refused:
        Settings.load(redis_url=url)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "agents.example",
        "//agents.example",
        "ftp://agents.example",
        "https://",
        "https:///callbacks",
        "https://agents.example?a=b",
        "https://agents.example/#a",
        "https://me:hush@agents.example",
        "https://agents.example:port",
        "https://[::1",
        "https://agents.example/{id}",
        "https://agents.example/a b",
        "https://agents.example\n",
    ],
)
def test_public_url_unfit_for_links_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="GOONDAN_PUBLIC_URL: must be an address") as refused:
        Settings.load(public_url=url)
    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["https://agents.example", "http://127.0.0.1:8765/", "https://[::1]:8/a/b", "HTTPS://A.example/~x"]
)
def test_public_url_may_have_port_and_path(url: str) -> None:
    assert Settings.load(public_url=url).public_url == url


@pytest.mark.parametrize("level", ["INFO", "Warning", "debug"])
def test_log_levels_are_read_in_any_case(level: str) -> None:
    assert Settings.load(log_level=level).log_level == level.lower()


@pytest.mark.parametrize("url", ["amqp://h", "redis://other/2"])
def test_second_broker_is_refused_with_remedy(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://h/1")
    monkeypatch.setenv("GOONDAN_BROKER_URL", url)
    with pytest.raises(SettingsError, match="Remove GOONDAN_BROKER_URL"):
        Settings.load()


def test_repeated_broker_url_is_accepted_not_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://h/1")
    monkeypatch.setenv("GOONDAN_BROKER_URL", "redis://h/1")
    assert Settings.load(redis_url="redis://named/3").redis_url == "redis://named/3"
    child = Settings.environment(redis_url="redis://named/3")
    assert child["GOONDAN_REDIS_URL"] == "redis://named/3"
    assert "GOONDAN_BROKER_URL" not in child


def test_state_root_is_absolute() -> None:
    assert Settings.load(state_root="~/x").state_root_path == Path.home() / "x"


@pytest.mark.parametrize("name", ["state_root", "cache_dir", "bundle"])
def test_home_is_expanded_and_unknown_home_is_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"GOONDAN_{name.upper()}", "~/x")
    assert getattr(Settings.load(), name) == Path.home() / "x"

    monkeypatch.setenv(f"GOONDAN_{name.upper()}", "~nobody-has-this-name/x")
    with pytest.raises(SettingsError, match="home directory of an unknown user"):
        Settings.load()


@pytest.mark.parametrize("text", ["inf", "nan", "1e300"])
@pytest.mark.parametrize("name", [name for name in Settings.model_fields if name.endswith("_seconds")])
def test_time_out_of_range_is_refused(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(f"GOONDAN_{name.upper()}", text)
    with pytest.raises(SettingsError, match=f"GOONDAN_{name.upper()}: must be"):
        Settings.load()


def test_variable_that_only_resembles_setting_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_ULR", "redis://h/0")
    monkeypatch.setenv("GOONDAN_LEASE_SECONDS", "5")
    monkeypatch.setenv("GOONDAN_SECRET_SLACK_TOKEN", "a bundle's own")

    assert Settings.unread_variables() == ["GOONDAN_REDIS_ULR"]


def test_secret_is_not_printed() -> None:
    assert "hush" not in repr(Settings.load(oauth_key="hush"))


def test_childs_environment_carries_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNRELATED", "1")
    environment = Settings.environment(bundle=Path("/b"), swarm=None)
    assert environment["GOONDAN_BUNDLE"] == "/b"
    assert environment["UNRELATED"] == "1"
    assert "GOONDAN_SWARM" not in environment


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://h:1/0", "redis://h:1/0"),
        ("redis://:hush@h:1/0", "redis://:***@h:1/0"),
        ("rediss://u:hu@sh@h/0", "rediss://u:***@h/0"),
        ("unix:///run/r.sock", "unix:///run/r.sock"),
        ("unix:///run/r.sock?db=1&password=hu%26sh", "unix:///run/r.sock?db=1&password=***"),
        (
            "rediss://h/0?password=hush&ssl_password=hush&db=1",
            "rediss://h/0?password=***&ssl_password=***&db=1",
        ),
        ("redis://u:hush@h/0?Password=hush", "redis://u:***@h/0?Password=***"),
    ],
)
def test_password_is_hidden(url: str, shown: str) -> None:
    assert hidden_password(url) == shown


def test_withheld_setting_is_loaded_not_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(settings_module, "_withheld", {})
    monkeypatch.setenv("GOONDAN_OAUTH_KEY", "a-key")

    for _ in range(2):
        Settings.withhold("oauth_key")
        loaded = Settings.load().oauth_key
        assert loaded is not None and loaded.get_secret_value() == "a-key"
    child = subprocess.run(["env"], capture_output=True, text=True, check=True).stdout
    assert "a-key" not in child


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], dict[str, str]]]:
    """Return what reads the variables of a test; those that a file has added go with it."""
    monkeypatch.setenv("FILE_SET", "before")
    yield lambda: {name: text for name, text in os.environ.items() if name.startswith("FILE_")}
    Settings.add_variables("")


def test_file_variables_never_replace_set_variables(added: Callable[[], dict[str, str]]) -> None:
    told = Settings.add_variables(
        "# a comment\nexport FILE_KEY='a b'\nFILE_SET=after\nFILE_PLACE=${FILE_SET}/x\nFILE_EMPTY=\nFILE_NO\n"
        "GOONDAN_LEASE_SECONDS=5\n"
    )

    ours = {"FILE_KEY": "a b", "FILE_PLACE": "before/x", "FILE_EMPTY": ""}
    assert told == {**ours, "GOONDAN_LEASE_SECONDS": "5"}
    assert added() == {"FILE_SET": "before", **ours}
    assert Settings.load().lease_seconds == 5


def test_later_file_replaces_variables_of_earlier_file(added: Callable[[], dict[str, str]]) -> None:
    Settings.add_variables("FILE_KEY=old\nFILE_GONE=1\n")

    assert Settings.add_variables("FILE_KEY=new\n") == {"FILE_KEY": "new"}
    assert added() == {"FILE_SET": "before", "FILE_KEY": "new"}


@pytest.mark.parametrize("fault", ["KEY='sk-secret", "= sk-secret", "KEY=sk-\0secret", "'a=b'=sk-secret"])
def test_faulty_file_changes_nothing_and_is_not_quoted(
    added: Callable[[], dict[str, str]], fault: str
) -> None:
    Settings.add_variables("FILE_KEY=old\n")

    with pytest.raises(SettingsError, match=r"^line 2 is not NAME=value$"):
        Settings.add_variables(f"FILE_FINE=1\n{fault}\n")

    assert added() == {"FILE_SET": "before", "FILE_KEY": "old"}
