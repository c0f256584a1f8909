"""What stands in for the coder's model: a script that knows one task, so the example needs no API key."""

from dataclasses import dataclass

from goondan_tasks.agent_api import HandoffError, JsonObject

SOURCE = '''\
"""Count the words of text files."""

import json
import sys
from pathlib import Path


def count_words(text):
    return len(text.split())


def main(paths):
    """Print the words of all files, and of each, as JSON."""
    words = {path: count_words(Path(path).read_text(encoding="utf-8")) for path in sorted(paths)}
    print(json.dumps({"total": sum(words.values()), "files": words}))


if __name__ == "__main__":
    main(sys.argv[1:])
'''

TEST = '''\
"""Tests of wordcount."""

import unittest

from wordcount import count_words


class WordcountTest(unittest.TestCase):
    def test_words_are_separated_by_any_white_space(self):
        self.assertEqual(count_words("one two\\nthree\\t four"), 4)

    def test_an_empty_text_has_no_words(self):
        self.assertEqual(count_words("  \\n"), 0)
'''


@dataclass(frozen=True)
class Draft:
    """A module and its test, as they are first written; ``command`` runs the module."""

    skeleton: JsonObject
    module: str
    source: str
    test: str
    test_source: str
    command: str


def draft(task: str) -> Draft:
    """Return what the coder writes first. A docstring is missing: the reviewer will say so."""
    if not ("count" in task and "words" in task):
        raise HandoffError(
            f"There is no model here, and the script cannot do this: {task}",
            suggestion="Ask for a module that counts words, or call a model in agents/coder.py.",
        )
    function = {"name": "count_words", "arguments": ["text"], "summary": "Count the words of a text."}
    return Draft(
        skeleton={"module": "wordcount", "summary": "Count words.", "functions": [function]},
        module="wordcount.py",
        source=SOURCE,
        test="test_wordcount.py",
        test_source=TEST,
        command="wordcount.py wordcount.py test_wordcount.py",
    )


def correct(source: str, findings: list[JsonObject]) -> str:
    """Give each function without a docstring one, below the line that the reviewer has named."""
    lines = source.splitlines(keepends=True)
    for finding in sorted(findings, key=lambda finding: finding["line"], reverse=True):
        if finding["rule"] == "docstring":
            name = finding["message"].split()[0]
            lines.insert(finding["line"], f'    """{name.replace("_", " ").capitalize()}."""\n')
    return "".join(lines)
