"""Is this machine set up?"""

import json
from pathlib import Path
from typing import Any

import fakeredis
import pytest

from broker_config.embedded import RedisBinaryNotFound
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, inspect_bundle, load_bundle
from goondan_tasks.cli import doctor
from goondan_tasks.cli.doctor import (
    clock_check,
    latency_check,
    neighbour_check,
    priority_checks,
    replica_checks,
    server_checks,
)
from goondan_tasks.cli.fleet_checks import (
    Check,
    dead_letter_checks,
    fleet_checks,
    mcp_server_checks,
    past_loss_checks,
    revision_checks,
    schedule_checks,
)
from goondan_tasks.client.status import AgentStatus
from goondan_tasks.contract.messages import iso_time
from goondan_tasks.contract.schedules import Schedule
from goondan_tasks.fleet.agent_registry import AgentRecord, McpServerRecord, WorkerRecord, describe_agents
from goondan_tasks.fleet.call_counts import REQUEUED, Settlement
from goondan_tasks.fleet.crash_backoff import CrashBackoff
from goondan_tasks.instances.earlier import EarlierWorkspace
from goondan_tasks.ledger.schedules import SchedulePause, ScheduleState
from goondan_tasks.revisions.active import RevisionChange, RevisionFailure, RevisionState
from tests.oauth_server.apps import app_document
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, write
from tests.unit.goondan_tasks.cli.fake_client import NOW, agent, queue_status, worker

ROOT = Path(__file__).parents[4]
EXAMPLE = ROOT / "examples" / "coding-swarm"
FAULTY = ROOT / "tests" / "bundles" / "thirty-faults"


def test_versions_that_run_are_named() -> None:
    check = doctor.package_check()

    assert check.level == "ok"
    assert "celery 5.7" in check.message


