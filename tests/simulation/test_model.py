"""The rules of the ledger keep its promises in every state that can be reached; each rule is needed."""

import pytest

from tests.simulation.model_runs import PLANTED, SEARCHES, Search


@pytest.mark.parametrize("search", SEARCHES, ids=str)
def test_every_reachable_state_keeps_promises(search: Search) -> None:
    seen = search.run()

    assert seen.problem is None, str(seen.problem)
    assert seen.states > 1_000


@pytest.mark.parametrize("rules", PLANTED, ids=" and ".join)
def test_rule_left_out_breaks_promise(rules: tuple[str, ...]) -> None:
    search, reason = PLANTED[rules]
    problem = search.run(*rules).problem

    assert problem is not None
    assert problem.reason == reason


def test_story_tells_fewest_steps_to_broken_promise() -> None:
    search, _ = PLANTED["start leaves a mark",]
    problem = search.run("start leaves a mark").problem

    assert str(problem).splitlines() == [
        "the call is not idempotent and begins twice",
        "  1. the call is submitted",
        "  2. worker A reserves the call: run",
        "  3. worker A marks the call: yes",
        "  4. worker A begins the call",
        "  5. the lease of the call ends",
        "  6. the call is swept: requeue",
        "  7. the call is settled: requeue",
        "  8. worker A reserves the call: run",
        "  9. worker A marks the call: yes",
        " 10. worker A begins the call",
    ]
