import json

from benchmarks.call import noop_calls


def test_a_call_has_the_size_that_was_asked_for() -> None:
    sizes = {len(json.dumps(call.wire(), separators=(",", ":"))) for call in noop_calls(9, ["q"], 200)}

    assert sizes == {200}


def test_no_two_calls_have_the_same_id() -> None:
    ids = {call.id for _ in range(2) for call in noop_calls(100, ["q"])}

    assert len(ids) == 200


def test_calls_are_dealt_out_to_the_queues() -> None:
    assert [call.queue for call in noop_calls(5, ["a", "b"])] == ["a", "b", "a", "b", "a"]
