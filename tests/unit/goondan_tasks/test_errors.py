"""What every error of ours tells."""

import pytest

from goondan_tasks import errors
from goondan_tasks.errors import ConfigError, extra
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


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("import no_such_module", "no_such_module is not installed."),
        ("import yaml.no_such_part", "yaml is installed in a version that does not fit."),
        ("from yaml import no_such_name", "yaml is installed in a version that does not fit."),
    ],
)
def test_what_an_extra_lacks_is_named_with_its_remedy(statement: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised, extra("shop"):
        exec(statement)  # noqa: S102

    assert (raised.value.code, raised.value.message) == ("E_CONFIG_PACKAGE_NOT_INSTALLED", message)
    assert raised.value.suggestion == "Install it with its extra: pip install 'goondan-workers[shop]'"