@pytest.mark.parametrize("found", ["5.6.3", "6.0.0", "missing"])
def test_another_celery_is_problem(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_version_of", lambda package: found)

    assert doctor.package_check().level == "problem"


def test_mistyped_variable_suggests_intended_setting() -> None:
    known = ["GOONDAN_REDIS_URL", "GOONDAN_BUNDLE"]

    check = doctor.settings_check(["GOONDAN_REDIS_ULR", "GOONDAN_XYZ"], known)

    assert check.level == "warning"
    assert check.message == "not read: GOONDAN_REDIS_ULR, GOONDAN_XYZ"
    assert check.remedy == "Rename GOONDAN_REDIS_ULR to GOONDAN_REDIS_URL. Remove GOONDAN_XYZ."
    assert doctor.settings_check([], known).level == "ok"


def test_missing_redis_server_is_warning_with_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise RedisBinaryNotFound

    monkeypatch.setattr(doctor, "find_redis_server", missing)

    check = doctor.embedded_redis_check()
    assert check.level == "warning"
    assert "goondan-workers[embedded]" in (check.remedy or "")


def test_existing_or_missing_state_root_is_fine(tmp_path: Path) -> None:
    assert doctor.state_root_check(tmp_path).message == str(tmp_path)
    assert doctor.state_root_check(tmp_path / "a" / "b").level == "ok"


def test_state_root_that_cannot_be_written_is_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert doctor.state_root_check(tmp_path / "file" / "root").level == "problem"


def test_bundle_is_judged_by_its_findings() -> None:
    good = doctor.bundle_check(EXAMPLE, inspect_bundle(EXAMPLE)[1])
    faulty = doctor.bundle_check(FAULTY, inspect_bundle(FAULTY)[1])

    assert (good.level, faulty.level) == ("ok", "problem")
    assert faulty.remedy == f"goondan validate {FAULTY}"
    assert doctor.bundle_check(None, ()).level == "ok"


def test_missing_packages_are_problem_with_remedy(tmp_path: Path) -> None:
    text = (
        (EXAMPLE / "goondan.yaml").read_text("utf-8").replace("0.1.0", "0.1.0\n  requirements: [no-such-one]")
    )
    (tmp_path / "goondan.yaml").write_text(text, encoding="utf-8")

    [check] = doctor.requirements_check(tmp_path, inspect_bundle(tmp_path)[1])

    assert (check.level, check.remedy) == ("problem", f"goondan validate --install {tmp_path}")
    assert check.message == "the requirement 'no-such-one' is not met: no-such-one is not installed"
    assert doctor.requirements_check(EXAMPLE, inspect_bundle(EXAMPLE)[1]) == []


def _with_oauth(tmp_path: Path, tools: str) -> Bundle:
    agent = {"spec": {"tools": [tools]}, "metadata": {"name": "coder"}, "kind": "Agent"}
    documents = [{"apiVersion": "goondan.ai/v1", **agent}, app_document("https://slack.example")]
    (tmp_path / "goondan.yaml").write_text("\n---\n".join(json.dumps(one) for one in documents), "utf-8")
    return load_bundle(tmp_path)


def test_key_file_readable_by_commands_warns_naming_agents(tmp_path: Path) -> None:
    settings = Settings.load(state_root=tmp_path / "state")

    [check] = doctor.oauth_key_check(settings, _with_oauth(tmp_path, "Tool/bash"))

    assert check.level == "warning"
    assert check.message == f"the file {settings.oauth_key_path}, which commands of coder can read"
    assert check.remedy is not None and "GOONDAN_OAUTH_KEY" in check.remedy


def test_configured_key_is_ok_and_optional_without_apps(tmp_path: Path) -> None:
    settings = Settings.load(oauth_key="a-key")
    bundle = _with_oauth(tmp_path, "Tool/file-system")

    assert [one.level for one in doctor.oauth_key_check(settings, bundle)] == ["ok"]
    assert bundle.agents_with_commands() == ()
    assert doctor.oauth_key_check(settings, load_bundle(EXAMPLE)) == []


GOOD = {
    "redis_version": "7.0.15",
    "role": "master",
    "cluster_enabled": 0,
    "maxmemory_policy": "noeviction",
    "aof_enabled": 1,
    "aof_last_write_status": "ok",
    "used_memory": 2_000_000,
    "maxmemory": 0,
}


def levels(**changes: Any) -> dict[str, str]:
    """Return what is not ok about a server whose INFO differs from a good one's."""
    return {check.name: check.level for check in server_checks({**GOOD, **changes}) if check.level != "ok"}


def test_good_server_is_ok() -> None:
    assert levels() == {}


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({"redis_version": "6.2.0"}, {}),
        ({"redis_version": "6.0.16"}, {"version": "problem"}),
        ({"redis_version": "5.0"}, {"version": "problem"}),
        ({"redis_version": "10.0.0"}, {}),
        ({"role": "slave"}, {"role": "problem"}),
        ({"cluster_enabled": 1}, {"role": "problem"}),
        ({"maxmemory_policy": "allkeys-lru"}, {"eviction": "problem"}),
        ({"aof_enabled": 0}, {"persistence": "warning"}),
        ({"aof_last_write_status": "err"}, {"persistence": "problem"}),
        ({"maxmemory": 2_000_001}, {"memory": "warning"}),
        ({"maxmemory": 200_000_000}, {}),
    ],
)
def test_faults_of_redis_server_are_found(changes: dict[str, Any], found: dict[str, str]) -> None:
    assert levels(**changes) == found


def test_every_server_fault_has_remedy() -> None:
    bad = {
        **GOOD,
        "redis_version": "5.0",
        "role": "slave",
        "maxmemory_policy": "volatile-ttl",
        "aof_enabled": 0,
        "maxmemory": 1,
    }

    checks = server_checks(bad)

    assert [check.level for check in checks if check.remedy] == ["problem"] * 3 + ["warning"] * 2


@pytest.mark.parametrize(
    ("demanded", "connected", "found"), [(0, 0, []), (1, 1, ["ok"]), (1, 2, ["ok"]), (2, 1, ["problem"])]
)
def test_replicas_that_calls_wait_for_are_counted(demanded: int, connected: int, found: list[str]) -> None:
    checks = replica_checks({**GOOD, "connected_slaves": connected}, Settings(wait_replicas=demanded))

    assert [check.level for check in checks] == found


def test_valkey_is_known_by_its_own_name() -> None:
    info = {**GOOD, "redis_version": "7.2.4", "server_name": "valkey", "valkey_version": "8.0.1"}

    assert server_checks(info)[0].message == "Valkey 8.0.1"


