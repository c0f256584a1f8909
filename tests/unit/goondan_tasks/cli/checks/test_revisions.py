"""What doctor says of the revisions of bundles."""

from goondan_tasks.cli.checks.revisions import revision_checks
from goondan_tasks.revisions.active import RevisionChange, RevisionFailure, RevisionState
from goondan_tasks.roster import AgentRecord, WorkerRecord

TIME = "2026-01-01T00:00:00.000Z"
AGENTS = {
    name: AgentRecord(name=name, swarm="default", workspace=workspace)
    for name, workspace in (("lizard", "den"), ("heron", "pond"))
}


def worker(name: str, ref: str | None, agent: str = "lizard") -> WorkerRecord:
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


def test_where_no_revision_is_followed_nothing_is_said() -> None:
    assert revision_checks({}, AGENTS, [worker("one", None)]) == []


def test_workers_that_all_run_what_is_active_are_ok() -> None:
    workers = [worker("one", "r1"), worker("two", "r1"), worker("elsewhere", "r9", "heron")]
    [check] = revision_checks({"den": RevisionState(active="r1")}, AGENTS, workers)
    assert (check.name, check.level, check.message) == ("revision of den", "ok", "r1 is active")


def test_those_that_run_another_one_are_named() -> None:
    workers = [worker("one", "r1"), worker("two", "r0"), worker("old", None)]
    [check] = revision_checks({"den": RevisionState(active="r1")}, AGENTS, workers)
    assert check.level == "warning"
    assert check.message == "r1 is active, but two runs r0, old runs what it started with"


def test_what_is_proposed_and_what_has_failed_is_said() -> None:
    state = RevisionState(
        active="r1",
        proposed=RevisionChange(new_ref="r3", timestamp=TIME),
        failed=RevisionFailure(ref="r2", code="E_EXT_INIT", reason="no ear", worker="7@h", timestamp=TIME),
    )
    _, proposed, failed = revision_checks({"den": state}, AGENTS, [worker("one", "r1")])
    assert proposed.level == failed.level == "warning"
    assert "r3 was proposed" in proposed.message
    assert "r2 could not be loaded by 7@h" in failed.message
    assert "E_EXT_INIT: no ear" in failed.message


def test_what_has_failed_once_and_is_active_now_is_no_failure() -> None:
    failed = RevisionFailure(ref="r1", code="E_EXT_INIT", reason="no ear", worker="7@h", timestamp=TIME)
    [check] = revision_checks({"den": RevisionState(active="r1", failed=failed)}, AGENTS, [])
    assert check.level == "ok"
