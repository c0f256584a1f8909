"""The Python packages that a bundle requires, held against those that are installed."""

from pathlib import Path

import pytest
from packaging.requirements import Requirement

from goondan_tasks.bundle import load_bundle
from goondan_tasks.bundle.requirements import unmet
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, found_in, told, write
from tests.wheels import make_wheel

PACKAGE = """\
apiVersion: goondan.ai/v1
kind: Package
metadata: { name: shop }
spec:
  requirements:
    - shelf>=2
    - PyYAML
"""


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put packages on the path: one with extras, which need each other."""
    requires = (
        'desk>=1; extra == "office"',
        'nowhere-to-be-found; extra == "far"',
        'shelf[all]; extra == "every"',
        'shelf[every,far]; extra == "all"',
        "nothing-without-an-extra",
    )
    for name, version in (("shelf", "2.1"), ("desk", "1.0")):
        needed = requires if name == "shelf" else ()
        monkeypatch.syspath_prepend(str(make_wheel(tmp_path, name, version, requires=needed)))


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize(
    ("requirement", "reason"),
    [
        ("shelf", None),
        ("Shelf>=2,<3", None),
        ("shelf[office]", None),
        ("shelf @ https://example.com/shelf.whl", None),
        ("shelf>=3", "shelf 2.1 is installed"),
        ("chair", "chair is not installed"),
        ("shelf[far]", "nowhere-to-be-found is not installed"),
        ("shelf[every]", "nowhere-to-be-found is not installed"),
    ],
)
def test_requirement_is_met_by_version_and_extras(requirement: str, reason: str | None) -> None:
    assert unmet(Requirement(requirement)) == reason


@pytest.mark.usefixtures("installed")
def test_missing_requirement_is_error_at_its_place(tmp_path: Path) -> None:
    tool = TOOL.replace(
        "spec:\n", "spec:\n  requirements: ['desk', 'chair[soft]>=1 ; python_version > \"3\"']\n"
    )
    folder = write(tmp_path, {"goondan.yaml": PACKAGE, "tools.yaml": tool})

    [missing] = found_in(folder, import_entries=True)

    assert told([missing]) == [(5, "E_CONFIG_PACKAGE_NOT_INSTALLED", "spec.requirements[1]")]
    assert missing.message == "the requirement 'chair[soft]>=1' is not met: chair is not installed"
    assert "goondan validate --install" in missing.suggestion


def test_requirement_for_other_machines_does_not_count(tmp_path: Path) -> None:
    text = PACKAGE.replace("shelf>=2", "shelf>=2 ; sys_platform == 'amiga'")

    assert found_in(write(tmp_path, {"goondan.yaml": text}), import_entries=True) == []


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("--index-url=https://evil.example", "is not a requirement: Expected package name"),
        ("two words", "is not a requirement"),
        ("''", "is not a requirement"),
        ("5", "must be text"),
    ],
)
def test_requirement_unreadable_for_pip_is_error(tmp_path: Path, text: str, part: str) -> None:
    [found] = found_in(write(tmp_path, {"goondan.yaml": PACKAGE.replace("shelf>=2", text)}))

    assert told([found]) == [(6, "E_CONFIG_SCHEMA_INVALID", "spec.requirements[0]")]
    assert part in found.message


def test_producers_load_bundle_whose_requirements_they_lack(tmp_path: Path) -> None:
    bundle = load_bundle(write(tmp_path, {"goondan.yaml": PACKAGE, "tools.yaml": TOOL, "agents.yaml": AGENT}))

    assert bundle.package is not None
    assert bundle.package.spec.requirements == ("shelf>=2", "PyYAML")
