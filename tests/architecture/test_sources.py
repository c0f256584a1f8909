"""The shape of the sources: sizes, names, and where everything is caught."""

import ast
import re

import pytest

from tests.architecture.sources import ROOT, broad_catches, functions, lines_of, python_sources, users

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
#: the words of a test's name after `test_`
MAX_WORDS = 9
VAGUE_NAMES = {"base", "common", "helpers", "misc", "util", "utils"}


def test_files_have_no_vague_names() -> None:
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


def test_names_of_tests_stay_short() -> None:
    texts = [file.read_text("utf-8") for file in (ROOT / "tests").rglob("test_*.py")]
    names = [name for text in texts for name in re.findall(r"^(?:async )?def test_(\w+)", text, re.MULTILINE)]

    assert len(names) > 5_000
    assert [name for name in names if len(name.split("_")) > MAX_WORDS] == []


#: the boundary around foreign code, and context managers whose owners say whether an error goes on
BROAD_CATCHES = {
    "workers/outcome.py outcome_of",
    "workers/outcome.py awaited_outcome",
    # the process of a connector, which reports what its code raises
    "goondan_tasks/connectors/child.py main",
    "goondan_tasks/connectors/child.py _run_async",
    "goondan_tasks/connectors/child.py _run_plain",
    "goondan_tasks/connectors/child_requests.py serve_on_loop.answer",
    "goondan_tasks/connectors/child_requests.py serve_in_threads.answer",
    # the fault of one run ends no Connection
    "goondan_tasks/connectors/runner.py ConnectionRunner._run",
    "goondan_tasks/connectors/triggers.py Trigger.try_call",
    # raised where the result of the trip is awaited
    "goondan_tasks/client/threads.py _settle",
    "goondan_tasks/client/stream_hub.py StreamHub._run",
    # a step middleware may catch what the block of a Step raises, as around any other
    "workers/agents/entry_steps.py AsyncEntryStep",
    "workers/agents/entry_steps.py BlockingEntryStep",
    # what the client of the MCP SDK says
    "workers/mcp/transports.py HttpTransport.__aexit__",
}
#: where foreign code is run
FOREIGN_CODE = {
    "workers/concurrency/threads.py coming_outcome",
    "workers/concurrency/event_loop.py beside_loop.work",
    "workers/executor.py Executor.prepare",
    "workers/executor.py Executor.run",
    "workers/executor.py Executor.plain_result",
    "workers/executor.py Executor._described",
    "workers/executor.py Executor._of_error",
    "workers/executor.py Executor._of_value",
    "workers/plans.py Plans.prepared",
    "workers/testing.py run_here",
    "workers/extensions/events.py _Registration.call",
    "workers/extensions/events.py _Registration.finish",
    "workers/extensions/loader.py ExtensionLoader._run_register",
    "workers/javascript/extensions.py _MiddlewareRun._next",
    "workers/javascript/host.py Host._answer",
    "workers/pool/loop_calls.py LoopCalls._mark_again",
    "workers/pool/loop_calls.py LoopCalls._run",
    "workers/processes/isolated_child.py IsolatedChild._answer",
    "workers/revisions/revisions.py Revisions._ready",
    "workers/v1/chains.py CallWay._through",
}
#: where a fault of ours must not cost more than the call, or the round of a thread, that it is in
LAST_BOUNDARIES = {
    "workers/concurrency/threads.py without_fault",
    "workers/concurrency/threads.py DaemonThreads._run_short_jobs",
    "workers/concurrency/threads.py _Thread.run",
    "workers/concurrency/threads.py on_new_thread.both",
    "workers/revisions/sync.py _Poller._run",
    "workers/delivery/result_writer.py ResultWriter._try",
    "workers/delivery/result_writer.py ResultWriter._end_with_fault",
    "workers/pool/intake.py Intake.read",
    "workers/pool/pool.py CallPool._claimed",
    "workers/pool/pool.py CallPool._run",
    "workers/pool/pool.py CallPool._without_fault",
}


def test_broad_catches_are_only_in_listed_places() -> None:
    places = {f"{source.path} {name}" for source in python_sources() for name in broad_catches(source.tree)}

    assert places == BROAD_CATCHES


def test_outcomes_are_taken_in_places_listed_here_only() -> None:
    boundary = {"outcome_of", "awaited_outcome", "without_fault"}
    places = {f"{source.path} {name}" for source in python_sources() for name in users(source.tree, boundary)}

    assert places == FOREIGN_CODE | LAST_BOUNDARIES


@pytest.mark.parametrize(
    "body",
    [
        "try:\n  run()\n except:\n  pass",
        "try:\n  run()\n except Exception:\n  pass",
        "try:\n  run()\n except BaseException as error:\n  pass",
        "try:\n  run()\n except (ValueError, builtins.Exception):\n  pass",
        "try:\n  run()\n except* Exception:\n  pass",
        "try:\n  yield\n except Exception:\n  pass",
        "with contextlib.suppress(Exception):\n  run()",
        "with suppress(ValueError, BaseException):\n  run()",
    ],
)
def test_broad_catch_is_seen_in_every_spelling(body: str) -> None:
    assert broad_catches(ast.parse(f"def run_it():\n {body}\n")) == ["run_it"]


@pytest.mark.parametrize(
    ("member", "place"),
    [
        ("def __exit__(self, *_):\n  return True", "Quiet.__exit__"),
        ("async def __aexit__(self, *_):\n  return self.end()", "Quiet.__aexit__"),
        ("__exit__ = swallow", "Quiet"),
    ],
)
def test_context_manager_that_may_swallow_errors_is_seen(member: str, place: str) -> None:
    assert broad_catches(ast.parse(f"class Quiet:\n {member}\n")) == [place]


@pytest.mark.parametrize(
    "body",
    [
        "try:\n  run()\n except (OSError, ValueError):\n  pass",
        "with suppress(OSError):\n  run()",
        "def __exit__(self, *_):\n  self.end()",
        "def __exit__(self, *_):\n  return False",
    ],
)
def test_catch_passing_other_errors_is_not_broad(body: str) -> None:
    assert broad_catches(ast.parse(f"def run_it():\n {body}\n")) == []


@pytest.mark.parametrize("use", ["boundary.outcome_of(run)", "context.run(outcome_of, run)"])
def test_users_of_function_are_named_with_enclosing_scope(use: str) -> None:
    tree = ast.parse(f"class Shop:\n def open(self):\n  return lambda: {use}\n")

    assert users(tree, {"outcome_of"}) == ["Shop.open"]


def test_docstring_does_not_count_towards_length_of_function() -> None:
    [function] = functions(ast.parse('def run():\n    """Run.\n\n    For long.\n    """\n    a()\n    b()\n'))

    assert lines_of(function) == 3
