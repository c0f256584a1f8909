"""Tools in JavaScript whose host dies, blocks, floods or is vandalised, and what their calls get."""

import contextlib
import http.server
import os
import random
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.contract.messages import ToolCallError, ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.faults.conftest import Say
from tests.faults.handler_log import HandlerLog
from tests.faults.sizes import HOST_KILLS, HostKills
from tests.javascript_runtimes import NAMES, runtime
from tests.processes import with_environment
from tests.waiting import wait_until

pytestmark = pytest.mark.faults

UNRULY_JAVASCRIPT_BUNDLE = Path(__file__).parent.parent / "bundles" / "unruly-javascript"
AGENT = "stoker"
PATIENCE = 60
#: in the environment of the workers, and of nobody else
CANARY = "CANARY_OF_THE_WORKER"

Call = Callable[..., ToolCallResult]


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return runtime(request.param).name


@pytest.fixture(scope="module")
def javascript_stack(name: str) -> Iterator[LocalStack]:
    environment = {
        "GOONDAN_JAVASCRIPT": name,
        "GOONDAN_MAX_OUTPUT_BYTES": "20000000",
        "GOONDAN_GRACE_SECONDS": "30",
        CANARY: "sings",
    }
    with LocalStack(UNRULY_JAVASCRIPT_BUNDLE, environment=environment, concurrency=16) as stack:
        yield stack


@pytest.fixture
def call(javascript_stack: LocalStack) -> Call:
    """Call a tool; afterwards the worker is the same, and its hosts are at work."""
    return lambda tool, **args: javascript_stack.client.call(AGENT, tool, args, timeout=PATIENCE)


def error_of(result: ToolCallResult) -> ToolCallError:
    assert result.error is not None, result
    return result.error


def code(result: ToolCallResult) -> str:
    return "ok" if result.error is None else result.error.code


def ended_of(answers: Sequence[Future[Any]]) -> int:
    return sum(answer.done() for answer in answers)


def has_ended(answers: Sequence[Future[Any]], wanted: int) -> bool:
    return ended_of(answers) >= wanted


def is_over(pid: int) -> bool:
    return not Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize("size", HOST_KILLS)
