"""The command line against a real worker: calls, and what can be seen of them."""

import os
import pty
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker_config.connections import connect
from goondan_tasks.bundle import build_catalog, load_bundle
from goondan_tasks.testing import LocalStack
from tests.integration.goondan_process import PROGRAM, environment, goondan, goondan_program, start

EXAMPLE = Path(__file__).parents[2] / "examples" / "coding-swarm"
PATIENCE = 60

LS = '{"command": "echo here"}'
SLEEP = '{"command": "sleep 1; echo done"}'


@pytest.fixture(scope="module")
def stack() -> Iterator[LocalStack]:
    """Run a worker for the coder; planner and reviewer have none."""
    with LocalStack(EXAMPLE, agents=["coder"]) as running:
        yield running


@pytest.fixture
def env(stack: LocalStack) -> dict[str, str]:
    """Know the broker and no bundle."""
    return environment(redis_url=stack.redis_url)


def test_call_comes_back_with_its_result(stack: LocalStack, env: dict[str, str]) -> None:
    done = goondan("call", "coder", "bash__exec", LS, "--instance", "cli-1", "--json", env=env)

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.document["status"] == "ok"
    assert done.document["output"]["stdout"] == "here\n"
    assert done.document["meta"]["instanceKey"] == "cli-1"
    assert done.document["meta"]["worker"] in {worker.name for worker in stack.client.workers()}


def test_error_of_tool_gives_exit_code_one(env: dict[str, str]) -> None:
    done = goondan("call", "coder", "plan__outline", "{}", "--json", env=env)

    assert (done.exit_code, done.document["error"]["code"]) == (1, "E_TOOL_NOT_IN_CATALOG")


