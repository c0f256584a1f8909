"""goondan trace."""

import pytest

from goondan_tasks.trace import Trace, build_trace
from tests.unit.goondan_tasks.cli.fake_client import CALL_ID, FakeClient, record
from tests.unit.goondan_tasks.cli.invoke import goondan
from tests.unit.goondan_tasks.trace_nodes import node

CHAIN = [node("a"), node("b", "a", at=1), node("c", "b", at=2), node("d", "a", at=3)]


@pytest.fixture(autouse=True)
def _one_trace(client: FakeClient) -> None:
    client.traces = {name: build_trace("order-7", CHAIN) for name in ("order-7", CALL_ID)}


def test_people_get_the_tree() -> None:
    outcome = goondan("trace", "order-7")

    headline, _, *rows = outcome.stdout.splitlines()
    assert (outcome.exit_code, headline) == (0, "order-7 · calls 4 · 4 ok")
    assert [row.split("  ")[0] for row in rows[:4]] == [
        "coder@issue-42 bash__exec",
        "├─ bash__exec",
        "│",
        "└─ bash__exec",
    ]


def test_programs_get_all_calls_in_the_order_of_the_tree() -> None:
    document = goondan("trace", "order-7", "--json", "--limit", "1").document

    assert document["correlationId"] == "order-7"
    assert [(row["id"], row["depth"], row.get("parentId")) for row in document["nodes"]] == [
        ("a", 0, None),
        ("b", 1, "a"),
        ("c", 2, "b"),
        ("d", 1, "a"),
    ]


@pytest.mark.parametrize("name", [CALL_ID, CALL_ID[:8]])
def test_a_calls_id_or_its_beginning_stands_for_its_trace(client: FakeClient, name: str) -> None:
    client.records = [record()]

    assert goondan("trace", name, "--json").document["correlationId"] == "order-7"


def test_a_limit_cuts_the_tree_for_people() -> None:
    assert "… and 2 more" in goondan("trace", "order-7", "--limit", "2").stdout


def test_an_unknown_name_ends_with_two() -> None:
    outcome = goondan("trace", "order-8", "--json")

    assert (outcome.exit_code, outcome.document["error"]["code"]) == (2, "E_CALL_NOT_FOUND")


def test_a_beginning_of_several_ids_is_a_usage_error(client: FakeClient) -> None:
    client.records = [record(id=f"{CALL_ID[:8]}-{number}") for number in range(2)]

    assert goondan("trace", CALL_ID[:8]).exit_code == 2


@pytest.mark.parametrize("options", [("--limit", "0"), ("--watch=0",), ("--watch", "5")])
def test_what_makes_no_sense_is_a_usage_error(options: tuple[str, ...]) -> None:
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
