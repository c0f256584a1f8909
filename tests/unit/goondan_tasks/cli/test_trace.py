"""goondan trace."""

import re
from typing import Any

import pytest

from goondan_tasks.cli.output import local_time
from goondan_tasks.cli.trace import trace_text
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.history.trace import Trace, TraceError, TraceNode, TraceSummary, build_trace
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, FakeClient, record
from tests.unit.goondan_tasks.cli.invoke import goondan
from tests.unit.goondan_tasks.history.trace_nodes import TEN, node

CHAIN = [node("a"), node("b", "a", at=1), node("c", "b", at=2), node("d", "a", at=3)]


@pytest.fixture(autouse=True)
def _one_trace(client: FakeClient) -> None:
    client.known_traces = {name: build_trace("order-7", CHAIN) for name in ("order-7", CALL_ID)}


def test_people_get_tree() -> None:
    outcome = goondan("trace", "order-7")

    headline, _, *rows = outcome.stdout.splitlines()
    assert (outcome.exit_code, headline) == (0, "order-7 · calls 4 · 4 ok")
    assert [row.split("  ")[0] for row in rows[:4]] == [
        "coder@issue-42 bash__exec",
        "├─ bash__exec",
        "│",
        "└─ bash__exec",
    ]


def test_programs_get_all_calls_in_order_of_tree() -> None:
    document = goondan("trace", "order-7", "--json", "--limit", "1").document

    assert document["correlationId"] == "order-7"
    assert [(row["id"], row["depth"], row.get("parentId")) for row in document["nodes"]] == [
        ("a", 0, None),
        ("b", 1, "a"),
        ("c", 2, "b"),
        ("d", 1, "a"),
    ]


@pytest.mark.parametrize("name", [CALL_ID, CALL_ID[:8]])
def test_call_id_or_prefix_finds_its_trace(client: FakeClient, name: str) -> None:
    client.records = [record()]

    assert goondan("trace", name, "--json").document["correlationId"] == "order-7"


def test_limit_cuts_tree_for_people() -> None:
    assert "… and 2 more" in goondan("trace", "order-7", "--limit", "2").stdout


def test_unknown_name_ends_with_two() -> None:
    outcome = goondan("trace", "order-8", "--json")

    assert (outcome.exit_code, outcome.document["error"]["code"]) == (2, "E_CALL_NOT_FOUND")


def test_beginning_of_several_ids_is_usage_error(client: FakeClient) -> None:
    client.records = [record(id=f"{CALL_ID[:8]}-{number}") for number in range(2)]

    assert goondan("trace", CALL_ID[:8]).exit_code == 2


@pytest.mark.parametrize("options", [("--limit", "0"), ("--watch=0",), ("--watch", "5")])
def test_misused_trace_options_are_usage_error(options: tuple[str, ...]) -> None:
    assert goondan("trace", "order-7", *options).exit_code == 2