@pytest.mark.parametrize(("milliseconds", "level"), [(0.2, "ok"), (19.0, "ok"), (35.0, "warning")])
def test_slow_server_is_warning(milliseconds: float, level: str) -> None:
    assert latency_check(milliseconds).level == level


@pytest.mark.parametrize(
    ("seconds", "level", "message"),
    [
        (0.4, "ok", "this machine and Redis agree on the time"),
        (90.0, "warning", "this machine is 90 s ahead of Redis"),
        (-90.0, "warning", "this machine is 90 s behind Redis"),
    ],
)
def test_clocks_that_differ_are_warning(seconds: float, level: str, message: str) -> None:
    check = clock_check(seconds)

    assert (check.level, check.message) == (level, message)


OURS = [
    "shop:call:1",
    "agent.coder",
    "celery-task-meta-1",
    "_kombu.binding.celery",
    "unacked_index",
    "0f3d.reply.celery.pidbox",
    "celeryev.9b1c",
]


def test_own_and_celery_keys_are_no_neighbours() -> None:
    assert neighbour_check(OURS, "shop", is_sample=False).message == "only ours among 7 keys"


def test_prioritized_calls_outside_workers_queues_are_found() -> None:
    assert priority_checks(OURS) == []

    (check,) = priority_checks([*OURS, "agent.coder\x06\x163", "agent.coder.events\x06\x169"])

    assert check.level == "problem"
    assert check.message.endswith(r"'agent.coder\x06\x163', 'agent.coder.events\x06\x169'")


def test_keys_of_another_program_are_warning() -> None:
    check = neighbour_check([*OURS, "celery", "other:call:1", "session:1", "zz"], "shop", is_sample=True)

    assert check.level == "warning"
    assert check.message.startswith("4 of 11 sampled keys belong to another program, such as 'celery', ")


AGENTS = {"coder": agent("coder", "bash__exec"), "planner": agent("planner", "plan__add")}


def faults(*workers: WorkerRecord) -> list[Check]:
    """Return what is not ok about these workers of our agents."""
    return [check for check in fleet_checks(AGENTS, AGENTS, workers) if check.level != "ok"]


def test_workers_for_every_agent_are_ok() -> None:
    assert faults(worker("a", ("coder",)), worker("b", ("planner", "coder"))) == []


def test_agent_without_workers_warns_with_starting_command() -> None:
    [check] = faults(worker("a", ("coder",)))

    assert (check.name, check.level) == ("workers of planner", "warning")
    assert check.remedy == "Start one: goondan worker --agent planner"


@pytest.mark.parametrize(
    ("backlog", "backoff", "message"),
    [
        (0, CrashBackoff(), "none"),
        (1, CrashBackoff(), "none: calls or events wait"),
        (1, CrashBackoff(crashes=6, retry_at=2_000, reason="exit 3"), "crash as soon as they start: exit 3"),
    ],
)
def test_missing_worker_warning_tells_reason_and_backlog(
    backlog: int, backoff: CrashBackoff, message: str
) -> None:
    queue = queue_status("planner", backlog=backlog)
    status = AgentStatus(AGENTS["planner"], [], queue, backoff, is_orchestrated=False, now=1_000)

    checks = fleet_checks(AGENTS, AGENTS, [], statuses=[status])

    [check] = [check for check in checks if check.name == "workers of planner"]
    assert (check.level, check.message) == ("warning", message)


def test_agent_in_two_systems_warns_naming_workers() -> None:
    ours = {"swarm": "coding", "workspace": "shop"}
    workers = [
        worker("a", ("coder", "planner"), **ours),
        worker("b", ("coder",), **{**ours, "workspace": "other"}),
        worker("of an older version", ("coder",)),
    ]

    [check] = faults(*workers)

    assert (check.name, check.level) == ("systems of coder", "warning")
    assert check.message == (
        "workers of 2 systems share its queue: "
        "swarm coding in workspace shop (a); swarm coding in workspace other (b)"
    )
    assert faults(worker("a", ("coder", "planner"), **ours), worker("b", ("coder",), **ours)) == []


