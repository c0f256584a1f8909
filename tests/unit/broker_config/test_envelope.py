"""Messages as anybody may have written them."""

import base64
import json
import lzma
import zlib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker_config.task_message import LONGEST_BODY, TaskMessage, read_envelope

MESSAGE = TaskMessage("goondan.tool_call", "call-1", "agent.coder", b'{"call":{}}')
WRITTEN: dict[str, Any] = json.loads(MESSAGE.to_redis())


def changed(**fields: Any) -> bytes:
    return json.dumps({**WRITTEN, **fields}).encode()


def test_message_is_read_as_written_except_queue() -> None:
    message = read_envelope(MESSAGE.to_redis(), "agent.painter")
    assert (message["headers"], message["body"]) == (WRITTEN["headers"], WRITTEN["body"])
    assert message["properties"]["delivery_info"] == {"exchange": "", "routing_key": "agent.painter"}


def test_body_in_base64_is_decoded_once() -> None:
    properties = {**WRITTEN["properties"], "body_encoding": "base64"}
    message = read_envelope(changed(body="W10=", properties=properties), "agent.coder")
    assert message["body"] == b"[]"
    assert "body_encoding" not in message["properties"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"[" * 100_000, "nested too deeply"),
        (b"[]", "not an object"),
        (b"\xff", "can't decode"),
        (b'{"x": NaN}', "NaN is not a JSON number"),
        (changed(headers={"task": "\ud800", "id": "call-1"}), "name no task"),
        (changed(body=None), "has no body"),
        (changed(body=""), "has no body"),
        (changed(headers=None), "no headers"),
        (changed(properties="x"), "no properties"),
        (changed(headers={"id": "call-1"}), "name no task"),
        (changed(headers={"task": ["goondan.tool_call"]}), "name no task"),
        (changed(body=10**9), "body is not text"),
        (changed(**{"content-encoding": 8}), "content-encoding is not text"),
        (changed(**{"content-type": {}}), "content-type is not text"),
        (changed(properties={"body_encoding": "rot13"}), "encoding 'rot13'"),
        (changed(properties={"body_encoding": ["base64"]}), "encoding"),
        (changed(properties={"body_encoding": "base64"}, body="YQ"), "padding"),
        (changed(properties={"body_encoding": "base64"}, body="é"), "ASCII"),
    ],
)
def test_message_that_would_end_worker_is_refused(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_envelope(data, "agent.coder")


def compressed(body: bytes, compression: Any = "application/x-gzip") -> bytes:
    headers = {**WRITTEN["headers"], "compression": compression}
    properties = {**WRITTEN["properties"], "body_encoding": "base64"}
    return changed(headers=headers, properties=properties, body=base64.b64encode(body).decode())


#: its header asks for a dictionary of 4 GiB (the .lzma format: properties, dictionary size, length)
GREEDY = b"]" + b"\xff" * 4 + b"\xff" * 8 + lzma.compress(b"[]", format=lzma.FORMAT_ALONE)[13:]


def test_compressed_body_is_decompressed_once() -> None:
    message = read_envelope(compressed(zlib.compress(b"[]")), "agent.coder")
    assert message["body"] == b"[]"
    assert "compression" not in message["headers"]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (compressed(b"abc"), "cannot be decompressed"),
        (compressed(b"abc", "application/x-rar"), "the compression 'application/x-rar'"),
        (compressed(b"abc", ["gzip"]), "the compression"),
        (compressed(zlib.compress(b" " * (LONGEST_BODY + 1), level=1)), "more than"),
        (compressed(GREEDY, "application/x-lzma"), "cannot be decompressed: Memory usage limit"),
    ],
)
def test_undecompressible_or_endless_body_is_no_message(data: bytes, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        read_envelope(data, "agent.coder")


def test_headers_of_another_type_are_left_out() -> None:
    headers = {**WRITTEN["headers"], "shadow": 7, "eta": {}, "timelimit": "x", "retries": None, "own": [1]}
    read = read_envelope(changed(headers=headers), "agent.coder")["headers"]
    assert read == {key: value for key, value in headers.items() if key not in {"shadow", "eta", "timelimit"}}


def test_nested_half_character_raises_only_value_error() -> None:
    for depth in range(1, 1_500):
        deep = '["\\uD800",' + "[" * depth + "]" * depth + "]"
        data = MESSAGE.to_redis().replace(b'"headers":{', b'"headers":{"own":%b,' % deep.encode(), 1)
        try:
            assert "own" not in read_envelope(data, "agent.coder")["headers"]
        except ValueError as error:
            assert "nested too deeply" in str(error)


def test_only_headers_with_half_character_are_dropped() -> None:
    headers = {**WRITTEN["headers"], "kwargsrepr": "\ud800", "shadow": "\U0001f600"}
    read = read_envelope(changed(headers=headers), "agent.coder")["headers"]
    assert "kwargsrepr" not in read
    assert read["shadow"] == headers["shadow"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def some_of(*names: str) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(names), JSON)


MESSAGES = st.fixed_dictionaries(
    {},
    optional={
        "headers": JSON | some_of(*WRITTEN["headers"], "compression"),
        "properties": JSON
        | st.dictionaries(st.sampled_from([*WRITTEN["properties"], "body_encoding"]), JSON),
        "body": JSON,
        "content-type": JSON,
        "content-encoding": JSON,
    },
)


@given(
    st.binary() | MESSAGES.map(lambda fields: changed(**fields)) | JSON.map(lambda x: json.dumps(x).encode())
)
def test_any_data_is_sendable_message_or_value_error(data: bytes) -> None:
    try:
        message = read_envelope(data, "agent.coder")
    except ValueError:
        return
    assert isinstance(message["headers"]["task"], str)
    assert message["body"]
    assert message["properties"]["delivery_info"]["routing_key"] == "agent.coder"
    json.dumps([message["headers"], message["properties"]], allow_nan=False, ensure_ascii=False).encode()
