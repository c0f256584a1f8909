"""What a handler returns whose result comes later."""

from typing import Any

import pytest

from goondan_tasks.callback import callback_token, callback_url
from goondan_tasks.errors import ToolOutputError
from goondan_tasks.pending import LONGEST_HANDLE, Pending, pending_of


@pytest.mark.requirement("result.async-form")
def test_the_documents_form_is_a_pending_whose_other_keys_are_the_output() -> None:
    form = {"__async": True, "handle": "build-1", "message": "begun", "n": 1}
    assert pending_of(form) == Pending("build-1", {"message": "begun", "n": 1})
    assert pending_of({"__async": True, "handle": 7}) == Pending("7", None)


@pytest.mark.parametrize(
    "value",
    [None, 1, "x", [], {}, {"handle": "x"}, {"__async": False, "handle": "x"}, {"__async": 1, "handle": "x"}],
)
def test_anything_else_is_the_result_itself(value: Any) -> None:
    assert pending_of(value) is None


@pytest.mark.parametrize("handle", [None, "", True, 1.5, {}, "x" * (LONGEST_HANDLE + 1)])
def test_a_pending_without_a_usable_handle_is_refused(handle: Any) -> None:
    with pytest.raises(ToolOutputError, match="handle"):
        pending_of({"__async": True, "handle": handle})


@pytest.mark.parametrize("seconds", [0, -1, True, "1", float("nan"), float("inf"), 1e12])
def test_a_time_that_is_none_is_refused(seconds: Any) -> None:
    with pytest.raises(ToolOutputError, match="ttl_seconds"):
        Pending("x", ttl_seconds=seconds)


def test_a_callback_is_of_one_run_and_leads_where_the_operator_says() -> None:
    url = callback_url("https://x.example/hooks/", "a/b", "token-1")
    assert url == f"https://x.example/hooks/callbacks/a%2Fb/{callback_token('token-1')}"
    assert callback_token("token-1") != callback_token("token-2")
    assert "token-1" not in url
