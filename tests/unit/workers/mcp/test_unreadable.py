"""Which lines are answers, whatever else is wrong with them."""

import pytest
from mcp_types import jsonrpc_message_adapter

from workers.mcp.unreadable import error_for

DEEP = "[" * 300 + "]" * 300


def answered(line: str) -> int | str | None:
    """Return the id of the call that a line answers, if it does."""
    try:
        jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as fault:
        error = error_for(line.encode(), fault)
        return None if error is None else error.id
    raise AssertionError("it can be read")


@pytest.mark.parametrize(
    ("line", "number"),
    [
        (f'{{"jsonrpc":"2.0","id":3,"result":{DEEP}}}', 3),
        (f'{{"jsonrpc":"2.0","result":{{"id":7,"x":{DEEP}}},"id":"a\\u0062"}}', "ab"),
        (f' {{ "error" : "\\"}}{{", "x": {DEEP}, "id" : 3 }}', 3),
        ('{"jsonrpc":"2.0","id":3,"result":[]}', 3),
        ('{"jsonrpc":"2.0","id":3,"result":{"a":', 3),
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
