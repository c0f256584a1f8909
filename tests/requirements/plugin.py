"""Tie tests to the rules they show: ``@pytest.mark.requirement("tool.name.separator", …)``.

Every test is checked when it runs: the rules it names exist. Whether every rule has
a test is checked by ``test_manifest.py`` when the whole suite was collected (``-k`` and ``-m`` do no harm,
paths do).
"""

from pathlib import Path

import pytest

from tests.requirements.manifest import faults_of_marks, load_manifest

COLLECTED = pytest.StashKey[dict[str, list[str]]]()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remember what the tests show before ``-k`` and ``-m`` take any away."""
    config.stash[COLLECTED] = {item.nodeid: _shown_by(item) for item in items}


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail a test that shows an unknown rule."""
    shown = _shown_by(item)
    if shown and (faults := faults_of_marks(load_manifest(), {item.nodeid: shown})):
        pytest.fail("\n".join(faults), pytrace=False)


@pytest.fixture(scope="session")
def collected_marks(pytestconfig: pytest.Config) -> dict[str, list[str]]:
    """The rules that each collected test shows; skips unless the whole suite was collected."""
    if not _whole_suite(pytestconfig):
        pytest.skip("only a part of the suite was collected")
    return pytestconfig.stash[COLLECTED]


def _shown_by(item: pytest.Item) -> list[str]:
    return [name for mark in item.iter_markers("requirement") for name in mark.args]


def _whole_suite(config: pytest.Config) -> bool:
    narrowing = ("lf", "deselect", "ignore", "ignore_glob", "stepwise")
    if any(config.getoption(option, default=None) for option in narrowing):
        return False
    tests = config.rootpath / "tests"
    roots = [Path(config.invocation_params.dir, argument).resolve() for argument in config.args]
    return any(tests == root or tests.is_relative_to(root) for root in roots)
