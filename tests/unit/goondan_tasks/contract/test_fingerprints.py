"""Failures that differ in numbers, ids and quoted texts are of one kind; others are not."""

import pytest

from goondan_tasks.contract.fingerprints import FailureKind


def kind(message: str, tool: str = "bash__exec", code: str = "E_TOOL") -> FailureKind:
    return FailureKind.of_text(tool, code, message)


@pytest.mark.parametrize(
    ("one", "other", "text"),
    [
        ("No order 12.", "No order 9931.", "No order <n>."),
        ("took 1.5 s at 10:03:07", "took 20 s at 9:00", "took <n> s at <n>"),
        (
            "call 0b7c7a1e-0000-5000-8000-000000000001 is gone",
            "call 5f0c1c8e-1111-5000-8000-00000000abcd is gone",
            "call <id> is gone",
        ),
        ("commit 3f0a9c1d2e4b5a", "commit 00ff00ff", "commit <id>"),
        ("No file 'a.txt'", "No file 'b c.txt'", "No file \u2026"),
        ('No key "a"', 'No key ""', "No key \u2026"),
        ("first\nsecond", "  first \n other", "first"),
    ],
)
def test_varying_details_do_not_change_fingerprint(one: str, other: str, text: str) -> None:
    assert kind(one).fingerprint == kind(other).fingerprint
    assert kind(one).message == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (kind("No order."), kind("No customer.")),
        (kind("No order.", tool="bash__read"), kind("No order.")),
        (kind("No order.", code="ENOENT"), kind("No order.")),
        (kind("It wasn't there, and isn't now"), kind("It wasn't there, but is now")),
        (kind("effaced"), kind("decade")),
    ],
)
def test_different_failures_have_different_fingerprints(one: FailureKind, other: FailureKind) -> None:
    assert one.fingerprint != other.fingerprint


def test_only_beginning_of_huge_message_is_read() -> None:
    assert kind("x" * 300).fingerprint == kind("x" * 3_000_000).fingerprint
    assert len(kind("'" * 3_000_000).message) <= 300
