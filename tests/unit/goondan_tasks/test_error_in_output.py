"""Where the error of a call stands that ends without its tool."""

import pytest

from goondan_tasks.clocks import wall_clock
from goondan_tasks.error_in_output import with_error_in_output_by_name
from goondan_tasks.errors import ToolExpiredError
from goondan_tasks.failure import describe
from goondan_tasks.new_call import identity_of, new_call
from goondan_tasks.run import Run


@pytest.mark.requirement("v1.error-in-output")
@pytest.mark.parametrize(
    ("name", "is_told"), [("slack.post", True), ("slack__post", False), ("bash", False), ("a.b__c", False)]
)
def test_only_a_dot_says_that_a_tool_is_of_the_older_version(name: str, is_told: bool) -> None:
    call = new_call("coder", name, {}, {})
    run = Run(identity_of(call), call, "w1", 1, wall_clock(), wall_clock)
    failed = run.failed(describe(ToolExpiredError(), help_url="https://help/"), None)
    assert (with_error_in_output_by_name(failed).output is not None) == is_told
