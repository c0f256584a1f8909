"""What every error of ours tells."""

import copy
import pickle
import threading
from typing import Any

import pytest

from goondan_tasks.authoring.changesets_api import ChangesetError
from goondan_tasks.contract import errors
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError, GoondanError, extra
from goondan_tasks.contract.failure import DescribedError, describe
from goondan_tasks.contract.messages import ToolCallError

HELP = "https://help.example/"

OURS = [
    error
    for error in vars(errors).values()
    if isinstance(error, type) and issubclass(error, errors.GoondanError) and error is not errors.GoondanError
]


@pytest.mark.requirement("error.suggestion", "error.help-url")
@pytest.mark.parametrize("error", OURS)
def test_our_errors_have_suggestion_and_help_page(error: type[errors.GoondanError]) -> None:
    made = errors.WaitTimeout("call-1", 2.0) if error is errors.WaitTimeout else error()
    described = describe(made, help_url=HELP)
    assert described.message.rstrip(")").endswith((".", "shows it"))
    assert described.suggestion
    assert described.help_url == HELP + error.code


INSTANCES = [
    errors.WaitTimeout("call-1", 2.0),
    DescribedError(ToolCallError(code="E_DISK", name="DiskError", message="full", suggestion="Make room.")),
    ChangesetError("merge", code="MERGE_CONFLICT"),
    *(error("what happened", suggestion="Do this.") for error in OURS if error is not errors.WaitTimeout),
]


@pytest.mark.parametrize("error", INSTANCES, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(
    "copied",
    [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))],  # noqa: S301
)
def test_our_errors_can_be_copied_and_pickled(error: GoondanError, copied: Any) -> None:
    again = copied(error)

    assert type(again) is type(error)
    assert (str(again), again.args, again.__dict__) == (str(error), error.args, error.__dict__)
    assert (again.code, again.message, again.suggestion) == (error.code, error.message, error.suggestion)


def test_pickled_conflict_leaves_handles_with_their_client() -> None:
    error = errors.ToolCallConflictError("taken")
    error.calls = (threading.Lock(),)

    assert pickle.loads(pickle.dumps(error)).calls == ()  # noqa: S301


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("import no_such_module", "no_such_module is not installed."),
        ("import yaml.no_such_part", "yaml is installed in a version that does not fit."),
        ("from yaml import no_such_name", "yaml is installed in a version that does not fit."),
    ],
)
def test_package_missing_from_extra_is_named_with_remedy(statement: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised, extra("shop"):
        exec(statement)  # noqa: S102

    assert (raised.value.code, raised.value.message) == ("E_CONFIG_PACKAGE_NOT_INSTALLED", message)
    assert raised.value.suggestion == "Install it with its extra: pip install 'goondan-workers[shop]'"


def test_unreachable_redis_points_to_export_line_of_dev() -> None:
    assert "for a `goondan dev`, paste the `export` line" in str(BrokerUnreachableError("away").suggestion)
