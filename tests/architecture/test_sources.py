"""The shape of the sources: sizes, names, and where everything is caught."""

import ast

import pytest

from tests.architecture.sources import broad_handlers, functions, lines_of, python_sources

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
VAGUE_NAMES = {"base", "common", "helpers", "misc", "util", "utils"}


def test_files_are_named_for_what_they_own() -> None:
    vague = [source.module for source in python_sources() if VAGUE_NAMES & set(source.module.split("."))]

    assert vague == []


def test_files_stay_short() -> None:
    lengths = {str(source.path): len(source.text.splitlines()) for source in python_sources()}

    assert {path: length for path, length in lengths.items() if length > MAX_FILE_LINES} == {}


def test_functions_stay_short() -> None:
    lengths = {
        f"{source.path}:{function.lineno} {function.name}": lines_of(function)
        for source in python_sources()
        for function in functions(source.tree)
    }

    assert {name: length for name, length in lengths.items() if length > MAX_FUNCTION_LINES} == {}


def test_only_the_executor_and_its_part_in_the_isolated_child_catch_everything() -> None:
    places = [str(source.path) for source in python_sources() for _ in broad_handlers(source.tree)]

    # what a handler raises cannot leave its process, so the executor's boundary has a part in the child
    assert places == ["workers/executor.py", "workers/processes/isolated_child.py"]


@pytest.mark.parametrize("caught", ["", " Exception", " BaseException as error", " (ValueError, Exception)"])
def test_a_broad_handler_is_seen_in_every_spelling(caught: str) -> None:
    tree = ast.parse(f"try:\n    run()\nexcept{caught}:\n    pass\n")

    assert len(broad_handlers(tree)) == 1


def test_a_handler_of_named_errors_is_not_broad() -> None:
    tree = ast.parse("try:\n    run()\nexcept (OSError, ValueError):\n    pass\n")

    assert broad_handlers(tree) == []


def test_a_docstring_does_not_count_towards_the_length_of_a_function() -> None:
    [function] = functions(ast.parse('def run():\n    """Run.\n\n    For long.\n    """\n    a()\n    b()\n'))

    assert lines_of(function) == 3
