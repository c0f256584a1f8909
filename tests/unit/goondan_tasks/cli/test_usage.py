"""goondan usage and goondan handoffs."""

import pytest

from goondan_tasks.fleet.usage import HandoffCount, Usage
from tests.unit.goondan_tasks.cli.fake_client import SINCE, FakeClient
from tests.unit.goondan_tasks.cli.invoke import goondan


def test_usage_shows_its_groups_and_their_numbers(client: FakeClient) -> None:
    client.used = [
        Usage(day="2026-02-01", model="large", requests=2, input=1_200_000, cached=5, output=30),
        Usage(day="2026-02-02", model="", calls=7),
    ]
    shown = goondan("usage", "--by", "model,day", "--days", "7")
    heading, first, second = (line.split() for line in shown.stdout.splitlines() if line.strip("─ "))
    assert heading == ["day", "model", "calls", "requests", "input", "cached", "output", "reasoning"]
    assert first == ["2026-02-01", "large", "0", "2", "1,200,000", "5", "30", "0"]
    assert second == ["2026-02-02", "-", "7", "0", "0", "0", "0", "0"]
    assert client.wanted == {"days": 7, "by": "day,model"}
    document = goondan("usage", "--by", "model,day", "--json").document
    assert document[1]["calls"] == 7
    assert "user" not in document[1]


def test_usage_of_one_agent_leaves_others_out(client: FakeClient) -> None:
    client.used = [Usage(agent=agent, user="ann", calls=1) for agent in ("clerk", "coder")]
    document = goondan("usage", "--by", "user", "--agent", "coder", "--json").document
    assert [one["agent"] for one in document] == ["coder"]
    assert set(str(client.wanted["by"]).split(",")) == {"user", "agent"}
    client.used = []
    assert goondan("usage", "--agent", "nobody", "--json").document["error"]["code"] == "E_AGENT_NOT_FOUND"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["usage"], "Nothing was used in the last 30 days.\n"),
        (["handoffs"], f"No agent has been handed work since {SINCE}.\n"),
    ],
)
def test_empty_report_is_explained_in_words(client: FakeClient, arguments: list[str], text: str) -> None:
    assert goondan(*arguments).stderr == text
    assert goondan(*arguments, "--json").document in ([], {"since": SINCE, "seconds": 1.0, "edges": []})


def test_unknown_group_is_wrong_argument(client: FakeClient) -> None:
    done = goondan("usage", "--by", "agents", "--json")
    assert (done.exit_code, done.document["error"]["code"]) == (2, "E_TOOL_INVALID_ARGS")
    assert "'agent'" in done.document["error"]["suggestion"]


def test_handoffs_show_sender_receiver_count_and_failure_rate(client: FakeClient) -> None:
    client.passed = [HandoffCount(from_agent="lead", to="coder", count=1_200, errors=30)]
    shown = goondan("handoffs", "--hours", "3")
    assert shown.stdout.splitlines()[-1].split() == ["lead", "coder", "1,200", "30", "2.5%"]
    assert client.wanted == {"hours": 3}
    edges = goondan("handoffs", "--json").document["edges"]
    assert edges == [{"from": "lead", "to": "coder", "count": 1_200, "errors": 30}]
