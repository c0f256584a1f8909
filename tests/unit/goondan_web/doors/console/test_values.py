"""Arguments in forms: what is masked there stays as it is, and no secret gets into another place."""

import json
from typing import Any

import pytest

from goondan_tasks.contract.errors import ToolInputValidationError
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from goondan_web.doors.console.values import editable, restored

A, B = ({"name": name, "token": f"secret of {name}"} for name in "ab")
SHOWN_A, SHOWN_B = ({"name": name, "token": "***"} for name in "ab")


@pytest.mark.parametrize(
    ("args", "edited", "meant"),
    [
        ([A, B], [SHOWN_B], [B]),
        ([A, B], [SHOWN_B, SHOWN_A], [B, A]),
        ([A, B], [{"name": "new"}, SHOWN_A, SHOWN_B], [{"name": "new"}, A, B]),
        ([A, B], [{**SHOWN_A, "name": "c"}, SHOWN_B], [{**A, "name": "c"}, B]),
        (
            [A, B],
            [{**SHOWN_A, "name": "c"}, {**SHOWN_B, "name": "d"}],
            [{**A, "name": "c"}, {**B, "name": "d"}],
        ),
        (["pwd=one", "x", "pwd=two"], ["***", "y", "***"], ["pwd=one", "y", "pwd=two"]),
        ([A, "x"], [SHOWN_A], [A]),
        ([{"note": "*** stars", **A}], [{"note": "*** star", **SHOWN_A}], [{"note": "*** star", **A}]),
    ],
)
def test_item_of_list_keeps_its_own_secret(args: Any, edited: Any, meant: Any) -> None:
    form = editable({"all": args})
    assert form is not None
    assert "secret of" not in form
    assert restored({"all": edited}, {"all": args}) == {"all": meant}


@pytest.mark.parametrize(
    ("args", "edited"),
    [
        ([A, B], [{**SHOWN_B, "name": "c"}]),
        ([A], [SHOWN_A, SHOWN_A]),
        (["pwd=one", "x", "pwd=two"], ["x", "***"]),
        (["pwd=one", "x"], ["x", {"pwd": "***"}]),
        ([{"note": "*** stars", **A}], [{"note": "none", "name": "***", "token": "***"}]),
        ([A], [{**SHOWN_A, "other": "***"}]),
        ([A], [{**SHOWN_A, "***": 1}]),
    ],
)
def test_ambiguous_secret_mask_is_refused(args: Any, edited: Any) -> None:
    with pytest.raises(ToolInputValidationError, match="several may be meant"):
        restored({"all": edited}, {"all": args})


def test_identically_masked_argument_names_have_no_form() -> None:
    KNOWN_SECRETS.add("name-of-secret-1")
    KNOWN_SECRETS.add("name-of-secret-2")
    args = {"deep": [{"name-of-secret-1": 1, "name-of-secret-2": 2, "x": 3}], "y": 4}
    assert editable(args) is None
    with pytest.raises(ToolInputValidationError, match="some of their names are the same"):
        restored({"deep": [{"***": "***", "x": 3}], "y": 5}, args)
    one = {"name-of-secret-1": 1, "x": 3}
    assert restored({**json.loads(editable(one) or ""), "x": 4}, one) == {"name-of-secret-1": 1, "x": 4}