def test_workers_in_another_workspace_than_bundles_are_warning() -> None:
    elsewhere = worker("a", ("coder", "planner"), swarm="coding", workspace="desk-0a1b2c3d")

    check, _ = faults(elsewhere)

    assert (check.name, check.level) == ("workspace of coder", "warning")
    assert check.message == "shop for this bundle, but desk-0a1b2c3d for its workers: a"
    assert faults(elsewhere.model_copy(update={"workspace": "shop"})) == []


def test_workspace_is_named_with_its_source(tmp_path: Path) -> None:
    bundle = load_bundle(write(tmp_path / "desk", {"goondan.yaml": f"{TOOL}---\n{AGENT}"}))
    example = load_bundle(EXAMPLE)

    def told(settings: Settings, bundle: Bundle | None) -> list[str]:
        return [check.message for check in doctor.workspace_check(settings, bundle)]

    assert told(Settings.load(), None) == []
    assert told(Settings.load(), example) == ["coding-swarm, from its Package"]
    assert told(Settings.load(workspace="x"), example) == ["x, from GOONDAN_WORKSPACE or --workspace"]
    [by_folder] = told(Settings.load(), bundle)
    assert by_folder.startswith(f"{bundle.workspace_name()}, from its folder, {tmp_path}/desk: ")


@pytest.mark.parametrize(("is_past", "level"), [(False, "warning"), (True, "ok")])
def test_earlier_workspace_warns_until_bundle_has_instances(is_past: bool, level: str) -> None:
    found = EarlierWorkspace("default", "directories of instances in /x (1)", is_past)

    [check] = doctor.earlier_workspace_check(found)

    assert (check.level, check.message) == (
        level,
        "Workspace 'default', of an earlier version of the programs or of the bundle, still exists: "
        "directories of instances in /x (1).",
    )
    assert check.remedy is not None
    assert "--workspace default" in check.remedy
    assert doctor.earlier_workspace_check(None) == []


def test_two_state_roots_of_agent_are_problem() -> None:
    workers = [worker("a", ("coder", "planner")), worker("b", ("coder",), root_id="other")]

    [check] = faults(*workers)

    assert (check.name, check.level) == ("state roots", "problem")
    assert check.message == "workers of coder see different files: a and b"


def test_local_workdir_allows_agent_many_state_roots() -> None:
    workers = [
        worker("a", ("coder", "planner"), local_workdir=("coder",)),
        worker("b", ("coder",), local_workdir=("coder",), root_id="other"),
    ]

    assert faults(*workers) == []


def test_workers_serving_catalog_unlike_ours_are_warning() -> None:
    announced = {"coder": agent("coder", "old__tool"), "planner": AGENTS["planner"]}

    checks = fleet_checks(AGENTS, announced, [worker("a", ("coder", "planner"))])

    [check] = [check for check in checks if check.level != "ok"]
    assert (check.name, check.level) == ("catalog of coder", "warning")


def test_extension_tools_do_not_make_catalog_different() -> None:
    weather = {"name": "weather__get", "source": {"type": "extension", "name": "weather"}}
    catalog = (*AGENTS["coder"].catalog, weather)
    announced = {**AGENTS, "coder": AGENTS["coder"].model_copy(update={"catalog": catalog})}

    checks = fleet_checks(AGENTS, announced, [worker("a", ("coder", "planner"))])

    assert [check for check in checks if check.level != "ok"] == []


def test_without_any_agent_there_is_one_warning() -> None:
    [check] = fleet_checks({}, {}, [])

    assert (check.name, check.level) == ("agents", "warning")


def serving(name: str, *servers: McpServerRecord) -> WorkerRecord:
    return WorkerRecord(
        name=name,
        pid=1,
        host="h",
        agents=("clerk",),
        concurrency=8,
        root_id="r",
        started_at="2026-02-01T10:00:00.000Z",
        mcp_servers=servers,
    )


def server(name: str = "time", *, reason: str | None = None, failures: int = 0) -> McpServerRecord:
    return McpServerRecord(
        agent="clerk", name=name, is_up=reason is None, tools=2, failures=failures, reason=reason
    )


def test_mcp_check_is_silent_without_servers() -> None:
    assert list(mcp_server_checks([serving("one")])) == []


def test_server_that_is_up_everywhere_is_ok() -> None:
    [check] = mcp_server_checks([serving("one", server(failures=1)), serving("two", server(failures=2))])

    assert (check.name, check.level, check.message) == (
        "MCP server time of clerk",
        "ok",
        "2 tools; lost 3 times",
    )


