"""The requirements manifest: the rules of the specification and how they are tied to tests.

``manifest.yaml`` says what its fields mean. The functions here return faults as sentences;
none means that all is well.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field

_SOURCE = re.compile(r"(?P<section>00[0-4] §\S.*) r(?P<number>\d+)")

Marks = Mapping[str, Iterable[str]]
"""The rule ids that each collected test names, by the test's node id."""


class Rule(BaseModel):
    """One rule of the specification."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    id: Annotated[str, Field(pattern=r"^[a-z0-9-]+(\.[a-z0-9-]+)+$")]
    level: Literal["MUST", "MUST NOT", "SHOULD", "MAY"]
    source: Annotated[tuple[str, ...], Field(min_length=1)]
    rule: Annotated[str, Field(min_length=20, pattern=r"[.]$")]


class Manifest(BaseModel):
    """Every rule, and how many rules each section of the documents has (``first-last``)."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sections: dict[str, Annotated[str, Field(pattern=r"^[01]-\d+$")]]
    requirements: tuple[Rule, ...]

    def by_id(self) -> dict[str, Rule]:
        """Return the rules by their id."""
        return {rule.id: rule for rule in self.requirements}

    def expected_sources(self) -> set[str]:
        """Return the name of every rule that the documents have."""
        return {
            f"{section} r{number}"
            for section, span in self.sections.items()
            for first, last in [span.split("-")]
            for number in range(int(first), int(last) + 1)
        }


@cache
def load_manifest() -> Manifest:
    """Read ``manifest.yaml``."""
    text = Path(__file__).with_name("manifest.yaml").read_text(encoding="utf-8")
    return Manifest.model_validate(yaml.safe_load(text))


def faults_of_manifest(manifest: Manifest) -> list[str]:
    """Check the manifest by itself: ids, sources, and that no rule of any section is left out."""
    ids = Counter(rule.id for rule in manifest.requirements)
    cited = {source for rule in manifest.requirements for source in rule.source}
    expected = manifest.expected_sources()
    return [
        *(f"{name} stands {count} times" for name, count in ids.items() if count > 1),
        *(
            f"{source} is not written as a source"
            for source in sorted(cited)
            if not _SOURCE.fullmatch(source)
        ),
        *(f"{source} is no rule of a known section" for source in sorted(cited - expected)),
        *(f"{source} has no entry" for source in sorted(expected - cited)),
    ]


def faults_of_marks(manifest: Manifest, marks: Marks) -> list[str]:
    """Check tests against rules: each id that a test names must exist."""
    return [fault for test, ids in marks.items() for fault in _faults_of_test(manifest, test, ids)]


def faults_of_coverage(manifest: Manifest, marks: Marks) -> list[str]:
    """Check rules against tests: each rule needs a test."""
    shown = {name for ids in marks.values() for name in ids}
    return [f"{rule.id} has no test: {rule.rule}" for rule in manifest.requirements if rule.id not in shown]


def _faults_of_test(manifest: Manifest, test: str, ids: Iterable[str]) -> Iterator[str]:
    rules = manifest.by_id()
    for name in ids:
        if name not in rules:
            yield f"{test} shows {name}, which is not in tests/requirements/manifest.yaml"
