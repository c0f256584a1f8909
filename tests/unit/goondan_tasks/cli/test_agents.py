"""goondan agents."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import build_catalog, load_bundle
from goondan_tasks.cli import agents, session
from goondan_tasks.client.status import QueueStatus
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.fleet.agent_registry import AgentRecord
from goondan_tasks.fleet.crash_backoff import CrashBackoff
from goondan_tasks.instances.housekeeping import InstanceRemoval
from goondan_tasks.instances.table import InstanceInfo
from goondan_tasks.revisions import checkouts
from tests.unit.goondan_tasks.cli.fake_client import NOW, FakeClient, queue_status
from tests.unit.goondan_tasks.cli.invoke import goondan

LOOPING = CrashBackoff(crashes=6, retry_at=NOW + 2_000, reason="It ended with 3.\nthinker.py:2: no")


def test_programs_get_agents_tools_workers_and_state(client: FakeClient) -> None:
    client.figures["planner"] = queue_status("planner", backlog=2)

    coder, planner = goondan("agents", "--json").document

    assert coder == {
        "name": "coder",
        "swarm": "coding",
        "workspace": "shop",
        "tools": ["bash__exec"],
        "workers": ["coder-7@host"],
        "backlog": 0,
        "running": 0,
        "state": "idle",
        "orchestrated": False,
        "crashes": 0,
        "nextStartSeconds": None,
        "reason": None,
        "paused": [],
    }
    assert (planner["name"], planner["backlog"], planner["state"]) == ("planner", 2, "none")


def test_people_get_table(client: FakeClient) -> None:
    client.figures["coder"] = queue_status("coder", running=1)

    rows = goondan("agents").stdout.splitlines()

    assert [row.split() for row in rows] == [
        ["agent", "swarm", "workspace", "tools", "backlog", "running", "state", "workers"],
        ["coder", "coding", "shop", "1", "0", "1", "running", "coder-7@host"],
        ["planner", "coding", "shop", "0", "0", "0", "none", "-"],
    ]


def test_orchestrated_agent_gets_worker_when_needed(client: FakeClient) -> None:
    client.is_orchestrated = True

    assert "none, started when needed" in goondan("agents").stdout.splitlines()[2]


def test_crash_loop_shows_reason_and_next_start(client: FakeClient) -> None:
    client.backoffs["planner"] = LOOPING

    document, told = goondan("agents", "--json").document[1], goondan("agents")

    assert (document["state"], document["crashes"]) == ("crashLoopBackOff", 6)
    assert (document["nextStartSeconds"], document["reason"]) == (2.0, LOOPING.reason)
    assert "crashLoopBackOff" in told.stdout
    assert "planner: 6 workers in a row have crashed" in told.stderr
    assert "in 2 s" in told.stderr
    assert "thinker.py:2: no" in told.stderr


@pytest.mark.parametrize(
    ("backoff", "state"),
    [
        (CrashBackoff(starting_until=NOW + 1), "starting"),
        (CrashBackoff(crashes=5, retry_at=NOW - 1), "crashLoopBackOff"),
        (CrashBackoff(crashes=5, retry_at=NOW - 1, starting_until=NOW + 1), "starting"),
        (CrashBackoff(crashes=4), "none"),
    ],
)
def test_agent_without_workers_shows_crash_backoff_state(
    client: FakeClient, backoff: CrashBackoff, state: str
) -> None:
    client.backoffs["planner"] = backoff

    assert goondan("agents", "--json").document[1]["state"] == state


def test_recovered_worker_ends_crash_loop_state(client: FakeClient) -> None:
    client.backoffs["coder"] = LOOPING

    assert goondan("agents", "--json").document[0]["state"] == "idle"


CODER = QueueStatus(
    agent="coder",
    queue="agent.coder",
    backlog=3,
    running=2,
    oldest_seconds=12.3,
    workers=1,
    events=2,
    pending=5,
)
IDLE = QueueStatus(agent="planner", queue="agent.planner", backlog=0, running=0, workers=0)


@pytest.fixture(autouse=True)
def _two_queues(client: FakeClient) -> None:
    client.queue_rows = [CODER, IDLE]


def test_programs_get_every_field_even_null_ones() -> None:
    assert goondan("queues", "--json").document == [
        {
            "agent": "coder",
            "queue": "agent.coder",
            "backlog": 3,
            "running": 2,
            "waitingForLimit": 0,
            "oldestSeconds": 12.3,
            "workers": 1,
            "events": 2,
            "deadLetters": 0,
            "lateAnswers": 0,
            "mailboxes": 0,
            "pending": 5,
            "scheduled": 0,
            "lost": 0,
            "lostWith": [],
            "lostSeconds": None,
            "paused": [],
        },
        {
            "agent": "planner",
            "queue": "agent.planner",
            "backlog": 0,
            "running": 0,
            "waitingForLimit": 0,
            "oldestSeconds": None,
            "workers": 0,
            "events": 0,
            "deadLetters": 0,
            "lateAnswers": 0,
            "mailboxes": 0,
            "pending": 0,
            "scheduled": 0,
            "lost": 0,
            "lostWith": [],
            "lostSeconds": None,
            "paused": [],
        },
    ]


def test_lost_calls_get_column_and_note(client: FakeClient) -> None:
    lost = {"running": 2, "lost": 2, "lost_with": ("w1", "w2"), "lost_seconds": 41.0}
    client.queue_rows = [queue_status("coder", **lost), queue_status("planner")]

    shown = goondan("queues")

    assert "lost" in shown.stdout.splitlines()[0]
    assert shown.stderr == "coder: 2 calls lost with w1, w2 41.0 s ago\n"
    assert goondan("queues", "--agent", "planner").stderr == ""


@pytest.mark.parametrize("waiting", [{"events": 1}, {"mailboxes": 1}])
@pytest.mark.parametrize("has_entry", [True, False])
def test_events_that_no_worker_handles_have_note(
    client: FakeClient, waiting: dict[str, int], has_entry: bool
) -> None:
    client.queue_rows = [queue_status("coder", **waiting), queue_status("planner")]
    records = {name: AgentRecord(name=name, swarm="s", workspace="w") for name in ("coder", "planner")}
    client.agent_records = {**records, "coder": records["coder"].model_copy(update={"has_entry": has_entry})}
    note = "coder: only a producer that calls client.receive('coder') handles its events"
    assert goondan("queues").stderr.startswith(note) is not has_entry


def test_people_get_table_of_queues() -> None:
    heading, *rows = goondan("queues").stdout.splitlines()

    assert heading.split() == [
        "agent",
        "queue",
        "backlog",
        "running",
        "waiting",
        "for",
        "limit",
        "pending",
        "oldest",
        "workers",
    ]
    assert [row.split() for row in rows] == [
        ["coder", "agent.coder", "3", "2", "0", "5", "12", "s", "1"],
        ["planner", "agent.planner", "0", "0", "0", "0", "-", "0"],
    ]


def test_mailboxes_and_dead_letters_appear_when_present(client: FakeClient) -> None:
    client.queue_rows = [CODER, IDLE.model_copy(update={"mailboxes": 4})]
    heading, coder, planner = goondan("queues").stdout.splitlines()

    assert heading.endswith("workers  mailboxes")
    assert (coder.split()[-1], planner.split()[-1]) == ("0", "4")

    client.queue_rows = [CODER.model_copy(update={"dead_letters": 1, "mailboxes": 1})]
    assert goondan("queues").stdout.splitlines()[0].endswith("workers  mailboxes  dead letters")


def test_queues_of_one_agent_are_shown_alone() -> None:
    assert [row["agent"] for row in goondan("queues", "--agent", "planner", "--json").document] == ["planner"]
    assert goondan("queues", "--agent", "plannr").exit_code == 3


def test_narrow_terminal_leaves_out_queue_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")

    heading, coder, _ = goondan("queues").stdout.splitlines()

    assert "queue" not in heading
    assert coder.split()[:2] == ["coder", "3"]


EXAMPLE = Path(__file__).parents[4] / "examples" / "coding-swarm"
FROM_BUNDLE = ("catalog", "coder", "--bundle", str(EXAMPLE))


@pytest.mark.parametrize("form", ["json", "openai", "anthropic", "mcp"])
def test_catalog_is_written_in_every_form(form: str) -> None:
    catalog = build_catalog(load_bundle(EXAMPLE), "coder")
    written = {
        "json": catalog.to_wire,
        "openai": catalog.to_openai,
        "anthropic": catalog.to_anthropic,
        "mcp": catalog.to_mcp,
    }

    assert goondan(*FROM_BUNDLE, "--format", form).document == written[form]()


def test_json_alone_is_form_of_specification() -> None:
    assert goondan(*FROM_BUNDLE, "--json").document == goondan(*FROM_BUNDLE, "--format", "json").document


def test_with_json_providers_form_stays_providers_form() -> None:
    both = goondan(*FROM_BUNDLE, "--json", "--format", "openai")

    assert both.document[0]["type"] == "function"


def test_people_get_names_arguments_and_descriptions() -> None:
    rows = goondan(*FROM_BUNDLE).stdout.splitlines()

    assert rows[0].split() == ["tool", "arguments", "from", "description"]
    [write] = [row for row in rows if row.startswith("file-system__write")]
    assert "path content [append]" in write
    assert "Write text into a file" in write


def test_catalog_without_bundle_is_as_workers_announced(client: FakeClient) -> None:
    assert goondan("catalog", "coder", "--json").document == list(client.catalog("coder"))


@pytest.mark.parametrize("bundle", [(), ("--bundle", str(EXAMPLE))])
def test_unknown_agent_ends_with_three(client: FakeClient, bundle: tuple[str, ...]) -> None:
    assert goondan("catalog", "codr", *bundle).exit_code == 3


def test_unknown_form_is_usage_error() -> None:
    assert goondan(*FROM_BUNDLE, "--format", "xml").exit_code == 2


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
    for module in (agents, session):
        monkeypatch.setattr(module, "can_ask", lambda output: True)


def test_instances_are_listed_on_one_line_each(client: FakeClient) -> None:
    client.instance_infos = [INFO]
    lines = goondan("instances").stdout.splitlines()
    assert lines[0].split()[-1] == "instance"
    assert lines[1].split()[4:] == ["coder", "shop", "planner@p", "b/workspace", "issue\\n42"]
    assert goondan("instances", "list", "--json").document == [INFO.to_wire()]


def test_empty_instance_list_differs_from_unknown_agent(client: FakeClient) -> None:
    assert goondan("instances", "--agent", "planner", "--json").document == []
    assert goondan("instances", "--agent", "nobody").exit_code == 3


@pytest.mark.parametrize("arguments", [("delete",), ("list", "a"), ("a",)])
def test_key_goes_with_delete_alone(client: FakeClient, arguments: tuple[str, ...]) -> None:
    assert goondan("instances", *arguments).exit_code == 2
    assert client.asked == []


def test_instance_is_deleted_by_its_key(client: FakeClient) -> None:
    client.removals = [REMOVED]
    done = goondan("instances", "delete", "a", "--agent", "coder", "--yes")
    assert (done.exit_code, done.stdout) == (0, "removed 1\n")
    assert client.asked == [{"key": "a", "agent": "coder", "dry_run": False}]
    assert goondan("instances", "delete", "a", "--json", "--yes").document == [
        {**REMOVED.to_wire(), "agents": ["coder"]}
    ]


def test_deleting_unknown_instance_gives_exit_code_two(client: FakeClient) -> None:
    assert goondan("instances", "delete", "b", "--yes").exit_code == 2


@pytest.mark.usefixtures("terminal")
def test_person_sees_files_before_deletion_and_may_refuse(client: FakeClient) -> None:
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


def test_collection_takes_time_with_unit(client: FakeClient) -> None:
    client.removals = [REMOVED, STAYS]
    done = goondan("gc", "--older-than", "7d", "--yes")
    assert (done.exit_code, done.stdout) == (0, "removed 1\n")
    assert done.stderr == "instance 'a' stays: call x has not ended\n"
    assert client.asked[-1] == {"seconds": 604_800, "unlisted": False, "dry_run": False}


def test_dry_run_only_shows(client: FakeClient) -> None:
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
def test_without_terminal_nothing_is_removed_unless_confirmed(
    client: FakeClient, command: tuple[str, ...], form: tuple[str, ...]
) -> None:
    client.removals = [REMOVED]

    refused = goondan(*command, *form)

    assert refused.exit_code == 2
    assert "give --yes" in refused.stdout + refused.stderr
    assert all(asked["dry_run"] for asked in client.asked)


def test_without_anything_to_remove_there_is_no_question(client: FakeClient) -> None:
    assert goondan("gc", "--older-than", "7d").exit_code == 0


@pytest.mark.usefixtures("terminal")
def test_person_is_asked_before_many_go(client: FakeClient) -> None:
    client.removals = [REMOVED]
    assert goondan("gc", "--older-than", "7d", stdin="n\n").exit_code == 1
    assert {asked["dry_run"] for asked in client.asked} == {True}
    assert goondan("gc", "--older-than", "7d", "--yes").exit_code == 0


def test_checkouts_stay_until_removal_is_confirmed(
    client: FakeClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cleaned: list[float] = []

    def clean(cache: Path, seconds: float) -> list[str]:
        cleaned.append(seconds)
        return []

    monkeypatch.setattr(checkouts, "clean_checkouts", clean)
    client.removals = [REMOVED]

    assert goondan("gc", "--older-than", "7d").exit_code == 2
    assert cleaned == []
    assert goondan("gc", "--older-than", "7d", "--yes").exit_code == 0
    assert cleaned == [7 * 86_400]


def test_gc_with_unremovable_files_exits_with_1(client: FakeClient) -> None:
    client.removals = [REMOVED.model_copy(update={"files": "left", "reason": "not all"})]
    assert goondan("gc", "--older-than", "7d", "--yes").exit_code == 1


@pytest.mark.parametrize("arguments", [(), ("--older-than", "soon"), ("--older-than", "-7d")])
def test_time_is_needed(client: FakeClient, arguments: tuple[str, ...]) -> None:
    assert goondan("gc", *arguments).exit_code == 2
    assert client.asked == []
