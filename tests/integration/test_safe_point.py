"""Workers follow the revisions of their bundle: two machines, one remote, one Redis."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.revisions.active import CHANGED
from tests.integration.goondan_process import environment, goondan
from tests.integration.machines import WORKSPACE, Machines, colour
from tests.waiting import wait_until

PATIENCE = 60
LOST = f"git:{'0' * 40}"


@pytest.fixture(scope="module")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machines]:
    with Machines(tmp_path_factory.mktemp("machines")) as machines:
        machines.clone("late")
        machines.start("one", "lizard", "newt")
        machines.start("two", "lizard", "newt")
        yield machines


def outputs(machines: Machines, count: int = 20) -> set[object]:
    calls = [{"agentName": "lizard", "toolName": "skin__colour"}] * count
    return {call.result(PATIENCE).output for call in machines.client.submit_many(calls)}


def require_outputs(machines: Machines, colour: str) -> None:
    """Wait until all calls have an output: a producer looks once a second which revision is active."""
    wait_until(lambda: machines.client._active_refs.of(WORKSPACE) == machines.state.active)
    wait_until(lambda: outputs(machines) == {colour})


def test_two_machines_run_next_revision_without_restart(machines: Machines) -> None:
    machines.are_followed(machines.switch(colour("red")))

    require_outputs(machines, "red")


@pytest.mark.requirement("changeset.safe-point")
def test_running_call_keeps_revision_it_began_with(machines: Machines, tmp_path: Path) -> None:
    machines.are_followed(machines.switch(colour("before")))
    slow = machines.client.submit(
        "lizard", "skin__shed", {"until": str(tmp_path / "go")}, instance_key="running"
    )
    wait_until(machines.workdir("running").joinpath("shedding").exists)

    machines.are_followed(machines.switch(colour("after")))
    require_outputs(machines, "after")
    (tmp_path / "go").touch()

    assert slow.result(PATIENCE).output == ["before", "before"]


def test_revision_changes_lose_or_fail_no_call(machines: Machines) -> None:
    results: list[ToolCallResult] = []
    is_over = threading.Event()

    def produce() -> None:
        while not is_over.wait(0.2):
            calls = [{"agentName": "lizard", "toolName": "skin__colour"}] * 20
            results.extend(call.result(30) for call in machines.client.submit_many(calls))

    def has_run(shade: str) -> bool:
        return any(result.output == shade for result in list(results))

    producer = threading.Thread(target=produce)
    producer.start()
    for number in range(3):
        machines.switch(colour(f"shade-{number}"))
        # a producer looks once a second which revision is active
        wait_until(lambda number=number: has_run(f"shade-{number}"))  # type: ignore[misc]
    is_over.set()
    producer.join(60)

    assert {result.status for result in results} == {"ok"}
    require_outputs(machines, "shade-2")


def test_step_keeps_revision_and_next_step_announces_new(machines: Machines) -> None:
    first = machines.switch(colour("old"))
    turn = machines.client.turn("lizard", "stepping")
    step = turn.step()
    second = machines.switch(colour("new"))
    asked = [{"id": "c", "name": "skin__colour", "args": {}}]

    [kept] = step.run(asked, timeout=PATIENCE)
    following = turn.step()
    [changed] = following.run(asked, timeout=PATIENCE)
    last = turn.step()

    assert (kept.output, changed.output) == ("old", "new")
    assert (step.record.bundle_ref, following.record.bundle_ref) == (first, second)
    assert [block["type"] for block in step.blocks] == []
    [block] = following.blocks
    assert (block["type"], block["data"]["previousRef"], block["data"]["newRef"]) == (CHANGED, first, second)
    assert last.blocks == ()


def test_entry_turn_takes_next_revision_with_next_step(machines: Machines, tmp_path: Path) -> None:
    machines.are_followed(machines.switch(colour("dawn")))
    go = [str(tmp_path / name) for name in ("first", "second")]
    answers: list[object] = []
    asking = threading.Thread(
        target=lambda: answers.append(
            machines.client.request("newt", go, instance_key="turning", timeout=60).response
        )
    )
    asking.start()
    wait_until(machines.workdir("turning").joinpath("step-0").exists)
    machines.switch(colour("dusk"))
    for path in go:
        Path(path).touch()
    asking.join(60)

    assert answers == [{"steps": [["dawn", []], ["dusk", [CHANGED]]], "outside": "dawn"}]


def test_extensions_and_committing_agent_learn_new_revision(machines: Machines) -> None:
    ref = machines.commit(colour("told"))
    machines.propose(ref, instance="committer")

    told = machines.workdir("committer") / "told"
    wait_until(lambda: told.exists() and told.read_text() == ref, show=machines.logs)

    for name in ("one", "two"):
        heard = machines.cache(name) / "heard"
        wait_until(lambda heard=heard: heard.exists() and ref in heard.read_text())  # type: ignore[misc]
        last = json.loads(heard.read_text().splitlines()[-1])
        assert (last["type"], last["newRef"], last["agentName"]) == (CHANGED, ref, "newt")
        assert heard.read_text().count(f'"newRef": "{ref}"') == 1


def test_unloadable_revision_stays_inactive_and_visibly_failed(machines: Machines) -> None:
    good = machines.switch({**colour("good")})
    ear = machines.author.committed("ear.py")
    bad = machines.commit({"ear.py": "def register(api):\n    raise ValueError('no ear')\n"})
    machines.propose(bad)

    def failed_ref() -> str | None:
        return machines.state.failed.ref if machines.state.failed else None

    wait_until(lambda: failed_ref() == bad, show=machines.logs)
    failed = machines.state.failed
    assert failed is not None and failed.code == "E_EXT_INIT" and "no ear" in failed.reason
    assert (machines.state.active, machines.state.proposed) == (good, None)
    require_outputs(machines, "good")

    doctor = goondan("doctor", "--json", env=environment(redis_url=machines.stack.redis_url))
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    assert bad in checks["failed revision"]["message"]
    machines.switch({"ear.py": ear, **colour("corrected")})
    require_outputs(machines, "corrected")


def test_bundle_that_is_not_valid_stays_inactive(machines: Machines) -> None:
    active = machines.state.active
    yaml = machines.author.committed("goondan.yaml")
    bad = machines.commit({"goondan.yaml": yaml.replace("Tool/skin", "Tool/scales")})
    machines.propose(bad)
    wait_until(lambda: machines.state.failed and machines.state.failed.ref == bad, show=machines.logs)

    assert machines.state.active == active
    machines.switch({"goondan.yaml": yaml})


def test_call_of_unavailable_revision_fails_with_reason(machines: Machines) -> None:
    call = {"agentName": "lizard", "toolName": "skin__colour"}
    refs = [LOST, f"sha256:{'0' * 64}", "HEAD", "git:--upload-pack=x", "../../etc"]
    pending = machines.client.submit_many([{**call, "bundleRef": ref} for ref in refs])

    codes = [result.error.code for one in pending if (result := one.result(60)).error is not None]
    assert codes == ["E_BUNDLE_REVISION_UNAVAILABLE"] * len(refs)
    assert len(outputs(machines)) == 1


def test_agent_removed_from_bundle_is_not_found(machines: Machines) -> None:
    yaml = machines.author.committed("goondan.yaml")
    ref = machines.switch(
        {
            "goondan.yaml": yaml.replace(', "Agent/newt"', "").replace(
                "metadata: { name: newt }", "metadata: { name: frog }"
            )
        }
    )
    machines.are_followed(ref)

    result = machines.client.call("newt", "skin__colour", timeout=30)
    assert result.error is not None and result.error.code == "E_AGENT_NOT_FOUND"
    machines.are_followed(machines.switch({"goondan.yaml": yaml, **colour("whole")}))
    assert machines.client.call("newt", "skin__colour", timeout=30).output == "whole"


def test_machine_with_old_clone_starts_active_revision(machines: Machines) -> None:
    active = machines.switch(colour("ahead"))
    worker = machines.start("late", "lizard")

    machines.are_followed(active)
    machines.stack.stop_worker(worker)


def test_worker_restarted_after_pull_proposes_later_commit(machines: Machines) -> None:
    ref = machines.commit(colour("pulled"))
    machines.clone("late").git("pull", "--quiet", "origin", "main")
    worker = machines.start("late", "lizard")

    machines.are_followed(ref)
    require_outputs(machines, "pulled")
    machines.stack.stop_worker(worker)


def test_worker_killed_during_switch_costs_no_call(machines: Machines) -> None:
    calls = [{"agentName": "lizard", "toolName": "skin__colour"}] * 200
    ref = machines.commit(colour("killed"))
    pending = machines.client.submit_many(calls)
    machines.propose(ref)
    victim = machines.stack.workers[0]
    victim.kill()
    victim.wait(30)
    machines.stack._workers.remove(victim)

    results = [call.result(60) for call in pending]
    # a call that its worker had begun is not run again: how far it has come is not known
    codes = {result.error.code for result in results if result.error is not None}
    assert codes <= {"E_TOOL_OUTCOME_UNKNOWN"}
    wait_until(lambda: machines.state.active == ref, show=machines.logs)
    machines.start("one", "lizard", "newt")
    require_outputs(machines, "killed")


def test_worker_killed_while_loading_leaves_proposal_to_others(machines: Machines, tmp_path: Path) -> None:
    """The first child that imports the agent's entry waits, and its worker is killed."""
    machines.are_followed(machines.switch(colour("calm")))
    newt, place = machines.author.committed("newt.py"), str(tmp_path)
    waits = (
        "import os, pathlib, time\n"
        f"place = pathlib.Path({place!r})\n"
        "try:\n"
        "    mark = (place / 'loading').open('x')\n"
        "except FileExistsError:\n"
        "    pass\n"
        "else:\n"
        "    mark.write(str(os.getppid()))\n"
        "    mark.close()\n"
        "    while True:\n"
        "        time.sleep(0.01)\n"
    )
    ref = machines.commit({"newt.py": waits + newt, **colour("amid")})
    machines.propose(ref)
    loading = tmp_path / "loading"
    wait_until(lambda: loading.exists() and loading.read_text(), show=machines.logs)
    [victim] = [worker for worker in machines.stack.workers if worker.pid == int(loading.read_text())]
    victim.kill()
    victim.wait(30)
    machines.stack._workers.remove(victim)
    machines.end_claim_of_dead(ref)

    wait_until(lambda: machines.state.active == ref, show=machines.logs)
    require_outputs(machines, "amid")
    name = "one" if "-one-" in machines.stack._logs[victim.pid].name else "two"
    machines.start(name, "lizard", "newt")
    machines.switch({"newt.py": newt, **colour("after all")})


