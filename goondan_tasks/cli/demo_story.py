"""What happens in the demo: a scripted brain in place of a model decides which tools to call."""

import json
import shlex
import sys

from goondan_tasks.cli.demo_caller import DemoCaller, check
from goondan_tasks.cli.demo_screen import DemoScreen
from goondan_tasks.cli.demo_server import Site

TASK = (
    "Write a module that counts the words of files. Write its test and run it. "
    "Fetch the files of this swarm over http and count their words. Then review the style."
)

MODULE = '''\
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
SIGNATURE = "def count_words(text):\n"
DOCSTRING = '    """Count what white space separates."""\n'

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

PYTHON = shlex.quote(sys.executable)


def tell_story(caller: DemoCaller, screen: DemoScreen, site: Site) -> None:
    """Have planner, coder and reviewer do :data:`TASK`, and check what comes of it.

    Raises:
        UnexpectedResult: a call did not end as it should.
    """
    screen.chapter("The planner splits the task")
    plan = caller.call("planner", "plan__outline", {"task": TASK})
    check(plan["steps"][-1]["agent"] == "reviewer", "the last step of the plan is the reviewer's")

    screen.chapter("The coder writes a module and its test")
    _write_and_test(caller)

    screen.chapter("The coder fetches files and counts their words: both workers take their share")
    _fetch_and_count(caller, site)

    screen.chapter("Mistakes are answers too")
    _make_mistakes(caller)

    screen.chapter("The reviewer looks, the coder corrects, the reviewer looks again")
    _review_and_correct(caller)


def _write_and_test(caller: DemoCaller) -> None:
    function = {"name": "count_words", "arguments": ["text"], "summary": "Count the words of a text."}
    skeleton = {"module": "wordcount", "summary": "Count the words of text files.", "functions": [function]}
    caller.call("coder", "python-project__scaffold", skeleton)
    first = caller.call("coder", "python-project__run-tests", {})
    check(not first["passed"], "the test of a skeleton fails")

    caller.call("coder", "file-system__write", {"path": "wordcount.py", "content": MODULE})
    caller.call("coder", "file-system__write", {"path": "test_wordcount.py", "content": TEST})
    run = caller.call("coder", "bash__exec", {"command": f"{PYTHON} -B -m unittest -v"})
    check(run["exitCode"] == 0, "the test passes")


def _fetch_and_count(caller: DemoCaller, site: Site) -> None:
    index = caller.call("coder", "http-fetch__get", {"url": f"{site.url}/index.json"})
    names = caller.call("coder", "json-query__query", {"data": index["body"], "path": "files"})["value"]
    pages = caller.call_together(
        "coder", "http-fetch__get", [{"url": f"{site.url}/{name}"} for name in names]
    )
    files = [
        {"path": f"texts/{name}", "content": page["body"]} for name, page in zip(names, pages, strict=True)
    ]
    caller.call_together("coder", "file-system__write", files)

    paths = " ".join(shlex.quote(file["path"]) for file in files)
    run = caller.call("coder", "bash__exec", {"command": f"{PYTHON} -B wordcount.py {paths}"})
    words = sum(len(text.split()) for text in site.files.values())
    check(json.loads(run["stdout"])["total"] == words, f"the files have {words} words")


def _make_mistakes(caller: DemoCaller) -> None:
    caller.call_and_fail("planner", "bash__exec", {"command": "ls"}, "E_TOOL_NOT_IN_CATALOG")
    caller.call_and_fail("coder", "bash__exec", {"cmd": "ls"}, "E_TOOL_INVALID_ARGS")
    outside = {"path": "../../../../etc/passwd"}
    caller.call_and_fail("coder", "file-system__read", outside, "E_PATH_OUTSIDE_WORKDIR")


def _review_and_correct(caller: DemoCaller) -> None:
    review = {"glob": "wordcount.py"}
    found = caller.call("reviewer", "review__style", review)
    check(found["count"] == 1, "one docstring is missing")

    corrected = {"path": "wordcount.py", "content": MODULE.replace(SIGNATURE, SIGNATURE + DOCSTRING)}
    caller.call("coder", "file-system__write", corrected)
    again = caller.call("coder", "python-project__run-tests", {})
    check(again["passed"] and again["ran"] == 2, "both tests pass")
    check(caller.call("reviewer", "review__style", review)["count"] == 0, "no finding is left")
