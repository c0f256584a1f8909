"""The manifest and the tests agree, in both directions."""

import pytest
import yaml

from tests.requirements.manifest import (
    Manifest,
    faults_of_coverage,
    faults_of_manifest,
    faults_of_marks,
    load_manifest,
)

SMALL = """
sections:
  "001 §12.2": 0-1
requirements:
  - {id: tool.name, level: MUST, source: ["001 §12.2 r0"], rule: Tools have names with two parts.}
  - id: tool.dynamic
    level: MUST
    source: ["001 §12.2 r1"]
    rule: Tools can be registered while running.
"""


def small(text: str = SMALL) -> Manifest:
    return Manifest.model_validate(yaml.safe_load(text))


def test_every_rule_has_entry_every_entry_known_source() -> None:
    assert faults_of_manifest(load_manifest()) == []


def test_no_test_shows_unknown_rule(collected_marks: dict[str, list[str]]) -> None:
    assert faults_of_marks(load_manifest(), collected_marks) == []


def test_every_rule_has_test(collected_marks: dict[str, list[str]]) -> None:
    assert faults_of_coverage(load_manifest(), collected_marks) == []


def test_whole_manifest_has_no_faults() -> None:
    assert faults_of_manifest(small()) == []


@pytest.mark.parametrize(
    ("before", "after", "fault"),
    [
        ("id: tool.dynamic", "id: tool.name", "tool.name stands 2 times"),
        ("§12.2 r1", "§12.2, rule 1", "001 §12.2, rule 1 is not written as a source"),
        ("§12.2 r1", "§12.2 r7", "001 §12.2 r7 is no rule of a known section"),
        ("§12.2 r1", "§12.2 r0", "001 §12.2 r1 has no entry"),
        ("0-1", "0-2", "001 §12.2 r2 has no entry"),
    ],
)
def test_faulty_manifest_is_named_by_its_fault(before: str, after: str, fault: str) -> None:
    assert fault in faults_of_manifest(small(SMALL.replace(before, after)))


def test_rule_without_test_is_named() -> None:
    assert faults_of_coverage(small(), {"test_a": ["tool.name"]}) == [
        "tool.dynamic has no test: Tools can be registered while running."
    ]


def test_manifest_whose_rules_all_have_tests_is_fine() -> None:
    assert faults_of_coverage(small(), {"test_a": ["tool.name"], "test_b": ["tool.dynamic"]}) == []


def test_test_that_shows_unknown_rule_is_named() -> None:
    [found] = faults_of_marks(small(), {"test_a": ["tool.unknown"]})

    assert found.startswith("test_a shows tool.unknown")
    assert "is not in tests/requirements" in found
