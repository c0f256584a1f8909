"""The guard, and the revision of the bundle that a Step was opened with."""

from types import SimpleNamespace
from typing import Any

import pytest

from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import ToolNotInCatalogError
from goondan_tasks.contract.messages import ToolCall
from workers.turns.catalog_guard import CatalogGuard

UNUSED: Any = None
BOUND: Any = object()


def guard(ref: str | None) -> CatalogGuard:
    """Return the guard of a worker in which one Step is open, of a revision."""
    step = SimpleNamespace(
        record=SimpleNamespace(bundle_ref=ref, origins={}),
        catalog=SimpleNamespace(item=lambda name: object()),
    )
    registry: Any = SimpleNamespace(catalog=lambda agent: object(), offered=lambda agent, tool, turn: BOUND)
    steps: Any = SimpleNamespace(require=lambda call: step, known=lambda call: step)
    return CatalogGuard(registry, steps)


def call(ref: str | None) -> ToolCall:
    return new_call("lizard", "skin__colour", {}, {"step_id": "s"}).model_copy(update={"bundle_ref": ref})


def test_step_call_naming_another_revision_is_refused() -> None:
    with pytest.raises(ToolNotInCatalogError, match="its Step was opened in r1"):
        guard("r1").admit(call("r2"), UNUSED)


@pytest.mark.parametrize(("step_ref", "ref"), [("r1", "r1"), ("r1", None), (None, "r1"), (None, None)])
def test_call_with_steps_revision_or_none_is_admitted(step_ref: str | None, ref: str | None) -> None:
    assert guard(step_ref).admit(call(ref), UNUSED) is BOUND


def test_known_steps_planned_call_needs_no_other_check() -> None:
    assert guard(None).admits(call(None).to_wire(), None)
    assert guard(None).admits(call(None).to_wire(), "r1")
    assert guard("r1").admits(call(None).to_wire(), "r1")
    assert not guard("r1").admits(call(None).to_wire(), None)
    assert not guard("r1").admits(call(None).to_wire(), "r2")
    assert not CatalogGuard(UNUSED).admits(call(None).to_wire(), None)