def test_watching_looks_again_until_ctrl_c(client: FakeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    names: list[str] = []

    def look(name: str) -> Trace:
        names.append(name)
        if len(names) == 4:
            raise KeyboardInterrupt
        return build_trace("order-7", CHAIN)

    monkeypatch.setattr(client, "trace", look)

    assert goondan("trace", "--watch=0.1", "order-7").exit_code == 0
    assert names == ["order-7"] * 4


UNSTARTED = {"worker": None, "started_at": None, "finished_at": None, "running_seconds": None}
TOO_SLOW = TraceError(
    code="E_TOOL_TIMEOUT", message="The tool did not finish within 2 s, which is its limit now."
)

CHAIN_NODES = [
    node(
        "11111111-a",
        agent="planner",
        kind="request",
        event_type="user.input",
        state="running",
        worker="planner-70@host",
        running_seconds=12.3,
    ),
    node("22222222-b", "11111111-a", at=0.5, agent="planner", tool="plan__outline", worker="planner-70@host"),
    node("33333333-c", "11111111-a", at=1, kind="request", event_type="agent.request", running_seconds=9.1),
    node("44444444-d", "33333333-c", at=1.5, state="error", error=TOO_SLOW, attempt=2, running_seconds=2.001),
    node("55555555-e", "33333333-c", at=4.5, tool="python-project__run-tests-in-a-container"),
    node(
        "66666666-f",
        "33333333-c",
        at=5,
        agent="reviewer",
        kind="request",
        state="waiting",
        waiting_for="max-concurrency",
        waiting_seconds=83,
        **UNSTARTED,
    ),
    node("77777777-f", "gone", at=6, agent="reviewer", kind="answer", replay_of="old"),
]

AT_80 = """\
order-7 · calls 3, handoffs 4 · 4 ok · 1 error · 1 running · 1 waiting
                                        state     waited      ran  on   id
planner@issue-42 request user.input     running   100 ms   12.3 s  w1   11111111
├─ plan__outline                        ok        100 ms   250 ms  w1   22222222
└─ coder@issue-42 request               ok        100 ms    9.1 s  w2   33333333
   ├─ bash__exec                        error     100 ms    2.0 s  w2   44444444
   │     E_TOOL_TIMEOUT: The tool did not finish within 2 s, which is its limit…
   │     attempt 2
   ├─ python-project__run-tests-in-a-container
   │                                    ok        100 ms   250 ms  w2   55555555
   └─ reviewer@issue-42 request         waiting   83.0 s                66666666
         waits for max-concurrency
reviewer@issue-42 answer                ok        100 ms   250 ms  w2   77777777
   replays old · caused by gone, which is unknown or has expired
2 more have expired
w1 is planner-70@host
w2 is coder-71@host"""

AT_100 = """\
                                      state     waited      ran  on   id
a@issue-42 bash__exec                 ok          0 ms    8.0 s  w1   a         ████████████████
b@issue-42 bash__exec                 running    4.0 s    4.0 s  w1   b             ········████████
c@issue-42 bash__exec                 queued     2.0 s                c                         ····"""


THOUGHT = """\
order-7 · calls 3, handoffs 1 · 4 ok · tokens 13.0k→1.1k
                           state     waited      ran  on   id           tokens
helper@issue-42 request    ok        100 ms   250 ms  w1   a        13.0k→1.1k
├─ model large             ok        100 ms   250 ms  w1   b        12.1k→1.0k
├─ bash__exec              ok        100 ms   250 ms  w1   c
└─ model large             ok        100 ms   250 ms  w1   d            999→51
w1 is coder-71@host"""


def lines(trace: Trace, width: int = 80, limit: int = 200) -> list[str]:
    return trace_text(trace, width=width, limit=limit).plain.splitlines()


def test_trace_on_eighty_columns() -> None:
    trace = build_trace("order-7", CHAIN_NODES, expired=2)

    assert "\n".join(lines(trace)) == AT_80


def test_thinking_turn_shows_its_tokens_and_each_requests() -> None:
    asked: dict[str, Any] = {"agent": "helper", "tool": "goondan__model-large"}
    turn = [
        node("a", agent="helper", kind="request", usage={"input": 13_049, "output": 1_051}),
        node("b", "a", **asked, usage={"input": 12_050, "output": 1_000, "cached": 7, "reasoning": 9}),
        node("c", "a", agent="helper", at=1),
        node("d", "a", at=2, **asked, usage={"input": 999, "output": 51}),
    ]

    assert "\n".join(lines(build_trace("order-7", turn))) == THOUGHT


def test_wide_screen_has_room_for_timeline() -> None:
    calls = [
        node("a", agent="a", waiting_seconds=0, running_seconds=8),
        node("b", agent="b", at=2, waiting_seconds=4, running_seconds=4, state="running"),
        node("c", agent="c", at=8, waiting_seconds=2, state="queued", **UNSTARTED),
    ]

    _, *drawn, _ = lines(build_trace("c-1", calls), width=100)

    assert "\n".join(drawn) == AT_100


def test_every_state_has_colour_of_its_own() -> None:
    states = ("ok", "error", "dead", "running", "queued")
    text = trace_text(build_trace("c-1", [node(one, state=one) for one in states]), width=80, limit=9)

    styles = {text.plain[span.start : span.end]: str(span.style) for span in text.spans}

    assert {one: styles[one] for one in states} == {
        "ok": "green",
        "error": "red",
        "dead": "bold red",
        "running": "cyan",
        "queued": "dim",
    }


def test_only_secondary_parts_of_trace_are_dim() -> None:
    text = trace_text(build_trace("c-1", [node("a"), node("b", "a", at=1)]), width=80, limit=9)

    styled = {text.plain[span.start : span.end].strip(): str(span.style) for span in text.spans}

    assert styled == {
        "c-1": "bold",
        "2 ok": "green",
        "ok": "green",
        "└─": "dim",
        "w1 is coder-71@host": "dim",
    }


def test_calls_beyond_limit_are_counted() -> None:
    calls = [node("a"), *(node(f"b{number}", "a", at=number) for number in range(10_000))]

    *_, last, more, _ = lines(build_trace("c-1", calls), limit=201)

    assert last.startswith("├─ bash__exec")
    assert more == "… and 9,800 more; see them with --limit, or all with --json"


def test_deeply_nested_calls_show_depth_as_number() -> None:
    calls = [node("0"), *(node(str(number), str(number - 1), at=number) for number in range(1, 1000))]

    drawn = lines(build_trace("c-1", calls), limit=1000)

    assert max(map(len, drawn)) <= 80
    assert drawn[-2].startswith("[999] bash__exec   ")


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(0, "0 ms"), (0.9, "900 ms"), (999, "999.0 s"), (3600, "60.0 min"), (90_000, "25.0 h")],
)
def test_durations_are_written_in_fitting_unit(seconds: float, written: str) -> None:
    row = lines(build_trace("c-1", [node("a", running_seconds=seconds)]))[2]

    assert f" {written}  w1" in row