def test_tools_that_server_offers_in_vain_are_warning() -> None:
    partial = server().model_copy(
        update={"left_out": {"odd": "its inputSchema is not the schema of an object"}}
    )

    [check] = mcp_server_checks([serving("one", partial), serving("two", server())])

    assert (check.level, check.message) == (
        "warning",
        "tools are left out: odd: its inputSchema is not the schema of an object",
    )
    assert check.remedy


def test_server_that_is_down_is_warning_with_reason() -> None:
    bad = server("git", reason="it ended with exit status 1; it is started again in 4 s")

    git, time = mcp_server_checks([serving("one", server(), bad)])

    assert (git.level, git.message) == (
        "warning",
        "down in one: it ended with exit status 1; it is started again in 4 s",
    )
    assert git.remedy
    assert (time.level, time.message) == ("ok", "2 tools; never lost")


def test_mcp_server_check_counts_workers_with_server_down() -> None:
    [check] = mcp_server_checks([serving("one", server()), serving("two", server(reason="no answer"))])

    assert check.message == "down in 1 of 2 workers; in two: no answer"


def test_record_of_older_worker_says_nothing_of_servers() -> None:
    wire = {key: value for key, value in serving("one").to_wire().items() if key != "mcpServers"}

    assert list(mcp_server_checks([WorkerRecord.from_wire(wire)])) == []


TIME = "2026-01-01T00:00:00.000Z"
IN_WORKSPACES = {
    name: AgentRecord(name=name, swarm="default", workspace=workspace)
    for name, workspace in (("lizard", "den"), ("heron", "pond"))
}


def running(name: str, ref: str | None, agent: str = "lizard") -> WorkerRecord:
    return WorkerRecord(
        name=name,
        pid=1,
        host="h",
        agents=(agent,),
        concurrency=8,
        root_id="r",
        started_at=TIME,
        bundle_ref=ref,
    )


def test_revision_check_is_silent_without_followed_revisions() -> None:
    assert list(revision_checks({}, IN_WORKSPACES, [running("one", None)])) == []


def test_workers_all_running_active_revision_are_ok() -> None:
    workers = [
        running("one", "r1"),
        running("two", "r1"),
        running("elsewhere", "r9", "heron"),
    ]
    [check] = revision_checks({"den": RevisionState(active="r1")}, IN_WORKSPACES, workers)
    assert (check.name, check.level, check.message) == ("revision of den", "ok", "r1 is active")


def test_those_that_run_another_one_are_named() -> None:
    workers = [
        running("one", "r1"),
        running("two", "r0"),
        running("old", None),
    ]
    [check] = revision_checks({"den": RevisionState(active="r1")}, IN_WORKSPACES, workers)
    assert check.level == "warning"
    assert check.message == "r1 is active, but two runs r0, old runs the bundle it started with"


def test_proposed_and_failed_revisions_are_reported() -> None:
    state = RevisionState(
        active="r1",
        proposed=RevisionChange(new_ref="r3", timestamp=TIME),
        failed=RevisionFailure(ref="r2", code="E_EXT_INIT", reason="no ear", worker="7@h", timestamp=TIME),
    )
    _, proposed, failed = revision_checks({"den": state}, IN_WORKSPACES, [running("one", "r1")])
    assert proposed.level == failed.level == "warning"
    assert "r3 was proposed" in proposed.message
    assert "r2 could not be loaded by 7@h" in failed.message
    assert "E_EXT_INIT: no ear" in failed.message


def test_failed_but_now_active_revision_is_ok() -> None:
    failed = RevisionFailure(ref="r1", code="E_EXT_INIT", reason="no ear", worker="7@h", timestamp=TIME)
    [check] = revision_checks({"den": RevisionState(active="r1", failed=failed)}, IN_WORKSPACES, [])
    assert check.level == "ok"


ABLE = agent("coder", "bash__exec")
#: driven by a producer, without tools
DRIVEN = AgentRecord(name="coder", swarm="default", workspace="den")


