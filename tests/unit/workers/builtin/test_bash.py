from pathlib import Path

import pytest

from goondan_tasks.contract.errors import PathOutsideWorkdirError, ToolInputValidationError
from tests.processes import runs
from tests.unit.workers.builtin.conftest import CallTool

RESULT_KEYS = ["durationMs", "stdout", "stderr", "exitCode", "signal", "timedOut"]


@pytest.mark.requirement("context.workdir.default-of-file-tools")
def test_exec_runs_command_line_in_workdir(call: CallTool, workdir: Path) -> None:
    result = call("bash__exec", command="pwd; echo oops >&2; exit 3")

    assert list(result) == ["command", "cwd", *RESULT_KEYS]
    assert result | {"durationMs": 0} == {
        "command": "pwd; echo oops >&2; exit 3",
        "cwd": str(workdir),
        "durationMs": 0,
        "stdout": f"{workdir}\n",
        "stderr": "oops\n",
        "exitCode": 3,
        "signal": None,
        "timedOut": False,
    }


def test_exec_runs_in_directory_of_workdir(call: CallTool, workdir: Path) -> None:
    (workdir / "src").mkdir()

    assert call("bash__exec", command="pwd", cwd="src")["stdout"] == f"{workdir}/src\n"


@pytest.mark.parametrize("cwd", ["..", "/", "../outside", "link"])
def test_exec_refuses_to_start_outside_workdir(call: CallTool, workdir: Path, cwd: str) -> None:
    (workdir / "link").symlink_to("../outside")

    with pytest.raises(PathOutsideWorkdirError):
        call("bash__exec", command="pwd", cwd=cwd)


def test_exec_adds_variables_of_every_primitive_type(call: CallTool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOONDAN_REDIS_URL", "redis://:secret@localhost")

    env = {"TEXT": "a b", "NUMBER": 1.5, "FLAG": True}
    result = call("bash__exec", command='echo "$TEXT/$NUMBER/$FLAG/$GOONDAN_REDIS_URL/"', env=env)

    assert result["stdout"] == "a b/1.5/true//\n"


@pytest.mark.parametrize("value", [None, ["a"], {"a": 1}])
def test_exec_refuses_variables_that_are_no_primitives(call: CallTool, value: object) -> None:
    with pytest.raises(ToolInputValidationError, match="env"):
        call("bash__exec", command="true", env={"BAD": value})


def test_timeout_is_normal_result_with_output_so_far(call: CallTool, workdir: Path) -> None:
    command = "setsid sh -c 'echo $$ > daemon.pid; sleep 60' & echo before; sleep 60; echo after"

    result = call("bash__exec", command=command, timeoutMs=2000)

    assert (result["stdout"], result["timedOut"], result["exitCode"]) == ("before\n", True, -1)
    assert result["signal"] == "SIGTERM"
    assert not runs(int((workdir / "daemon.pid").read_text()))


@pytest.mark.parametrize("timeout_ms", [0, -1, -1e300, 1e300, 10**400])
def test_zero_negative_or_huge_timeout_is_ignored(call: CallTool, timeout_ms: float) -> None:
    assert call("bash__exec", command="sleep 0.1; echo done", timeoutMs=timeout_ms)["stdout"] == "done\n"


def test_only_truncated_output_is_marked_truncated(call: CallTool) -> None:
    result = call("bash__exec", command="seq 1000000; echo short >&2")

    assert result["exitCode"] == 0
    assert result["stdout"].endswith("\n... (output truncated)")
    assert len(result["stdout"]) == 100_000 + len("\n... (output truncated)")
    assert result["stderr"] == "short\n"


def test_cut_binary_output_says_so_too(call: CallTool) -> None:
    result = call("bash__exec", command="head -c 300000 /dev/urandom >&2; echo fine")

    assert result["stderr"].endswith("... (output truncated)")
    assert result["stdout"] == "fine\n"


def test_exec_lacks_input_and_ends_background_processes(call: CallTool, workdir: Path) -> None:
    result = call("bash__exec", command="cat; sleep 60 & echo $! > left.pid")

    assert result["exitCode"] == 0
    assert result["durationMs"] < 20_000
    assert not runs(int((workdir / "left.pid").read_text()))


@pytest.mark.parametrize("command", ["echo \0", "x" * 200_000])
def test_null_byte_or_overlong_command_is_oserror(call: CallTool, command: str) -> None:
    with pytest.raises(OSError, match="/bin/sh"):
        call("bash__exec", command=command)


@pytest.mark.requirement("context.workdir.default-of-file-tools")
def test_script_runs_file_of_workdir_with_arguments(call: CallTool, workdir: Path) -> None:
    (workdir / "sub dir").mkdir()
    (workdir / "sub dir" / "it.sh").write_text('echo "$# $2 $EXTRA"; pwd; [[ a == a ]]')

    result = call("bash__script", path="sub dir/it.sh", args=["1", "two words"], env={"EXTRA": 7})

    assert list(result) == ["path", "shell", "args", *RESULT_KEYS]
    assert result["path"] == str(workdir / "sub dir" / "it.sh")
    assert (result["shell"], result["args"]) == ("/bin/bash", ["1", "two words"])
    assert (result["stdout"], result["exitCode"]) == (f"2 two words 7\n{workdir}\n", 0)


def test_script_runs_with_given_shell(call: CallTool, workdir: Path) -> None:
    (workdir / "it.py").write_text("import sys; print(sys.argv[1:])")

    args = {"path": "it.py", "shell": "python3"}
    assert call("bash__script", **args)["stdout"] == "[]\n"


def test_script_that_is_missing_is_oserror(call: CallTool) -> None:
    with pytest.raises(FileNotFoundError, match=r"nowhere\.sh"):
        call("bash__script", path="nowhere.sh")


def test_script_outside_workdir_is_refused(call: CallTool, workdir: Path) -> None:
    (workdir / "link.sh").symlink_to("../outside/secret.txt")

    for path in ("/etc/profile", "../outside/secret.txt", "link.sh"):
        with pytest.raises(PathOutsideWorkdirError):
            call("bash__script", path=path)


def test_shell_that_is_missing_is_oserror(call: CallTool, workdir: Path) -> None:
    (workdir / "it.sh").write_text("true")

    args = {"path": "it.sh", "shell": "no-such-shell"}
    with pytest.raises(FileNotFoundError, match="no-such-shell"):
        call("bash__script", **args)


@pytest.mark.parametrize("args", [{}, {"command": ""}, {"command": 1}, {"command": "true", "timeout": 5}])
def test_exec_refuses_wrong_missing_and_extra_arguments(call: CallTool, args: dict[str, object]) -> None:
    with pytest.raises(ToolInputValidationError):
        call("bash__exec", **args)
