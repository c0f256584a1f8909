"""The files of a bundle as one text."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from goondan_tasks.bundle.yaml import parse_documents
from goondan_tasks.cli.one_text import one_text

TEXTS = [
    "a: 1",
    "a: |+\n  kept\n\n\n",
    "a: >+\n  kept\n\n# after\n\n",
    "--- # first\na: 1\n---\nb: 2\n...\n",
    "# about\n\n%YAML 1.1\n---\na: 1\n...\n%YAML 1.1\n---\nb: 2\n",
    "%TAG ! tag:yaml.org,2002:\r\n---\r\na: !str 1\r\n",
    "\r\n  # only a comment\r\n",
    "---\n",
    "",
    "---a: 1\n",
    "'%': 1\n",
]


def data(text: str) -> list[Any]:
    """Return the data of the documents in a text, which must be YAML."""
    documents, faults = parse_documents(text, "")
    assert faults == []
    return [document.data for document in documents]


@given(st.lists(st.sampled_from(TEXTS), min_size=1, max_size=4))
def test_the_one_text_says_what_its_parts_say(texts: list[str]) -> None:
    joined = one_text({Path(f"{number}.yaml"): text for number, text in enumerate(texts)})

    assert data(joined) == [one for text in texts for one in data(text)]
    assert all(text in joined for text in texts)


@pytest.mark.parametrize("name", ["a\nb: 1\n.yaml", "a\x00.yaml", "a\u2028b: 1"])
def test_the_name_of_a_file_is_nothing_but_a_comment(name: str) -> None:
    assert data(one_text({Path(name): "a: 1\n", Path("b.yaml"): "b: 2\n"})) == [{"a": 1}, {"b": 2}]
