"""Every kind of call with every outcome: the same promises hold for all of them."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack
from tests.conformance.bench import Bench, Worker, bring_calm_outcomes, bring_harmful_outcomes
from tests.conformance.kinds import ALL, CELLS, HARMFUL, IMPOSSIBLE, KINDS, OUTCOMES, Cell, write_bundle
from tests.conformance.observed import Seen, Watch, observe
from tests.conformance.promises import broken

#: where kills are, leases are short
LEASES: dict[object, str] = {bring_calm_outcomes: "6", bring_harmful_outcomes: "2"}
#: where kinds of calls differ today, and how
DIFFERENCES: dict[str, str] = {}


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    calm = [cell for cell in CELLS if cell.outcome not in HARMFUL]
    return seen_after(bring_calm_outcomes, calm, tmp_path_factory.mktemp("calm"))


@pytest.fixture(scope="module")
def harmful(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Seen]:
    harmful = [cell for cell in CELLS if cell.outcome in HARMFUL]
    return seen_after(bring_harmful_outcomes, harmful, tmp_path_factory.mktemp("harmful"))


def seen_after(
    bring: Callable[[Bench, Worker], None], cells: Sequence[Cell], folder: Path
) -> dict[str, Seen]:
    """Bring about outcomes on a stack of their own; return what was seen of each cell."""
    environment = {"GOONDAN_LEASE_SECONDS": LEASES[bring], "GOONDAN_LOG_FORMAT": "json"}
    with LocalStack(write_bundle(folder / "bundle"), workers=0, environment=environment) as stack:
        bench = Bench(stack, cells, folder)
        worker = bench.start_worker()
        with Watch.on(stack) as watch:
            bring(bench, worker)
            return observe(bench, watch)


def marks_of(cell: Cell) -> list[pytest.MarkDecorator]:
    reason = DIFFERENCES.get(cell.name)
    return [] if reason is None else [pytest.mark.xfail(strict=True, reason=reason)]


@pytest.mark.requirement("result.pending-handle", "error.as-result", "handler.returns-json")
@pytest.mark.parametrize("cell", [pytest.param(cell, id=cell.name, marks=marks_of(cell)) for cell in CELLS])
def test_call_keeps_promises_of_its_outcome(cell: Cell, request: pytest.FixtureRequest) -> None:
    seen = request.getfixturevalue("harmful" if cell.outcome in HARMFUL else "calm")
    faults = broken(seen[cell.name])
    assert not faults, "\n".join(faults)


def test_table_names_reason_for_each_missing_cell() -> None:
    assert len(ALL) == len(KINDS) * len(OUTCOMES)
    assert {(cell.kind.name, cell.outcome) for cell in ALL if cell not in CELLS} == IMPOSSIBLE.keys()
