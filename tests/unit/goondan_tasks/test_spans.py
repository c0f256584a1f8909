"""The span that a call belongs to, on the wire."""

import pytest

from goondan_tasks.spans import SpanIds, read_traceparent, write_traceparent

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_what_is_written_can_be_read() -> None:
    header = write_traceparent(TRACE, SPAN)

    assert header == f"00-{TRACE}-{SPAN}-01"
    assert read_traceparent(header) == SpanIds(TRACE, SPAN)


@pytest.mark.parametrize(
    ("trace_id", "span_id"),
    [("trace-1", SPAN), (TRACE.upper(), SPAN), (TRACE, ""), (f"{TRACE}\r\nX: y", SPAN)],
)
def test_ids_of_another_form_make_no_header(trace_id: str, span_id: str) -> None:
    assert write_traceparent(trace_id, span_id) is None


@pytest.mark.parametrize(
    "header", [f"00-{TRACE}-{SPAN}-00", f"cc-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-next"]
)
def test_flags_and_later_versions_do_not_matter(header: str) -> None:
    assert read_traceparent(header) == SpanIds(TRACE, SPAN)


@pytest.mark.parametrize(
    "header",
    [
        None,
        5,
        [f"00-{TRACE}-{SPAN}-01"],
        "",
        "garbage",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-more",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f" 00-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01\n",
        f"00-{TRACE[:-1]}٣-{SPAN}-01",
    ],
    ids=repr,
)
def test_a_malformed_header_is_as_good_as_none(header: object) -> None:
    assert read_traceparent(header) is None
