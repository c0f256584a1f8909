"""Suggestions for misspelt words."""

import pytest

from goondan_tasks.contract.wording import closest, hint


@pytest.mark.parametrize(
    ("word", "meant"),
    [("descripton", "description"), ("BASH", "bash"), ("", None), ("zzz", None), ("bash" * 100_000, None)],
)
def test_nearest_known_word_is_found(word: str, meant: str | None) -> None:
    assert closest(word, ["description", "bash"]) == meant


@pytest.mark.parametrize(
    ("word", "meant"), [("desc", "description"), ("DESC", "description"), ("de", None), ("max", None)]
)
def test_unique_prefix_suggests_known_word(word: str, meant: str | None) -> None:
    assert closest(word, ["description", "maxAttempts", "maxConcurrency"]) == meant


def test_hint_names_known_words_without_near_match() -> None:
    assert hint("zzz", ["bash", "wait"]) == "Known are: bash, wait."
    assert hint("zzz", [f"t{number}" for number in range(100)]).endswith("t11, ….")
    assert hint("zzz", [], "Declare one.") == "Declare one."
    assert hint("wiat", ["bash", "wait"]) == "Did you mean 'wait'?"
