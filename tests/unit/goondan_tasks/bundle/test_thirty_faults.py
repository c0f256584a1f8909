"""Every fault of a bundle is found at once, each with its line."""

import re
from pathlib import Path

import pytest

from goondan_tasks.bundle import inspect_bundle

BUNDLE = Path(__file__).parents[3] / "bundles" / "thirty-faults"
Place = tuple[str, int, str, str]


def expected() -> list[Place]:
    """Return the findings that the comments of the bundle's lines announce."""
    places: list[Place] = []
    for file in BUNDLE.rglob("*.*"):
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            _, _, comment = line.partition("# ")
            for code, level in re.findall(r"(E_CONFIG_\w+)( warning)?", comment):
                places.append((str(file), number, code, level.strip() or "error"))
    return sorted(places)


def test_over_thirty_faults_are_found_with_lines() -> None:
    bundle, findings = inspect_bundle(BUNDLE)

    assert bundle is None
    assert sorted((item.file, item.line, item.code, item.level) for item in findings) == expected()
    assert len(findings) > 30


@pytest.mark.parametrize("field", ["message", "suggestion"])
def test_every_finding_has_message_and_suggestion(field: str) -> None:
    _, findings = inspect_bundle(BUNDLE, import_entries=False)

    assert all(len(getattr(finding, field)) > 8 for finding in findings)
    assert len({(finding.file, finding.line, finding.path, finding.message) for finding in findings}) == len(
        findings
    )