def test_machine_without_remote_continues_and_catches_up_later(machines: Machines) -> None:
    before = machines.switch(colour("reachable"))
    machines.are_followed(before)
    two = machines.clone("two")
    two.git("remote", "set-url", "origin", str(machines.place / "nowhere"))
    ref = machines.switch(colour("unreachable"))

    def refs() -> set[str | None]:
        return {worker.bundle_ref for worker in machines.client.workers()}

    wait_until(lambda: refs() == {before, ref}, show=machines.logs)
    require_outputs(machines, "unreachable")
    doctor = goondan("doctor", "--json", env=environment(redis_url=machines.stack.redis_url))
    checks = {check["name"]: check for check in json.loads(doctor.stdout)["checks"]}
    check = checks["revision of meadow"]
    assert check["level"] == "warning" and before in check["message"]

    two.git("remote", "set-url", "origin", str(machines.remote))
    machines.are_followed(ref)


def test_revision_unloadable_on_one_machine_runs_on_others(machines: Machines, tmp_path: Path) -> None:
    """Two fails after a moment in which calls have come that name the revision, and stands by."""
    ear, corrected = machines.author.committed("ear.py"), tmp_path / "corrected"
    trouble = (
        "\nimport pathlib, time\n"
        f"if 'cache-two' in __file__ and not pathlib.Path({str(corrected)!r}).exists():\n"
        "    time.sleep(1.2)\n"
        "    raise RuntimeError('no database here')\n"
    )
    ref = machines.commit({"ear.py": ear + trouble, **colour("elsewhere")})
    two = next(
        worker for worker in machines.stack.workers if "-two-" in machines.stack._logs[worker.pid].name
    )
    results: list[ToolCallResult] = []
    is_over = threading.Event()

    def produce() -> None:
        while not is_over.wait(0.2):
            calls = [{"agentName": "lizard", "toolName": "skin__colour"}] * 20
            results.extend(call.result(30) for call in machines.client.submit_many(calls))

    def times_stood_by() -> int:
        return machines.stack.log(two).count("worker.stands_by")

    before, producer = times_stood_by(), threading.Thread(target=produce)
    producer.start()
    try:
        two.send_signal(signal.SIGSTOP)  # the worker that tries a revision first decides for all
        machines.propose(ref)
        wait_until(lambda: machines.state.active == ref, show=machines.logs)
        two.send_signal(signal.SIGCONT)
        wait_until(lambda: times_stood_by() > before, show=machines.logs)
        corrected.touch()
        machines.are_followed(ref)
    finally:
        two.send_signal(signal.SIGCONT)
        is_over.set()
        producer.join(60)

    assert {result.error.message if result.error else None for result in results} == {None}
    assert machines.state.active == ref
    require_outputs(machines, "elsewhere")
    machines.switch({"ear.py": ear})


def test_machine_with_invalid_folder_starts_active_revision(machines: Machines) -> None:
    active = machines.switch(colour("valid"))
    broken = machines.clone("broken")
    yaml = broken.folder / "goondan.yaml"
    yaml.write_text(yaml.read_text().replace("Tool/skin", "Tool/scales"))
    worker = machines.start("broken", "lizard")

    machines.are_followed(active)
    assert "bundle.folder_not_valid" in machines.stack.log(worker)
    machines.stack.stop_worker(worker)