def test_calls_survive_kill_of_one_host_after_another(
    javascript_stack: LocalStack, call: Call, log: HandlerLog, say: Say, size: HostKills
) -> None:
    chance = random.Random(1)
    seconds = [chance.uniform(0, 0.1) for _ in range(size.calls)]

    def one(number: int) -> tuple[int, str, ToolCallResult]:
        tool = chance.choice(["plain__note", "plain__again"])
        return number, tool, call(tool, file=str(log.path), number=number, seconds=seconds[number])

    kills = 0
    with ThreadPoolExecutor(12) as crowd:
        answers = [crowd.submit(one, number) for number in range(size.calls)]
        for _ in range(size.kills):
            pid = call("plain__pid")
            if pid.error is None:
                os.kill(pid.output, signal.SIGKILL)
                kills += 1
            wanted = min(ended_of(answers) + size.calls // size.kills, size.calls)
            wait_until(partial(has_ended, answers, wanted))
        ended = [answer.result() for answer in answers]

    runs = log.runs()
    codes = Counter(f"{tool} {code(result)}" for _, tool, result in ended)
    say([f"{kills} hosts killed: {dict(codes)}"])
    assert kills >= size.kills / 2  # the others found it dead
    wait_until(lambda: call("plain__pid").error is None)
    for number, tool, result in ended:
        of_call = runs.get(number, [])
        if tool == "plain__note":
            assert len(of_call) <= 1
            assert code(result) in {"ok", "E_TOOL_CRASHED", "E_TOOL_OUTCOME_UNKNOWN"}
        else:
            assert code(result) in {"ok", "E_TOOL_CRASHED"}
        if result.error is None:
            assert any(run.pid == result.output["pid"] and run.ended_at for run in of_call)


def test_blocked_event_loop_ends_own_call_and_moves_others(
    javascript_stack: LocalStack, call: Call, log: HandlerLog
) -> None:
    beside = [
        javascript_stack.client.submit(AGENT, tool, {"file": str(log.path), "number": number, "seconds": 1})
        for number, tool in enumerate(["plain__again", "plain__note"])
    ]
    wait_until(lambda: len(log.runs()) == 2)
    blocked = javascript_stack.client.submit(AGENT, "plain__blocks", {})
    assert error_of(blocked.result(timeout=PATIENCE)).code == "E_TOOL_TIMEOUT"
    late = call("plain__echo", n=1)

    again, noted = (one.result(timeout=PATIENCE) for one in beside)
    assert late.output == {"n": 1}
    assert again.status == "ok"
    assert len(log.runs_of(0)) == 2
    assert error_of(noted).code in {"E_TOOL_OUTCOME_UNKNOWN", "E_TOOL_CRASHED"}
    assert len(log.runs_of(1)) == 1


@pytest.mark.parametrize("tool", ["plain__exits", "apart__exits"])
def test_handler_that_ends_its_process_ends_its_call(call: Call, tool: str) -> None:
    error = error_of(call(tool))
    assert (error.code, error.message) == ("E_TOOL_CRASHED", "The tool's process ended with exit status 7.")
    assert call("plain__echo", n=1).output == {"n": 1}


def test_handler_without_memory_ends_its_call(name: str, call: Call) -> None:
    if name == "bun":
        pytest.skip("Bun has no limit of memory")
    error = error_of(call("apart__eats"))
    assert error.code == "E_TOOL_CRASHED"
    assert "(its memoryMb is 64)" in error.message
    assert isinstance(call("apart__pid").output, int)


def test_unhandled_rejection_fails_call_or_is_logged(
    javascript_stack: LocalStack, call: Call, log: HandlerLog
) -> None:
    error = error_of(call("plain__rejects"))
    assert (error.code, error.message) == ("E_TOOL", "nobody waits")

    others = [
        javascript_stack.client.submit(
            AGENT, "plain__note", {"file": str(log.path), "number": n, "seconds": 0.5}
        )
        for n in range(2)
    ]
    wait_until(lambda: len(log.runs()) == 2)
    assert call("plain__rejects-later").output == "done"
    assert [other.result(timeout=PATIENCE).status for other in others] == ["ok", "ok"]
    assert "nobody waits any more" in javascript_stack.log(javascript_stack.workers[0])


def test_endless_output_neither_stops_worker_nor_fills_host(call: Call) -> None:
    late = call("plain__floods", seconds=4)

    assert error_of(late).code == "E_TOOL_TIMEOUT"
    pid = call("plain__pid").output
    pages = int(Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()[1])
    assert pages * os.sysconf("SC_PAGE_SIZE") < 400_000_000


def test_result_of_ten_megabytes_arrives(call: Call) -> None:
    assert call("plain__big", bytes=10_000_000).output == "x" * 10_000_000


class Pages(http.server.BaseHTTPRequestHandler):
    """Answers never, and notes when the client has gone."""

    begun = threading.Event()
    gone = threading.Event()

    def do_GET(self) -> None:
        self.begun.set()
        with contextlib.suppress(ConnectionResetError):
            self.connection.recv(1)
        self.gone.set()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.mark.parametrize("signal_given", [True, False])
def test_cancelled_call_closes_its_fetches(javascript_stack: LocalStack, signal_given: bool) -> None:
    Pages.begun.clear()
    Pages.gone.clear()
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/"
        begun = javascript_stack.client.submit(AGENT, "plain__fetches", {"url": url, "signal": signal_given})
        assert Pages.begun.wait(PATIENCE)
        javascript_stack.client.cancel(begun.id)
        assert error_of(begun.result(timeout=PATIENCE)).code == "E_TOOL_CANCELLED"
        assert Pages.gone.wait(PATIENCE)
        server.shutdown()


JSON_OF = {
    "undefined": None,
    "date": "1970-01-01T00:00:00.000Z",
    "nothing": None,
    "surrogate": "a\ufffdb",
    "surrogate_key": {"\ufffd": 1},
}
NOT_JSON = ["cycle", "bigint", "function", "symbol", "deep", "getter", "nan", "fields", "map"]


def test_results_become_json_or_error(call: Call) -> None:
    results = {kind: call("plain__returns", kind=kind) for kind in JSON_OF}
    assert {kind: result.output for kind, result in results.items()} == JSON_OF
    assert {result.status for result in results.values()} == {"ok"}
    for kind in NOT_JSON:
        error = error_of(call("plain__returns", kind=kind))
        assert error.code == "E_TOOL_BAD_OUTPUT", kind
        assert error.message.startswith("What the handler returns is not JSON: "), kind


THROWN = {
    "null": "null",
    "undefined": "undefined",
    "string": "a string",
    "symbol": "Symbol(s)",
    "number": "5",
    "getters": "{ message: [Getter] }",
    "proxy": "{}",
    "no_text": "[Object: null prototype] { code: 5 }",
    "odd": "odd",
    "cause": "outer",
}


def test_any_thrown_value_is_error_of_call(call: Call) -> None:
    for kind, message in THROWN.items():
        error = error_of(call("plain__throws", kind=kind))
        assert (error.code, error.message) == ("E_TOOL", message), kind
    huge = error_of(call("plain__throws", kind="huge"))
    own = error_of(call("plain__throws", kind="own"))

    assert len(huge.message) == 1000
    assert (own.code, own.name, own.message) == ("E_MINE", "TypeError", "mine")
    assert (own.suggestion, own.help_url) == ("Do it.", "https://a.example")


ACTS = ["console", "log", "cwd", "stringify", "parse", "promise", "timers", "map", "exit", "listeners"]


@pytest.mark.parametrize("act", [*ACTS, "close", "garbage", "half", "forged"])
def test_code_disturbing_host_ends_at_most_own_call(call: Call, act: str) -> None:
    broken = call("vandal__breaks", act=act)
    after = call("vandal__works")

    assert code(broken) in {"ok", "E_TOOL", "E_TOOL_CRASHED", "E_TOOL_TIMEOUT", "E_TOOL_OUTCOME_UNKNOWN"}
    assert after.output == "works", after


def test_changed_object_prototype_does_not_change_messages(call: Call) -> None:
    assert call("vandal__breaks", act="inherited").output == "inherited"
    assert error_of(call("plain__throws", kind="string")).message == "a string"
    assert (
        error_of(call("plain__returns", kind="fields")).message
        == "What the handler returns is not JSON: nothing."
    )
    call("plain__exits")


def test_context_refuses_non_json_and_late_use(call: Call) -> None:
    assert "BigInt" in error_of(call("vandal__keeps")).message
    late = error_of(call("vandal__uses-kept"))
    assert (late.code, late.message) == ("E_TOOL", "The call has ended: its context cannot be used any more.")


def test_host_has_none_of_workers_environment(javascript_stack: LocalStack, call: Call) -> None:
    environment = call("plain__environment").output
    pid = call("plain__pid").output

    assert "PATH" in environment
    assert not [variable for variable in environment if variable.startswith(("CANARY", "GOONDAN"))]
    assert pid not in with_environment(f"{CANARY}=sings")
    assert javascript_stack.workers[0].pid in with_environment(f"{CANARY}=sings")


def test_worker_that_drains_lets_hosts_finish(
    javascript_stack: LocalStack, call: Call, log: HandlerLog
) -> None:
    worker = javascript_stack.workers[0]
    hosts = [call("plain__pid").output, call("apart__pid").output]
    begun = javascript_stack.client.submit(
        AGENT, "plain__note", {"file": str(log.path), "number": 1, "seconds": 1}
    )
    wait_until(log.runs)
    javascript_stack.start_worker()
    worker.terminate()

    assert begun.result(timeout=PATIENCE).status == "ok"
    assert worker.wait(PATIENCE) == 0
    wait_until(lambda: all(map(is_over, hosts)))


def test_worker_that_is_killed_leaves_no_host(javascript_stack: LocalStack, call: Call) -> None:
    worker = javascript_stack.start_worker()
    for other in javascript_stack.workers:
        if other.pid != worker.pid and other.poll() is None:
            javascript_stack.stop_worker(other)
    hosts = [call("plain__pid").output, call("apart__pid").output]
    worker.kill()
    worker.wait()

    wait_until(lambda: all(map(is_over, hosts)))
    javascript_stack.start_worker()
    assert call("plain__echo", n=1).output == {"n": 1}
