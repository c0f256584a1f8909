"""Requests from outside."""

import math
from typing import Any

import pytest

from broker_config.settings import Settings
from goondan_tasks.agents.outside_call import outside_call
from goondan_tasks.errors import ToolInputValidationError


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, True, "5"])
def test_a_request_waits_for_a_time_above_zero(timeout: float) -> None:
    with pytest.raises(ToolInputValidationError, match="timeout must be a number above 0"):
        outside_call(Settings(), "editor", "x", {}, is_request=True, timeout=timeout)


@pytest.mark.parametrize(("is_request", "function"), [(True, "request"), (False, "send")])
def test_a_misspelt_field_is_refused_and_not_left_out(is_request: bool, function: str) -> None:
    fields: Any = {"instance": "issue-42"}
    with pytest.raises(TypeError, match=rf"{function}\(\) .* 'instance'; did you mean 'instance_key'\?"):
        outside_call(Settings(), "editor", "x", fields, is_request=is_request)


def test_empty_instance_key_of_an_event_is_refused() -> None:
    with pytest.raises(ToolInputValidationError, match="instanceKey: must have 1 character"):
        outside_call(Settings(), "editor", "x", {"instance_key": ""}, is_request=False)
