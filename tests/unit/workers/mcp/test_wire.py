"""Which lines are answers, whatever else is wrong with them."""

import sys

import pytest
from mcp_types import JSONRPCError, JSONRPCResponse

from workers.mcp.wire import END_BYTES, read_message

DEEP = "[" * 300 + "]" * 300
FAR = f'"far": "{"x" * END_BYTES}"'


def answered(line: str) -> int | str | None:
    """Return the id of the call that an unreadable line answers, if it does."""
    message = read_message(line.encode())
    assert message is None or isinstance(message, JSONRPCError)
    return None if message is None else message.id


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (f'{{"jsonrpc":"2.0","id":3,"result":{DEEP}}}', 3),
        (f'{{"jsonrpc":"2.0","result":{{"id":7,"x":{DEEP}}},"id":"a\\u0062"}}', "ab"),
        (f' {{ "error" : "\\"}}{{", "x": {DEEP}, "id" : 3 }}', 3),
        ('{"jsonrpc":"2.0","id":3,"result":[]}', 3),
        ('{"jsonrpc":"2.0","id":3,"result":{"a":', 3),
        (f'{{"result":{DEEP},"error":null,"jsonrpc":"2.0","id":3}}\r\n', 3),
        (f'{{"error":null,"id":3,"result":{DEEP}}}', 3),
        (f'{{"id":3,"result":{DEEP},{FAR}}}', 3),
        (f'{{{FAR},"result":{DEEP},"id":3}}', None),
        (f'{{"result":{DEEP},"id":3,{FAR}}}', None),
        ('{"id":3,"result":[' + "1," * 10_000, 3),
        ('{"id":3,"result":{"x":1,"id":7}', 3),
        (f'{{"id":1e3,"result":{DEEP}}}', None),
        (f'{{"id":03,"result":{DEEP}}}', None),
        ('{"id":3}', None),
        ('{"id":null,"result":[]}', None),
        ('{"id":true,"result":[]}', None),
        ('{"id":{"id":3},"result":[]}', None),
        ('{"params":{"id":3,"result":1}}', None),
        ('["id",3,"result",1]', None),
        ("warming up: 3", None),
        ("", None),
        ('{"' + '\\"' * 2_000_000, None),
    ],
)
def test_an_answer_is_an_object_with_an_id_and_a_result_or_an_error(
    line: str, number: int | str | None
) -> None:
    assert answered(line) == number


def test_a_message_that_can_be_read_is_that_message() -> None:
    line = b'{"jsonrpc":"2.0","id":"3","result":{"content":[]}}\n'

    assert read_message(line) == JSONRPCResponse(jsonrpc="2.0", id="3", result={"content": []})


@pytest.mark.parametrize("rest", ["[" * 200_000, "0," + "11," * 70_000, "[]" * 100_000])
def test_the_work_for_an_unreadable_answer_does_not_grow_with_its_length(rest: str) -> None:
    line = f'{{"jsonrpc":"2.0","id":3,"result":{rest}\n'.encode()
    steps: list[str] = []
    sys.setprofile(lambda _frame, event, _argument: steps.append(event))
    try:
        message = read_message(line)
    finally:
        sys.setprofile(None)

    assert isinstance(message, JSONRPCError) and message.id == 3
    assert len(steps) < 1000
