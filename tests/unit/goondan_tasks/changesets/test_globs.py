"""Globs of file paths."""

import time

import pytest

from goondan_tasks.changesets.policy import matches


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("goondan.yaml", "goondan.yaml"),
        ("./goondan.yaml", "goondan.yaml"),
        ("*.yaml", "goondan.yaml"),
        ("prompts/*", "prompts/coder.md"),
        ("prompts/**", "prompts/a/b/c.md"),
        ("**", "a"),
        ("**", "a/.b/c"),
        ("**/*.md", "readme.md"),
        ("**/*.md", "a/b/readme.md"),
        ("tools/**/test_*.py", "tools/test_a.py"),
        ("tools/**/test_*.py", "tools/a/b/test_a.py"),
        ("tools/?.py", "tools/a.py"),
        ("tools/[a-c].py", "tools/b.py"),
        ("tools/[!a].py", "tools/b.py"),
        ("tools/[^a].py", "tools/b.py"),
        ("*", ".hidden"),
    ],
)
def test_glob_means_path(glob: str, path: str) -> None:
    assert matches(glob, path)


@pytest.mark.parametrize(
    ("glob", "path"),
    [
        ("", "a"),
        ("*", "a/b"),
        ("prompts/*", "prompts/a/b.md"),
        ("prompts/**", "prompts"),
        ("prompts/**", "prompts.md"),
        ("prompts", "prompts/a"),
        ("coder.md", "prompts/coder.md"),
        ("a**b", "a/b"),
        ("tools/?.py", "tools/ab.py"),
        ("tools/[!a].py", "tools/a.py"),
        ("tools/[a-c].py", "tools/B.py"),
        ("!secret", "open"),
        ("{a,b}", "a"),
        ("/etc/**", "etc/passwd"),
    ],
)
def test_glob_means_no_other_path(glob: str, path: str) -> None:
    assert not matches(glob, path)


def test_hostile_glob_costs_no_time() -> None:
    started = time.monotonic()

    assert not matches("**/" * 12 + "*a*a*a*a*a*a*b", "a/" * 20 + "a" * 200)
    assert time.monotonic() - started < 60
