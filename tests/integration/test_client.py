"""The client on a real Redis without workers."""

import gc
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from broker_config.embedded import EmbeddedRedis
from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.client import Client, PendingCall
from goondan_tasks.contract.errors import CallNotFoundError, ConfigError
from tests.waiting import wait_until

CALLS_BUNDLE = Path(__file__).parent.parent / "bundles" / "calls"


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    with (
        EmbeddedRedis() as server,
        Client(Settings(redis_url=server.url), load_bundle(CALLS_BUNDLE)) as client,
    ):
        yield client


@pytest.mark.parametrize("call_id", ["\ud800", "x" * 201, "", "\0", "한" * 100])
def test_malformed_call_id_is_not_found(client: Client, call_id: str) -> None:
    with pytest.raises(CallNotFoundError):
        client.pending(call_id)
    with pytest.raises(CallNotFoundError):
        client.record(call_id)


def test_misspelt_field_is_refused_as_python_does(client: Client) -> None:
    fields = cast(Any, {"instanse_key": "issue-42"})
    with pytest.raises(TypeError, match="unexpected keyword argument 'instanse_key'; did you mean"):
        client.submit("smith", "echo__args", **fields)


def test_misspelt_field_of_event_is_refused_too(client: Client) -> None:
    fields = cast(Any, {"instance": "issue-42"})  # else the event would go to another instance
    for ask in (client.request, client.send):
        with pytest.raises(TypeError, match="unexpected keyword argument 'instance'; did you mean"):
            ask("smith", "hello", **fields)


@pytest.mark.parametrize("calls", [{"agentName": "smith"}, "smith", [None]])
def test_value_other_than_call_list_is_refused(client: Client, calls: Any) -> None:
    with pytest.raises(TypeError, match="takes a list of ToolCalls or dicts"):
        client.submit_many(calls)


def test_url_with_unusable_options_is_wrong_configuration() -> None:
    with pytest.raises(ConfigError, match="cannot be used"):
        Client.connect("redis://127.0.0.1:1/0?socket_timeout=soon")


def test_call_past_its_deadline_gets_result_without_workers(client: Client) -> None:
    late = {"agentName": "smith", "toolName": "echo__args", "deadline": "2020-01-01T00:00:00Z"}
    [call] = client.submit_many([late])
    result = call.result(30)
    assert result.error is not None
    assert result.error.code == "E_TOOL_EXPIRED"
    assert call.status() == "done"


def test_call_with_unreadable_record_ends_wait_with_error(client: Client) -> None:
    call = client.submit("smith", "echo__args", turn_id="unreadable")
    client._redis.hset(f"goondan:call:{call.id}", "call", b'{"v":2}')
    with pytest.raises(CallNotFoundError, match="cannot read"):
        call.result(30)
    assert call.id not in [record.id for record in client.calls()]


#: a program that listens to results, forks, and listens on
_FORK = """
import os, sys
from broker_config import serializer
from broker_config.connections import connect
from broker_config.keys import Keys
from goondan_tasks.client.results import ResultListener
from tests.unit.goondan_tasks.client.test_pending_call import a_result

redis, keys = connect(sys.argv[1]), Keys()
listener = ResultListener(redis, keys, lambda _: None)
listener.start()
before = listener.producer
with listener._lock:  # as the listener's thread holds it while it hands a result over
    child = os.fork()
listener.start()
assert (listener.producer == before) == (child != 0)
[expected] = listener.expect(["id-1"])
wire = serializer.encode(a_result("ok").to_wire())
redis.publish(keys.results(listener.producer), b"id-1 " + wire)
listener.wait(expected, 20)
assert expected.result().status == "ok"
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


#: a program whose child closes what it has inherited
_CLOSING_CHILD = """
import os, sys
from broker_config import serializer
from broker_config.connections import connect
from broker_config.keys import Keys
from goondan_tasks.client.results import ResultListener
from tests.unit.goondan_tasks.client.test_pending_call import a_result

redis, keys = connect(sys.argv[1]), Keys()
listener = ResultListener(redis, keys, lambda _: None)
listener.start()
child = os.fork()
if not child:
    listener.close()
    redis.close()
    os._exit(0)
os.waitpid(child, 0)
[expected] = listener.expect(["id-1"])
wire = serializer.encode(a_result("ok").to_wire())
redis.publish(keys.results(listener.producer), b"id-1 " + wire)
listener.wait(expected, 20)
assert expected.result().status == "ok"
"""


@pytest.mark.parametrize("program", [_FORK, _CLOSING_CHILD])
def test_both_sides_of_fork_hear_of_their_results(program: str) -> None:
    with EmbeddedRedis() as server:
        command = [sys.executable, "-W", "ignore", "-c", program, server.url]
        ended = subprocess.run(command, timeout=60, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_unclosed_dropped_client_leaves_no_thread() -> None:
    with EmbeddedRedis() as server:
        settings, bundle = Settings(redis_url=server.url), load_bundle(CALLS_BUNDLE)

        def submitted() -> tuple[PendingCall, threading.Thread]:
            dropped = Client(settings, bundle)
            call, thread = dropped.submit("smith", "echo__args"), dropped._calls.listener._thread
            assert thread is not None
            return call, thread

        call, thread = submitted()
        gc.collect()
        assert thread.is_alive()  # for the handle of the call
        with Client(settings, bundle) as other:
            other.cancel(call.id)
        error = call.result(30).error
        assert error is not None
        assert error.code == "E_TOOL_CANCELLED"

        del call
        gc.collect()
        wait_until(lambda: not thread.is_alive(), 30)
