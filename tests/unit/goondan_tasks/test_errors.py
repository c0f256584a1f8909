"""What every error of ours tells."""

import pytest

from goondan_tasks import errors
from goondan_tasks.failure import describe

HELP = "https://help.example/"

OURS = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.GoondanError) and error is not errors.GoondanError
]


@pytest.mark.requirement("error.suggestion", "error.help-url")
@pytest.mark.parametrize("error", OURS)
def test_every_error_of_ours_says_what_to_do_and_where_to_read_on(error: type[errors.GoondanError]) -> None:
    described = describe(error(), help_url=HELP)
    assert described.message.endswith(".")
    assert described.suggestion
    assert described.help_url == HELP + error.code