def test_misspelt_tool_gets_intended_name_suggested_first(env: dict[str, str]) -> None:
    done = goondan("call", "coder", "bash__exce", LS, env=env)

    assert done.exit_code == 1
    assert "\nWhat to do: Did you mean 'bash__exec'? " in done.stdout


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("call co", ["coder"]),
        ("call coder bash__e", ["bash__exec"]),
        ("calls --agent coder --tool bash__e", ["bash__exec"]),
        ("worker --agent pl", ["planner"]),
        ("result {id}", ["{id}"]),
        ("approvals approve {id}", ["{id}"]),
    ],
)
def test_shell_completes_agents_tools_and_recent_calls(
    stack: LocalStack, env: dict[str, str], line: str, found: list[str]
) -> None:
    call = stack.client.submit("coder", "bash__exec", {"command": "true"})
    call.result(PATIENCE)
    words = f"goondan {line.format(id=call.id[:13])}"
    asked = {"_GOONDAN_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}

    done = goondan_program(env={**env, **asked})

    assert done.stdout.split() == [word.format(id=call.id) for word in found]
    assert done.stderr == ""


@pytest.mark.parametrize("url", ["redis://127.0.0.1:1/0", "nonsense"])
def test_shell_completes_from_bundle_without_redis(tmp_path: Path, url: str) -> None:
    asked = {
        "_GOONDAN_COMPLETE": "complete_bash",
        "COMP_CWORD": "3",
        "COMP_WORDS": "goondan call coder bash__e",
    }
    known = environment(redis_url=url, bundle=EXAMPLE)

    done = goondan_program(env={**known, **asked}, cwd=tmp_path)
    calls = goondan_program(
        env={**known, **asked, "COMP_WORDS": "goondan result ", "COMP_CWORD": "2"}, cwd=tmp_path
    )

    assert done.stdout.split() == (["bash__exec"] if url != "nonsense" else [])
    assert (done.stderr, calls.stdout.split(), calls.stderr) == ("", [], "")


def test_unknown_agent_exits_with_three_and_suggestion(env: dict[str, str]) -> None:
    done = goondan("call", "codr", "bash__exec", LS, env=env)

    assert done.exit_code == 3
    assert "did you mean 'coder'?" in done.stderr


def test_result_can_be_fetched_after_wait_ended_early(env: dict[str, str]) -> None:
    late = goondan("call", "coder", "bash__exec", SLEEP, "--timeout", "0.2", "--json", env=env)
    assert late.exit_code == 4
    call_id = late.document["error"]["callId"]

    fetched = goondan("result", call_id, "--timeout", str(PATIENCE), "--json", env=env)

    assert (fetched.exit_code, fetched.document["output"]["stdout"]) == (0, "done\n")
    assert fetched.document["meta"]["id"] == call_id


def test_repeated_call_is_same_and_changed_call_conflicts(env: dict[str, str]) -> None:
    named = ("--turn", "cli-turn", "--id", "call_1")
    first, again = (
        goondan("call", "coder", "bash__exec", '{"command": "date +%N"}', *named, "--json", env=env)
        for _ in range(2)
    )
    other = goondan("call", "coder", "bash__exec", LS, *named, "--json", env=env)

    assert first.document == again.document
    assert (other.exit_code, other.document["error"]["code"]) == (2, "E_TOOL_CALL_CONFLICT")


def test_arguments_that_are_too_large_end_with_two(env: dict[str, str]) -> None:
    large = '{"command": "' + "x" * (5 * 1024 * 1024) + '"}'

    done = goondan("call", "coder", "bash__exec", "-", "--json", env=env, stdin=large)

    assert (done.exit_code, done.document["error"]["code"]) == (2, "E_PAYLOAD_TOO_LARGE")


def test_detached_call_is_listed_and_counted_until_run(stack: LocalStack, env: dict[str, str]) -> None:
    began = time.monotonic()
    call_id = goondan("call", "reviewer", "review__style", "--detach", env=env).stdout.strip()

    [queued] = goondan("calls", "--agent", "reviewer", "--status", "queued", "--json", env=env).document
    standing = goondan("result", call_id, "--json", env=env).document
    rows = {row["agent"]: row for row in goondan("queues", "--json", env=env).document}
    waited = rows["reviewer"].pop("oldestSeconds")

    assert queued == standing
    assert (queued["id"], queued["status"], queued["tool"]) == (call_id, "queued", "review__style")
    assert 0 <= waited <= time.monotonic() - began + 1  # which commands have taken, on a busy machine long
    assert rows["reviewer"] == {
        "agent": "reviewer",
        "queue": "agent.reviewer",
        "backlog": 1,
        "running": 0,
        "waitingForLimit": 0,
        "pending": 0,
        "scheduled": 0,
        "workers": 0,
        "events": 0,
        "deadLetters": 0,
        "lateAnswers": 0,
        "mailboxes": 0,
        "lost": 0,
        "lostWith": [],
        "lostSeconds": None,
        "paused": [],
    }
    assert (rows["coder"]["workers"], rows["planner"]["backlog"]) == (1, 0)


def test_agents_and_catalogs_are_known_without_bundle(stack: LocalStack, env: dict[str, str]) -> None:
    agents = {row["name"]: row for row in goondan("agents", "--json", env=env).document}
    catalog = goondan("catalog", "reviewer", "--format", "anthropic", env=env).document

    assert set(agents) == {"coder", "planner", "reviewer"}
    assert agents["coder"]["workers"] == [worker.name for worker in stack.client.workers()]
    assert catalog == build_catalog(load_bundle(EXAMPLE), "reviewer").to_anthropic()


def test_missing_worker_is_reported_off_terminal(env: dict[str, str]) -> None:
    done = goondan("call", "planner", "plan__outline", '{"task": "x"}', "--timeout", "3", env=env)

    assert done.exit_code == 4
    assert done.stderr.startswith(
        "no worker serves agent 'planner'; start one with: goondan worker --agent planner\n"
    )


def test_ctrl_c_ends_wait_and_says_where_result_appears(env: dict[str, str]) -> None:
    process = start("call", "planner", "plan__outline", '{"task": "x"}', env=env)
    assert process.stderr is not None
    first_line = process.stderr.readline()

    process.send_signal(signal.SIGINT)
    _, rest = process.communicate(timeout=PATIENCE)

    assert first_line.startswith("no worker serves agent 'planner'")
    assert rest.startswith("Stopped waiting; the call goes on. See it with: goondan result ")
    assert process.returncode == 130
    cancel = rest.splitlines()[0].partition("end it with: goondan ")[2].split()
    done = goondan(*cancel, env=env)
    assert (done.exit_code, done.stdout) == (0, "plan__outline of planner: cancelled\n")
    assert goondan("result", cancel[1], env=env).exit_code == 1


def test_on_terminal_one_line_shows_how_call_stands(env: dict[str, str]) -> None:
    terminal, theirs = pty.openpty()
    command = [*PROGRAM, "call", "coder", "bash__exec", SLEEP]
    with subprocess.Popen(
        command, env={**env, "TERM": "xterm", "COLUMNS": "200"}, stdout=theirs, stderr=theirs
    ):
        os.close(theirs)
        shown = _read_all(terminal)

    assert re.search(r"running on coder-\S+ for \d", shown)
    assert '"stdout": "done\\n"' in shown


def _read_all(terminal: int) -> str:
    """Read until the other side is closed, which Linux tells with an error."""
    data = b""
    with open(terminal, "rb", buffering=0) as stream:
        try:
            while chunk := stream.read(4096):
                data += chunk
        except OSError:
            pass
    return data.decode()


def test_reader_that_goes_away_ends_command_in_silence(env: dict[str, str]) -> None:
    process = start("catalog", "coder", "--format", "json", env=env)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()

    assert process.wait(PATIENCE) == 141
    assert process.stderr.read() == ""
    process.stderr.close()


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_closed_streams_are_no_reason_to_fail(closed: str, env: dict[str, str]) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", f'"$@" {closed}', "sh", *PROGRAM, "queues"],
        env=env,
        capture_output=True,
        timeout=PATIENCE,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, b"")


