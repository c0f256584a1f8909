"""goondan agents."""

from tests.unit.goondan_tasks.cli.fake_client import FakeClient
from tests.unit.goondan_tasks.cli.invoke import goondan


def test_programs_get_tools_and_workers_of_each_agent(client: FakeClient) -> None:
    assert goondan("agents", "--json").document == [
        {
            "name": "coder",
            "swarm": "coding",
            "workspace": "shop",
            "tools": ["bash__exec"],
            "workers": ["coder-7@host"],
        },
        {"name": "planner", "swarm": "coding", "workspace": "shop", "tools": [], "workers": []},
    ]


def test_people_get_a_table(client: FakeClient) -> None:
    rows = goondan("agents").stdout.splitlines()

    assert [row.split() for row in rows] == [
        ["agent", "swarm", "workspace", "tools", "workers"],
        ["coder", "coding", "shop", "1", "coder-7@host"],
        ["planner", "coding", "shop", "0", "-"],
    ]
