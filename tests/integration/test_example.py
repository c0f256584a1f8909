"""The coding swarm of ``examples/``: it is valid, and its tools do what they say."""

import importlib.util
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack

BUNDLE = Path(__file__).parents[2] / "examples" / "coding-swarm"
FUNCTION = {"name": "parse", "arguments": ["text"], "summary": 'Parse "it".'}
TASK = "Write a module that counts the words of files. Write its test. Then review the style."
SKELETON = {"module": "parser", "summary": "Parse things.", "functions": [FUNCTION]}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    """The example, whose model is the script beside it, on a port that is free."""
    spec = importlib.util.spec_from_file_location("scripted_model", BUNDLE / "scripted_model.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    bundle = Path(shutil.copytree(BUNDLE, tmp_path_factory.mktemp("example") / BUNDLE.name))
    with script.ScriptedModel(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        model = bundle / "model.yaml"
        model.write_text(model.read_text("utf-8").replace(str(script.PORT), str(server.server_port)), "utf-8")
        with LocalStack(bundle) as running:
            yield running
        server.shutdown()


def run(stack: LocalStack, agent: str, tool: str, args: dict[str, Any], instance: str) -> ToolCallResult:
    return stack.client.call(agent, tool, args, instance_key=instance, timeout=30)


def test_bundle_has_no_findings() -> None:
    bundle, findings = inspect_bundle(BUNDLE)

    assert findings == []
    assert bundle is not None


@pytest.mark.requirement("handoff.flow")
def test_planner_coder_and_reviewer_do_task_together(stack: LocalStack) -> None:
    answer = stack.client.request("planner", TASK, instance_key="job", timeout=60).response
    read = run(stack, "reviewer", "file-system__read", {"path": "wordcount.py"}, "job").output
    tests = run(stack, "coder", "python-project__run-tests", {}, "job").output

    assert "wordcount.py is written: 2 tests pass" in answer
    assert "nothing left to say in round 2" in answer
    assert f'"wordcount.py": {len(read["content"].split())}' in answer
    assert (tests["passed"], tests["ran"]) == (True, 2)


def test_task_unknown_to_script_is_answered_in_words(stack: LocalStack) -> None:
    answer = stack.client.request("planner", "Write a game of chess.", instance_key="no", timeout=30).response

    assert "I am a script and no model" in answer


@pytest.mark.requirement("handoff.failure-is-a-result")
def test_work_that_is_there_already_is_not_overwritten(stack: LocalStack) -> None:
    run(stack, "coder", "file-system__write", {"path": "wordcount.py", "content": "mine"}, "mine")

    answer = stack.client.request("planner", TASK, instance_key="mine", timeout=60).response

    assert "The coder has failed" in answer
    assert "Files exist already" in answer


def test_planner_assigns_each_step_to_agent(stack: LocalStack) -> None:
    task = "1. Write it, then test it.\n- Review the style!"
    result = run(stack, "planner", "plan__outline", {"task": task, "format": "markdown"}, "plan")

    assert result.output["steps"] == [
        {"number": 1, "agent": "coder", "text": "Write it"},
        {"number": 2, "agent": "coder", "text": "test it"},
        {"number": 3, "agent": "reviewer", "text": "Review the style!"},
    ]
    assert result.output["markdown"].splitlines()[0] == "- [ ] Write it (coder)"


def test_plan_keeps_its_limits(stack: LocalStack) -> None:
    arguments = {"task": "One step. Two steps. Three.", "limits": {"maxSteps": 1, "maxCharacters": 10}}
    result = run(stack, "planner", "plan__outline", arguments, "plan")

    assert result.output == {"steps": [{"number": 1, "agent": "coder", "text": "One step"}], "leftOut": 2}


@pytest.mark.requirement("handler.input-matches-parameters")
@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"task": "x", "format": "html"}, "format"),
        ({"task": "x", "limits": {"maxSteps": 0}}, "maxSteps"),
        ({"task": "x", "limits": {"most": 1}}, "most"),
        ({}, "task"),
    ],
)
def test_arguments_against_schema_are_named(stack: LocalStack, arguments: dict[str, Any], named: str) -> None:
    error = run(stack, "planner", "plan__outline", arguments, "plan").error

    assert error is not None
    assert error.code == "E_TOOL_INVALID_ARGS"
    assert named in error.message


@pytest.mark.requirement("error.as-result", "error.message", "error.suggestion")
def test_task_without_words_is_error_with_advice(stack: LocalStack) -> None:
    error = run(stack, "planner", "plan__outline", {"task": " . ; \n"}, "plan").error

    assert error is not None
    assert (error.code, error.message) == ("E_TOOL", "The task has no words.")
    assert error.suggestion == "Say in a sentence what is to be done."


def test_skeleton_is_valid_python_whose_test_fails(stack: LocalStack) -> None:
    made = run(stack, "coder", "python-project__scaffold", SKELETON, "skeleton")
    tests = run(stack, "coder", "python-project__run-tests", {}, "skeleton")

    assert made.output == {"files": ["parser.py", "test_parser.py"]}
    counts = {name: tests.output[name] for name in ("passed", "ran", "failures", "errors")}
    assert counts == {"passed": False, "ran": 1, "failures": 1, "errors": 0}


def test_skeleton_never_overwrites_files(stack: LocalStack) -> None:
    run(stack, "coder", "python-project__scaffold", SKELETON, "twice")
    error = run(stack, "coder", "python-project__scaffold", SKELETON, "twice").error

    assert error is not None
    assert error.message == "Files exist already: parser.py, test_parser.py."


def test_reserved_words_cannot_be_names(stack: LocalStack) -> None:
    arguments = {**SKELETON, "functions": [{"name": "class", "summary": "No."}]}
    error = run(stack, "coder", "python-project__scaffold", arguments, "reserved").error

    assert error is not None
    assert error.message == "Reserved words of Python cannot be names: class."


@pytest.mark.requirement("context.workdir.of-the-instance", "context.workdir.default-of-file-tools")
def test_reviewer_sees_coders_files_of_same_instance_only(stack: LocalStack) -> None:
    source = '"""Module."""\n\ndef f():\n    return "' + "x" * 90 + '"\n'
    run(stack, "coder", "file-system__write", {"path": "pkg/a.py", "content": source}, "shared")

    same = run(stack, "reviewer", "review__style", {}, "shared")
    other = run(stack, "reviewer", "review__style", {}, "other")

    assert same.output == {
        "files": 1,
        "count": 2,
        "findings": [
            {"path": "pkg/a.py", "line": 3, "rule": "docstring", "message": "f has none"},
            {"path": "pkg/a.py", "line": 4, "rule": "line-length", "message": "103 characters"},
        ],
    }
    assert other.output == {"files": 0, "count": 0, "findings": []}


def test_file_that_is_not_python_is_finding(stack: LocalStack) -> None:
    run(stack, "coder", "file-system__write", {"path": "bad.py", "content": "def (\n"}, "bad")
    result = run(stack, "reviewer", "review__style", {}, "bad")

    assert [finding["rule"] for finding in result.output["findings"]] == ["syntax"]


@pytest.mark.parametrize("glob", ["../**/*.py", "/usr/lib/**/*.py"])
def test_reviewer_stays_inside_workdir(stack: LocalStack, glob: str) -> None:
    error = run(stack, "reviewer", "review__style", {"glob": glob}, "outside").error

    assert error is not None
    assert error.code == "E_PATH_OUTSIDE_WORKDIR"
