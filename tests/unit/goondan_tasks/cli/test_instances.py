"""``goondan instances`` and ``goondan gc``."""

import pytest

from goondan_tasks.cli import gc, instances
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import InstanceInfo
from goondan_tasks.messages import JsonObject
from tests.unit.goondan_tasks.cli.fake_client import FakeClient
from tests.unit.goondan_tasks.cli.invoke import goondan

TIME = "2026-02-01T10:00:00.000Z"
INFO = InstanceInfo(
    target="coder",
    instance_key="issue\n42",
    owner_agent="planner",
    owner_instance_key="p",
    created_at=TIME,
    last_used_at=TIME,
    cwd="b/workspace",
    workspace="shop",
)
REMOVED = InstanceRemoval(
    instance_key="a", workspace="shop", agents=("coder",), path="/srv/a", removed=True, files="removed"
)
STAYS = REMOVED.model_copy(update={"removed": False, "files": "here", "reason": "call x has not ended"})


def document(removal: InstanceRemoval) -> JsonObject:
    return {**removal.to_wire(), "agents": list(removal.agents)}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let there be a person to be asked."""
    for module in (instances, gc):
        monkeypatch.setattr(module, "can_ask", lambda output: True)
    monkeypatch.setattr("goondan_tasks.cli.confirmation.can_ask", lambda output: True)


def test_instances_are_listed_on_one_line_each(client: FakeClient) -> None:
    client.instance_infos = [INFO]
    lines = goondan("instances").stdout.splitlines()
    assert lines[0].split()[-1] == "instance"
    assert lines[1].split()[4:] == ["coder", "shop", "planner@p", "b/workspace", "issue\\n42"]
    assert goondan("instances", "list", "--json").document == [INFO.to_wire()]


def test_of_an_agent_without_instances_it_is_known_whether_there_is_such_an_agent(client: FakeClient) -> None:
    assert goondan("instances", "--agent", "planner", "--json").document == []
    assert goondan("instances", "--agent", "nobody").exit_code == 3


@pytest.mark.parametrize("arguments", [("delete",), ("list", "a"), ("a",)])
def test_a_key_goes_with_delete_alone(client: FakeClient, arguments: tuple[str, ...]) -> None:
    assert goondan("instances", *arguments).exit_code == 2
    assert client.asked == []


def test_an_instance_is_deleted_by_its_key(client: FakeClient) -> None:
    client.removals = [REMOVED]
    done = goondan("instances", "delete", "a", "--agent", "coder", "--yes")
    assert (done.exit_code, done.stdout) == (0, "removed 1\n")
    assert client.asked == [{"key": "a", "agent": "coder", "dry_run": False}]
    assert goondan("instances", "delete", "a", "--json", "--yes").document == [
        {**REMOVED.to_wire(), "agents": ["coder"]}
    ]


def test_one_that_does_not_exist_ends_with_two(client: FakeClient) -> None:
    assert goondan("instances", "delete", "b", "--yes").exit_code == 2


@pytest.mark.usefixtures("terminal")
def test_a_person_sees_what_goes_and_may_keep_it(client: FakeClient) -> None:
    client.removals = [REMOVED.model_copy(update={"files": "here"})]
    kept = goondan("instances", "delete", "a", stdin="n\n")
    assert (kept.exit_code, client.asked[-1]["dry_run"]) == (1, True)
    assert "/srv/a" in kept.stdout
    assert goondan("instances", "delete", "a", stdin="y\n").exit_code == 0
    assert not client.asked[-1]["dry_run"]
    assert goondan("instances", "delete", "a", "--yes").exit_code == 0
    assert not client.asked[-1]["dry_run"]


def test_files_that_are_elsewhere_are_said_to_be(client: FakeClient) -> None:
    client.removals = [REMOVED.model_copy(update={"files": "elsewhere"})]
    done = goondan("instances", "delete", "a", "--yes")
    assert "not below this state root (/srv/a)" in done.stderr


def test_a_collection_takes_a_time_with_a_unit(client: FakeClient) -> None:
    client.removals = [REMOVED, STAYS]
    done = goondan("gc", "--older-than", "7d", "--yes")
    assert (done.exit_code, done.stdout) == (0, "removed 1\n")
    assert done.stderr == "instance 'a' stays: call x has not ended\n"
    assert client.asked[-1] == {"seconds": 604_800, "unlisted": False, "dry_run": False}


def test_a_dry_run_only_shows(client: FakeClient) -> None:
    client.removals = [STAYS]
    done = goondan("gc", "--older-than", "0", "--dry-run", "--unlisted")
    assert "/srv/a" in done.stdout
    assert "call x has not ended" in done.stdout
    assert goondan("gc", "--older-than", "0", "--dry-run", "--json").document == [
        {**STAYS.to_wire(), "agents": ["coder"]}
    ]
    assert {asked["dry_run"] for asked in client.asked} == {True}


@pytest.mark.parametrize("command", [("instances", "delete", "a"), ("gc", "--older-than", "7d")])
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_where_nobody_can_be_asked_nothing_goes_unless_it_is_confirmed(
    client: FakeClient, command: tuple[str, ...], form: tuple[str, ...]
) -> None:
    client.removals = [REMOVED]

    refused = goondan(*command, *form)

    assert refused.exit_code == 2
    assert "say --yes" in refused.stdout + refused.stderr
    assert all(asked["dry_run"] for asked in client.asked)


def test_where_nothing_is_to_go_nobody_is_asked(client: FakeClient) -> None:
    assert goondan("gc", "--older-than", "7d").exit_code == 0


@pytest.mark.usefixtures("terminal")
def test_a_person_is_asked_before_many_go(client: FakeClient) -> None:
    client.removals = [REMOVED]
    assert goondan("gc", "--older-than", "7d", stdin="n\n").exit_code == 1
    assert {asked["dry_run"] for asked in client.asked} == {True}
    assert goondan("gc", "--older-than", "7d", "--yes").exit_code == 0


def test_files_that_could_not_be_removed_end_with_one(client: FakeClient) -> None:
    client.removals = [REMOVED.model_copy(update={"files": "left", "reason": "not all"})]
    assert goondan("gc", "--older-than", "7d", "--yes").exit_code == 1


@pytest.mark.parametrize("arguments", [(), ("--older-than", "soon"), ("--older-than", "-7d")])
def test_a_time_is_needed(client: FakeClient, arguments: tuple[str, ...]) -> None:
    assert goondan("gc", *arguments).exit_code == 2
    assert client.asked == []
