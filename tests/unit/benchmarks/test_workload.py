import json

from benchmarks.workload import noop_calls, sleep_calls


def test_call_has_requested_size() -> None:
    sizes = {len(json.dumps(call.wire(), separators=(",", ":"))) for call in noop_calls(9, ["q"], 200)}

    assert sizes == {200}


def test_no_two_calls_have_same_id() -> None:
    ids = {call.id for _ in range(2) for call in noop_calls(100, ["q"])}

    assert len(ids) == 200


def test_calls_are_dealt_out_to_queues() -> None:
    assert [call.queue for call in noop_calls(5, ["a", "b"])] == ["a", "b", "a", "b", "a"]


def test_sleeping_calls_each_have_their_own_time() -> None:
    calls = sleep_calls([0.5, 1.0], "q")

    assert [call.args for call in calls] == [{"seconds": 0.5}, {"seconds": 1.0}]
    assert {call.name for call in calls} == {"sleep"}