def test_names_from_outside_cannot_steer_terminal(env: dict[str, str]) -> None:
    done = goondan("call", "coder", "x\x1b[2J\x07", "{}", env=env)
    listed = goondan("calls", env=env)

    assert done.exit_code == 1
    assert "x\\x1b[2J" in done.stdout
    assert not {"\x1b", "\x07"} & {*done.stdout, *done.stderr, *listed.stdout}


def test_doctor_reports_only_missing_workers_in_private_redis(env: dict[str, str]) -> None:
    done = goondan("doctor", "--bundle", str(EXAMPLE), "--json", env=env)

    faults = {check["name"]: check["level"] for check in done.document["checks"] if check["level"] != "ok"}
    assert done.exit_code == 0
    assert done.document["healthy"] is True
    assert faults == {"workers of planner": "warning", "workers of reviewer": "warning"}


def test_doctor_ends_with_sum_and_strict_fails_on_warnings(env: dict[str, str]) -> None:
    done = goondan("doctor", "--bundle", str(EXAMPLE), env=env)
    strict = goondan("doctor", "--bundle", str(EXAMPLE), "--strict", "--json", env=env)

    levels = [line.split()[0] for line in done.stdout.splitlines()[:-1] if not line.startswith(" ")]
    assert done.stdout.splitlines()[-1] == f"{levels.count('ok')} ok, 2 warnings, 0 failures"
    assert (done.exit_code, strict.exit_code, strict.document["healthy"]) == (0, 3, False)


def test_doctor_says_how_to_mend_redis_that_evicts(stack: LocalStack, env: dict[str, str]) -> None:
    with connect(stack.redis_url) as redis:
        redis.config_set("maxmemory-policy", "allkeys-lru")
        try:
            done = goondan("doctor", env=env)
        finally:
            redis.config_set("maxmemory-policy", "noeviction")

    assert done.exit_code == 3
    assert "problem  eviction: maxmemory-policy is allkeys-lru" in done.stdout
    assert "redis-cli CONFIG SET maxmemory-policy noeviction" in done.stdout
    assert done.stdout.endswith(", 1 failure\n")
