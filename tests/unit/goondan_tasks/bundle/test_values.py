"""Values that may stand in the environment."""

from typing import Any

import pytest
from pydantic import ValidationError

from goondan_tasks.bundle.fields import ValueSource, resolve_value, secret_variables
from goondan_tasks.contract.errors import ConfigError

SECRET = {"valueFrom": {"secretRef": {"ref": "Secret/slack-bot", "key": "apiToken"}}}


def test_value_stands_for_itself() -> None:
    assert resolve_value(ValueSource.model_validate({"value": {"a": 1}}), environment={}) == {"a": 1}
    assert resolve_value(ValueSource.model_validate({"value": None}), environment={}) is None


def test_variable_is_read_when_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    source = ValueSource.model_validate({"valueFrom": {"env": "SLACK_TOKEN"}})
    monkeypatch.setenv("SLACK_TOKEN", "set later")

    assert resolve_value(source) == "set later"


def test_secret_lookup_begins_with_most_specific_name() -> None:
    assert secret_variables("slack-bot", "apiToken", "clientSecret") == [
        "GOONDAN_SECRET_SLACK_BOT_API_TOKEN",
        "GOONDAN_SECRET_SLACK_BOT_CLIENT_SECRET",
        "GOONDAN_SECRET_SLACK_BOT",
        "SECRET_SLACK_BOT_API_TOKEN",
        "SECRET_SLACK_BOT_CLIENT_SECRET",
        "SECRET_SLACK_BOT",
    ]


def test_blank_variable_does_not_count() -> None:
    environment = {"GOONDAN_SECRET_SLACK_BOT_API_TOKEN": " ", "SECRET_SLACK_BOT": "found"}

    assert resolve_value(ValueSource.model_validate(SECRET), "clientSecret", environment) == "found"


def test_value_that_is_nowhere_names_variables() -> None:
    with pytest.raises(ConfigError, match="GOONDAN_SECRET_SLACK_BOT_API_TOKEN") as refusal:
        resolve_value(ValueSource.model_validate(SECRET), environment={})

    assert refusal.value.code == "E_CONFIG_REF_NOT_FOUND"


@pytest.mark.parametrize(
    "raw",
    [
        {},
        {"value": 1, "valueFrom": {"env": "A"}},
        {"valueFrom": {}},
        {"valueFrom": {"env": ""}},
        {"valueFrom": {"env": "A", "secretRef": SECRET["valueFrom"]["secretRef"]}},
        {"valueFrom": {"secretRef": {"ref": "slack", "key": "k"}}},
        {"valueFrom": {"secretRef": {"ref": "Secret/slack"}}},
        {"valeu": 1},
    ],
)
def test_source_says_exactly_one_place(raw: Any) -> None:
    with pytest.raises(ValidationError):
        ValueSource.model_validate(raw)
