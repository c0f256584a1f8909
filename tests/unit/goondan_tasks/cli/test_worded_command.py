"""Usage errors in our words."""

import pytest

from tests.unit.goondan_tasks.cli.invoke import goondan


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("calls", "--status", "runing"),
            "must be one of queued, running, pending, done, dead, ok, error; 'runing' is not. "
            "Did you mean running?",
        ),
        (("approvals", "x"), "must be one of list, approve, deny; 'x' is not."),
        (("calls", "--limit", "many"), "'--limit': must be a whole number, not 'many'."),
        (("calls", "--limit", "0"), "must be at least 1, not '0'."),
        (("calls", "--limit", "5000"), "must be at most 1000, not '5000'."),
    ],
)
def test_a_value_that_cannot_be_is_told_with_what_can(arguments: tuple[str, ...], said: str) -> None:
    done = goondan(*arguments)

    assert done.exit_code == 2
    assert said in " ".join(done.stderr.split())