@pytest.mark.parametrize(
    "field",
    [
        {"agent": "x\x1b[31m"},
        {"instance": "a\nb"},
        {"tool": "\u202eevil"},
        {"worker": "w\x07"},
        {"waiting_for": "\x1b]0;title"},
        {"error": TraceError(code="E\x1b", message="a\nb")},
    ],
    ids=lambda field: next(iter(field)),
)
def test_trace_text_has_no_terminal_control_characters(field: dict[str, Any]) -> None:
    text = trace_text(build_trace("a\x1b", [node("a", **field)]), width=80, limit=1).plain

    assert all(char.isprintable() or char == "\n" for char in text)


def test_wide_characters_keep_columns_in_line() -> None:
    calls: list[TraceNode] = [node("a", instance="주문"), node("b", instance="order", at=1)]

    _, titles, *rows = lines(build_trace("주문 7", calls))[:4]

    assert [row.index("ok") for row in rows] == [titles.index("state") - 2, titles.index("state")]


def summary(**fields: Any) -> TraceSummary:
    known: dict[str, Any] = {
        "trace_id": "a1" * 16,
        "correlation_id": "order-7",
        "id": CALL_ID,
        "kind": "request",
        "agent": "planner",
        "instance": "issue-42",
        "tool": "goondan__delegate",
        "event_type": "agent.request",
        "began_at": iso_time(TEN),
        "latest_at": iso_time(TEN + 900),
        "calls": 14,
        "state": "running",
    }
    return TraceSummary(**{**known, **fields})


def test_people_get_line_for_each_trace(client: FakeClient) -> None:
    client.summaries = [summary(), summary(kind="call", tool="bash__exec", calls=1, state="ok")]

    headings, *rows = [row.split("  ") for row in goondan("traces").stdout.splitlines()]

    [first, second] = [[cell.strip() for cell in row if cell.strip()] for row in rows]
    assert [cell.strip() for cell in headings if cell.strip()] == [
        *("began", "agent", "instance", "first call", "calls", "state", "id", "trace")
    ]
    assert first == [
        *(local_time(TEN), "planner", "issue-42", "request", "14", "running", CALL_ID, "a1" * 16)
    ]
    assert second[3:6] == ["bash__exec", "1", "ok"]


def test_narrow_screen_shows_id_prefix_that_trace_takes(
    client: FakeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    client.summaries = [summary(agent="p" * 63, event_type="a.long.type.of.an.event" * 5)]
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")

    heading, row = re.sub(r"\x1b\[[\d;]*m", "", goondan("traces").stdout).splitlines()

    assert heading.split() == ["began", "agent", "first", "call", "calls", "state", "id"]
    assert (len(row) <= 80, row.split()[-1]) == (True, CALL_ID[:8])


def test_programs_get_summaries_of_time_that_they_name(client: FakeClient) -> None:
    client.summaries = [summary(), summary()]

    shown = goondan("traces", "--limit", "1", "--since", "2h", "--until", "10m", "--json")

    assert shown.document == [summary().to_wire()]
    assert client.wanted == {"older_than": 600, "newer_than": 7200}


@pytest.mark.parametrize(
    ("options", "note"),
    [((), "There are no calls.\n"), (("--until", "1m"), "There are no such calls.\n")],
)
def test_where_nothing_was_called_there_are_no_traces(options: tuple[str, ...], note: str) -> None:
    shown = goondan("traces", *options)

    assert (shown.exit_code, shown.stdout, shown.stderr) == (0, "", note)


@pytest.mark.parametrize("options", [("--limit", "0"), ("--limit", "1001"), ("--since", "soon"), ("x",)])
def test_senseless_options_of_listing_are_usage_error(options: tuple[str, ...]) -> None:
    assert goondan("traces", *options).exit_code == 2
