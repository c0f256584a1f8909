"""What may stand in the extension's config, and what is said of the rest."""

from typing import Any

import pytest

from goondan_tasks.bundle.fields import ValueSource
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from workers.mcp.config import HttpServer, Secrets, StdioServer, read_config


def one(**server: Any) -> dict[str, Any]:
    return {"servers": {"a": server}}


def test_servers_are_programs_or_addresses() -> None:
    config = read_config(
        {"servers": {"time": {"command": "mcp-server-time", "args": ["-v"]}, "far": {"url": "https://x/mcp"}}}
    )

    assert config.servers == {
        "time": StdioServer(command="mcp-server-time", args=("-v",)),
        "far": HttpServer(url="https://x/mcp"),
    }


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "config.servers: is missing"),
        ({"servers": {}}, "config.servers: must not be empty"),
        ({"servers": [1]}, "config.servers: must be an object"),
        ({"servers": {"a__b": {"command": "x"}}}, "config.servers.a__b.[key]: 'a__b' is not a valid name"),
        (one(comand="x"), "config.servers.a: a server has either 'command' or 'url'"),
        (one(command="x", url="http://x"), "config.servers.a: a server has either 'command' or 'url'"),
        ({"servers": {"a": None}}, "config.servers.a: a server has either 'command' or 'url'"),
        (one(command=""), "config.servers.a.command: must not be empty"),
        (one(command="x", environment={}), "config.servers.a.environment: is unknown"),
        (one(command="x", env={"PORT": 80}), "config.servers.a.env.PORT: must be text or"),
        (one(command="x", env={"K": {"valueFrom": {}}}), "exactly one of 'env' and 'secretRef' is required"),
        (one(url=5), "config.servers.a.url: must be text or"),
        (one(url={"valueFrom": {}}), "exactly one of 'env' and 'secretRef' is required"),
        (one(url="ftp://x"), "config.servers.a.url: this is not an http address"),
        (
            one(url="http://x", headers={"X Team": "a"}),
            "config.servers.a.headers.X Team.[key]: 'X Team' is not a name",
        ),
        (one(url="http://x", timeoutSeconds=0), "config.servers.a.timeoutSeconds: must be above 0"),
        (one(command="x") | {"startSeconds": 3600}, "config.startSeconds: must be at most 50"),
    ],
)
def test_fault_of_config_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(config)

    assert message in raised.value.message


def test_wrong_value_is_not_shown() -> None:
    with pytest.raises(ConfigError) as raised:
        read_config(one(command="x", env={"KEY": ["hunter2"]}))

    assert "hunter2" not in str(raised.value)


def test_resolved_secrets_are_hidden_unlike_plain_text() -> None:
    config = read_config(one(url="http://x", headers={"a": {"valueFrom": {"env": "K"}}, "b": "visible"}))
    server = config.servers["a"]
    assert isinstance(server, HttpServer)
    secrets = Secrets({"K": "opensesame"})

    assert secrets.texts(server.headers) == {"a": "opensesame", "b": "visible"}
    assert secrets.hide("opensesame is visible") == "*** is visible"


@pytest.mark.parametrize(
    "told",
    [
        "Illegal header value b'open sesame\\\\nopen again\\\\n'",
        "Illegal header value 'open sesame\\\\nopen again\\\\n'",
        "it said: open sesame",
        "it said: open again",
        "open sesame\nopen again\n",
    ],
)
def test_multiline_secret_is_hidden_linewise_however_written(told: str) -> None:
    config = read_config(one(url="http://x", headers={"a": {"valueFrom": {"env": "K"}}}))
    server = config.servers["a"]
    assert isinstance(server, HttpServer)
    secrets = Secrets({"K": "open sesame\nopen again\n"})
    secrets.texts(server.headers)

    assert "open" not in secrets.hide(told)


def test_non_ascii_secret_is_hidden_however_written() -> None:
    secrets = Secrets({"K": "열려라 참깨야"})
    config = read_config(one(command="x", env={"a": {"valueFrom": {"env": "K"}}}))
    server = config.servers["a"]
    assert isinstance(server, StdioServer)
    [secret] = secrets.texts(server.env).values()

    for written in (secret, repr(secret), ascii(secret), str(secret.encode())):
        assert secrets.hide(written).strip("b'") == "***"


def test_secret_address_is_resolved_and_hidden_in_parts_too() -> None:
    config = read_config(one(url={"valueFrom": {"env": "K"}}))
    server = config.servers["a"]
    assert isinstance(server, HttpServer)
    url = "https://tickets.example/mcp/s3cret?key=opensesame"
    secrets = Secrets({"K": f"{url}\n"})

    assert secrets.url(server.url) == url
    assert secrets.hide(f"404 for {url}, GET /mcp/s3cret?key=opensesame, key=opensesame") == (
        "404 for ***, GET ***, ***"
    )


def test_invalid_address_is_refused_and_not_shown() -> None:
    config = read_config(one(url={"valueFrom": {"env": "K"}}))
    server = config.servers["a"]
    assert isinstance(server, HttpServer)
    with pytest.raises(ConfigError, match="url: the value is not an http address") as raised:
        Secrets({"K": "opensesame"}).url(server.url)
    assert "opensesame" not in str(raised.value)


@pytest.mark.parametrize(
    "told",
    [
        "401 for key sk-open/sesame",
        "Bearer sk-open/sesame",
        "?key=sk-open%2Fsesame",
        r'{"key": "sk-open\/sesame"}',
    ],
)
def test_header_credentials_are_hidden_without_scheme_too(told: str) -> None:
    secrets = Secrets({"K": "Bearer sk-open/sesame"})
    secrets.texts({"Authorization": ValueSource.model_validate({"valueFrom": {"env": "K"}})})

    assert "sesame" not in secrets.hide(told)
    assert "sesame" not in KNOWN_SECRETS.hidden_in_log(told), "libraries log what servers send"


@pytest.mark.parametrize(
    ("field", "source", "shown"),
    [
        ("API_KEY", {"env": "K"}, "***"),
        ("PLACE", {"env": "SERVICE_TOKEN"}, "***"),
        ("PLACE", {"secretRef": {"ref": "Secret/service", "key": "place"}}, "***"),
        ("PLACE", {"env": "K"}, "/srv/notes"),
    ],
)
def test_outputs_keep_external_settings_and_hide_credentials(
    field: str, source: dict[str, Any], shown: str
) -> None:
    environment = dict.fromkeys(("K", "SERVICE_TOKEN", "GOONDAN_SECRET_SERVICE_PLACE"), "/srv/notes")
    secrets = Secrets(environment)
    secrets.texts({field: ValueSource.model_validate({"valueFrom": source})})

    assert secrets.hide_credentials({"in /srv/notes": ["/srv/notes", 1, None]}) == {
        f"in {shown}": [shown, 1, None]
    }
    assert secrets.hide("no /srv/notes") == "no ***"
