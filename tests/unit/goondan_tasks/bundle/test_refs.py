"""References in every form of the specification."""

from typing import Any

import pytest

from goondan_tasks.bundle.fields import Ref, Selector, Use, parse_ref, parse_use
from goondan_tasks.bundle.findings import FieldError

BASH = Ref("Tool", "bash")


@pytest.mark.requirement("tool.identity")
@pytest.mark.parametrize(
    ("raw", "ref"),
    [
        ("Tool/bash", BASH),
        ({"kind": "Tool", "name": "bash"}, BASH),
        ({"apiVersion": "goondan.ai/v1", "kind": "Tool", "name": "bash"}, BASH),
        ({"ref": "Tool/bash"}, BASH),
        ({"ref": {"kind": "Tool", "name": "bash", "package": "@me/base"}}, Ref("Tool", "bash", "@me/base")),
    ],
)
def test_reference_has_many_forms(raw: Any, ref: Ref) -> None:
    assert parse_ref(raw) == ref
    assert parse_use(raw) == Use(ref)
    assert str(ref) == "Tool/bash"


def test_selector_carries_overrides() -> None:
    raw = {
        "selector": {"kind": "Tool", "matchLabels": {"tier": "base"}},
        "overrides": {"spec": {"errorMessageLimit": None}},
    }

    assert parse_use(raw) == Use(
        Selector("Tool", None, {"tier": "base"}), {"spec": {"errorMessageLimit": None}}
    )


def test_extension_may_be_configured_where_it_is_used() -> None:
    assert parse_use({"ref": "Extension/x", "config": {"a": 1}}) == Use(
        Ref("Extension", "x"), config={"a": 1}
    )


@pytest.mark.parametrize(
    ("raw", "part"),
    [
        ("bash", "not a reference"),
        ("Tool/", "not a reference"),
        ("/bash", "not a reference"),
        ("Tool/a/b", "not a reference"),
        ("", "not a reference"),
        (None, "not a reference"),
        (5, "not a reference"),
        (["Tool/bash"], "not a reference"),
        ({}, "'kind'"),
        ({"kind": "Tool"}, "'name'"),
        ({"kind": 5, "name": "bash"}, "'kind'"),
        ({"kind": "Tool", "nam": "bash"}, "unknown field 'nam'"),
        ({"ref": "Tool/bash", "kind": "Tool"}, "unknown field 'kind'"),
        ({"ref": {"ref": "Tool/bash"}}, "unknown field 'ref'"),
        ({"ref": "Tool/bash", "overrides": {}}, "'overrides' needs a selector"),
        ({"selector": {}}, "the selector is empty"),
        ({"selector": "Tool/bash"}, "'selector' must be an object"),
        ({"selector": {"lables": {}}}, "unknown field 'lables'"),
        ({"selector": {"matchLabels": {"tier": 1}}}, "'tier' must be a string"),
        ({"selector": {"name": "bash"}, "overrides": {"entry": "x"}}, "unknown field 'entry'"),
        ({"selector": {"name": "bash"}, "overrides": []}, "'overrides' must be an object"),
        ({"ref": "Extension/x", "config": 5}, "'config' must be an object"),
    ],
)
def test_malformed_reference_is_refused(raw: Any, part: str) -> None:
    with pytest.raises(FieldError) as refusal:
        parse_use(raw)

    assert part in refusal.value.message
    assert refusal.value.code == "E_CONFIG_INVALID_REF"
    assert refusal.value.suggestion