def idle(record: AgentRecord, *, is_orchestrated: bool = False, **figures: int) -> AgentStatus:
    """Return the status of an agent without workers."""
    queue = queue_status(record.name, **figures)
    return AgentStatus(record, [], queue, CrashBackoff(), is_orchestrated=is_orchestrated, now=0)


@pytest.mark.parametrize(
    ("status", "level"),
    [
        (idle(ABLE), "warning"),
        (idle(ABLE, is_orchestrated=True), "ok"),
        (idle(ABLE, is_orchestrated=True, backlog=1), "warning"),
        (idle(DRIVEN), "ok"),
        (
            idle(DRIVEN, backlog=1, events=1),
            "ok",
        ),
        (idle(DRIVEN, backlog=1), "warning"),
    ],
)
def test_agent_needing_missing_workers_is_warning(status: AgentStatus, level: str) -> None:
    agents = {"coder": status.record}

    [check] = fleet_checks(agents, agents, [], statuses=[status])

    assert (check.name, check.level) == ("workers of coder", level)


def test_dead_letters_are_warning_with_listing_command() -> None:
    [check] = dead_letter_checks([idle(ABLE, dead_letters=2), idle(agent("clerk"))])

    assert (check.name, check.level) == ("dead letters of coder", "warning")
    assert check.message.startswith("2 calls killed workers")
    assert "goondan dead-letters list --agent coder" in (check.remedy or "")


def test_recently_lost_calls_warn_with_their_outcome() -> None:
    losses = [
        Settlement("c1", "coder", REQUEUED, "w1"),
        Settlement("c2", "coder", "E_TOOL_OUTCOME_UNKNOWN", "w2"),
        Settlement("c3", "clerk", REQUEUED, "w1"),
    ]

    clerk, coder = past_loss_checks(losses, 3600)

    assert (clerk.name, clerk.level) == ("lost calls of clerk", "warning")
    assert "when leases of w1, w2 ended (it died, was frozen, or lost Redis)" in coder.message
    assert coder.message.endswith("1 E_TOOL_OUTCOME_UNKNOWN, 1 run again")
    assert "goondan show c2" in (coder.remedy or "")


def test_missing_swarm_is_problem_beside_other_checks() -> None:
    with fakeredis.FakeRedis() as redis:
        checks = doctor._agent_registry_checks(redis, Settings(swarm="nope"), load_bundle(EXAMPLE))

    assert ("swarm", "problem") in [(check.name, check.level) for check in checks]
    assert len(checks) > 1


@pytest.mark.parametrize("kind", ["string", "list"])
def test_damaged_revision_record_is_problem_naming_key(kind: str) -> None:
    bundle = load_bundle(EXAMPLE)
    workspace = describe_agents(bundle, None, None)[0].workspace
    key = Keys().revision(workspace)
    with fakeredis.FakeRedis() as redis:
        redis.set(key, '{"v": 1, "act') if kind == "string" else redis.rpush(key, "odd")
        checks = doctor._agent_registry_checks(redis, Settings(), bundle)

    [check] = [check for check in checks if check.name == f"revision of {workspace}"]
    assert check.level == "problem"
    assert key in check.message
    assert "redis-cli DEL" in (check.remedy or "")


def schedule_state(**fields: Any) -> ScheduleState:
    one = Schedule(name="nightly", owner="shop", every="1h", agent="coder")
    return ScheduleState.model_validate({"schedule": one, "due_at": iso_time(NOW + 60_000), **fields})


@pytest.mark.parametrize(
    ("fields", "level", "message"),
    [
        ({}, "ok", "next "),
        ({"missed": 3}, "ok", "3 slots missed"),
        ({"due_at": None}, "ok", "next never"),
        ({"due_at": iso_time(NOW - 61_000)}, "warning", "no worker fires it"),
        ({"due_at": None, "paused": SchedulePause(reason="loops")}, "warning", "paused: loops"),
        ({"last_error": "E_MODEL: no answer", "last_id": "c1"}, "warning", "failed last: E_MODEL"),
    ],
)
def test_schedule_is_checked(fields: dict[str, Any], level: str, message: str) -> None:
    [check] = schedule_checks([schedule_state(**fields)], NOW)

    assert (check.name, check.level) == ("schedule shop/nightly", level)
    assert message in check.message
    assert bool(check.remedy) == (level != "ok")
