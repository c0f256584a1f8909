"""W3C's tracestate and baggage: what is passed on with a call, and what is left out."""

from typing import Any

import pytest
from opentelemetry import baggage, context, trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags, TraceState

from goondan_tasks.contract.calls import call_message, new_call
from goondan_tasks.contract.messages import ToolCall
from goondan_tasks.contract.names import current_context
from goondan_tasks.contract.trace_context import LONGEST, MOST_MEMBERS, sound_context
from goondan_tasks.ledger.submission import call_json

SENT = {"tracestate": "congo=t61rcWkgMzE,fw529a3039@dt=FfAl0", "baggage": "user=ann%20b,plan = pro;ttl=1"}


def test_call_and_message_keep_tracestate_and_baggage() -> None:
    call = new_call("coder", "bash__exec", {}, {"trace_context": SENT})

    assert ToolCall.from_wire(call.to_wire()).trace_context == SENT
    headers = call_message("id", call, call_json(call, b"{}")).headers
    assert {name: headers[name] for name in SENT} == SENT


def test_call_without_them_has_neither_field_nor_headers() -> None:
    call = new_call("coder", "bash__exec", {}, {})

    assert "traceContext" not in call.to_wire()
    assert not set(SENT) & set(call_message("id", call, call_json(call, b"{}")).headers)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tracestate", "a=1\r\nX-Evil: 1"),
        ("tracestate", "no-value"),
        ("tracestate", "UPPER=1"),
        ("tracestate", "a=é"),
        ("tracestate", "a=1,,b=2"),
        ("tracestate", f"a={'x' * LONGEST['tracestate']}"),
        ("tracestate", ",".join(f"a{n}=1" for n in range(MOST_MEMBERS["tracestate"] + 1))),
        ("baggage", "a"),
        ("baggage", "=1"),
        ("baggage", 'a="quoted"'),
        ("baggage", "a=1\x00"),
        ("baggage", "a" * 5_000 + " " * 3_000),
        ("baggage", f"a={'x' * LONGEST['baggage']}"),
        ("baggage", ",".join(f"a{n}=1" for n in range(MOST_MEMBERS["baggage"] + 1))),
        ("baggage", 7),
    ],
)
def test_unusable_tracestate_or_baggage_is_dropped_alone(name: str, text: Any) -> None:
    kept = {other: value for other, value in SENT.items() if other != name}

    assert sound_context({**SENT, name: text}) == kept
    assert new_call("coder", "a__b", {}, {"trace_context": {name: text}}).trace_context is None


@pytest.mark.parametrize("given", [None, "a=1", [], {}, {"other": "a=1"}])
def test_malformed_trace_context_is_none(given: Any) -> None:
    assert sound_context(given) is None


def test_context_of_current_span_is_taken() -> None:
    state = TraceState([("vendor", "1")])
    span = NonRecordingSpan(SpanContext(1, 2, is_remote=False, trace_flags=TraceFlags(1), trace_state=state))
    token = context.attach(baggage.set_baggage("user", "ann", trace.set_span_in_context(span)))
    try:
        found = current_context()
    finally:
        context.detach(token)

    assert found == {"tracestate": "vendor=1", "baggage": "user=ann"}
    assert current_context() is None
