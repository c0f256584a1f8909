"""The revisions of one process: loaded once, used by calls, closed when they are unused."""

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from goondan_tasks.contract.calls import new_call
from goondan_tasks.contract.errors import BundleRevisionUnavailableError, ConfigError, ExtensionInitError
from tests.unit.workers.revisions.fake_revisions import Factory, run
from tests.unit.workers.runs import job_of
from tests.waiting import wait_until
from workers.job import JobState
from workers.revisions.revisions import AGAIN_SECONDS, JUST_USED_SECONDS, MOST_UNUSED, UNUSED_SECONDS


@pytest.fixture
def factory() -> Factory:
    return Factory()


def test_call_runs_with_named_or_active_revision(factory: Factory) -> None:
    revisions = factory.revisions()
    assert [run(revisions, ref) for ref in ("r1", "r2", None)] == ["r1", "r2", "r1"]
    revisions.activate("r2")
    assert [run(revisions, ref) for ref in ("r1", "r2", None)] == ["r1", "r2", "r2"]
    assert factory.fetched == ["r2"]


def test_many_calls_load_revision_once(factory: Factory) -> None:
    revisions = factory.revisions()
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda _: run(revisions, "r2"), range(32)))
    assert set(results) == {"r2"}
    assert factory.fetched == ["r2"]


def test_new_revision_is_prepared_for_whom_process_serves(factory: Factory) -> None:
    revisions = factory.revisions()
    revisions.of("r2")
    revisions.serve("lizard")
    revisions.serve("lizard", "newt")
    assert [one.prepared for one in factory.made] == [["lizard", "newt"], []]
    revisions.of("r2")
    assert [one.prepared for one in factory.made] == [["lizard", "newt"], ["lizard", "newt"]]


def test_revision_activated_amid_preparation_covers_new_agents(
    factory: Factory,
) -> None:
    revisions = factory.revisions()
    revisions.serve("lizard")
    factory.made[0].amid_preparing = lambda: revisions.activate("r2")
    revisions.serve("newt")
    assert revisions.active.ref == "r2"
    assert factory.made[1].prepared == ["lizard", "newt"]


def test_revision_loaded_amid_serving_covers_new_agents(
    factory: Factory,
) -> None:
    revisions = factory.revisions()
    revisions.serve("lizard")
    revisions.of("r2")
    load = revisions.of

    def load_late(ref: str) -> Any:
        revision = load(ref)
        revisions.serve("newt")
        return revision

    revisions.of = load_late  # type: ignore[method-assign, assignment]
    assert revisions.activate("r2") is revisions.active
    assert factory.made[1].prepared == ["lizard", "newt"]


def test_reloaded_revision_becomes_active_not_closed_original(
    factory: Factory,
) -> None:
    revisions = factory.revisions()
    load, given = revisions.of, [revisions.of("r2")]

    def load_late(ref: str) -> Any:
        return given.pop() if given else load(ref)

    factory.now += 2 * UNUSED_SECONDS
    revisions.close_unused()
    again = load("r2")
    revisions.of = load_late  # type: ignore[method-assign, assignment]
    assert revisions.activate("r2") is again


def test_unavailable_revision_is_error_of_its_calls(factory: Factory) -> None:
    factory.missing = {"r2"}
    with pytest.raises(BundleRevisionUnavailableError):
        run(factory.revisions(), "r2")


def test_missing_revision_is_requested_again_only_later(factory: Factory) -> None:
    factory.missing = {"r2"}
    revisions = factory.revisions()
    for _ in range(3):
        with pytest.raises(BundleRevisionUnavailableError):
            revisions.of("r2")
    assert factory.fetched == ["r2"]
    factory.now += AGAIN_SECONDS
    factory.missing = set()
    assert revisions.of("r2").ref == "r2"


def test_load_failure_keeps_nothing_loaded_so_far(factory: Factory) -> None:
    factory.faults["r2"] = ExtensionInitError("no ear", suggestion="Give it one.")
    revisions = factory.revisions()
    revisions.serve("lizard")
    with pytest.raises(ExtensionInitError):
        revisions.of("r2")
    factory.faults.clear()
    loaded = weakref.ref(factory.made.pop())
    gc.collect()
    assert loaded() is None
    with pytest.raises(ConfigError, match="no ear") as again:
        revisions.of("r2")
    assert (again.value.code, again.value.suggestion) == ("E_EXT_INIT", "Give it one.")


def test_outdated_failures_are_not_kept(factory: Factory) -> None:
    names = [f"x{number}" for number in range(3)]
    factory.missing = set(names)
    revisions = factory.revisions()
    for name in names:
        factory.now += AGAIN_SECONDS
        with pytest.raises(BundleRevisionUnavailableError):
            revisions.of(name)
    assert list(revisions.failures._failed) == names[-1:]


def test_unpreparable_revision_is_closed_and_not_kept(factory: Factory) -> None:
    factory.faults["r2"] = ExtensionInitError("no")
    revisions = factory.revisions()
    revisions.serve("lizard")
    with pytest.raises(ExtensionInitError):
        revisions.activate("r2")
    assert (revisions.active.ref, factory.alive()) == ("r1", {"r1"})


@pytest.mark.parametrize(
    ("fault", "told"),
    [
        (RuntimeError("odd"), ConfigError),
        (SystemExit(3), ConfigError),
        (OSError(28, "No space left on device"), BundleRevisionUnavailableError),
        (MemoryError(), BundleRevisionUnavailableError),
    ],
)
def test_failed_load_leaves_nothing_and_is_not_repeated(
    factory: Factory, fault: BaseException, told: type[Exception]
) -> None:
    factory.faults["r2"], factory.misfits["r3"] = fault, fault
    revisions = factory.revisions()
    revisions.serve("lizard")
    for ref in ("r2", "r3", "r2", "r3"):
        with pytest.raises(told, match=f"{ref} cannot be loaded: {type(fault).__name__}"):
            revisions.of(ref)
    assert (factory.alive(), factory.fetched, factory.open_checkouts) == ({"r1"}, ["r2", "r3"], 0)


def test_unclosable_revision_does_not_keep_others(factory: Factory) -> None:
    def refuse() -> None:
        raise RuntimeError("no")

    revisions = factory.revisions("r0")
    for ref in ("r1", "r2", "r3"):
        revisions.activate(ref)
    factory.made[2].close = refuse  # type: ignore[method-assign]
    factory.now += 2 * UNUSED_SECONDS
    revisions.close_unused()
    wait_until(lambda: factory.alive() == {"r2", "r3"})


def test_unused_revision_is_closed_after_while(factory: Factory) -> None:
    revisions = factory.revisions()
    revisions.activate("r2")
    factory.now += UNUSED_SECONDS
    revisions.close_unused()
    factory.now += 1
    revisions.close_unused()
    wait_until(lambda: factory.alive() == {"r2"})
    factory.now += 2 * UNUSED_SECONDS
    revisions.close_unused()
    assert run(revisions) == "r2"


def test_only_few_just_used_revisions_are_kept(factory: Factory) -> None:
    revisions = factory.revisions("r0")
    for number in range(1, 20):
        factory.now += 0.01
        revisions.activate(f"r{number}")
    revisions.close_unused()
    factory.now += JUST_USED_SECONDS + 0.1
    revisions.close_unused()
    kept = {f"r{number}" for number in range(19 - MOST_UNUSED, 20)}
    wait_until(lambda: factory.alive() == kept)


def test_revision_stays_open_during_calls_and_steps(factory: Factory) -> None:
    revisions = factory.revisions()
    first = factory.made[0]

    def retire() -> None:
        revisions.activate("r2")
        factory.now += 10 * UNUSED_SECONDS
        revisions.close_unused()

    first.amid = retire
    assert run(revisions) == "r1"
    first.steps.are_closed = False
    factory.now += 10 * UNUSED_SECONDS
    revisions.close_unused()
    assert "r1" in factory.alive()
    first.steps.are_closed = True
    revisions.close_unused()
    wait_until(lambda: factory.alive() == {"r2"})


def test_call_begins_at_once_keeping_active_revision_open(factory: Factory) -> None:
    revisions = factory.revisions()
    job = job_of(new_call("lizard", "skin__colour", {}, {}).model_copy(update={"bundle_ref": "r1"}))
    assert revisions.loaded(job) is revisions.active
    revisions.activate("r2")
    assert revisions.loaded(job) is None
    factory.now += 10 * UNUSED_SECONDS
    revisions.close_unused()
    assert factory.alive() == {"r1", "r2"}
    job.state = JobState.ENDED
    revisions.close_unused()
    factory.now += UNUSED_SECONDS + 1
    revisions.close_unused()
    wait_until(lambda: factory.alive() == {"r2"})


def test_unreleased_call_is_forgotten_with_last_reference(factory: Factory) -> None:
    revisions = factory.revisions()
    revisions.loaded(job_of(new_call("lizard", "skin__colour", {}, {})))
    revisions.activate("r2")
    factory.now += UNUSED_SECONDS + 1
    revisions.close_unused()
    wait_until(lambda: factory.alive() == {"r2"})


def test_without_following_revisions_only_calls_naming_none_begin(factory: Factory) -> None:
    revisions = factory.revisions(None)
    calls = [
        new_call("lizard", "skin__colour", {}, {}).model_copy(update={"bundle_ref": r}) for r in (None, "r1")
    ]
    assert [revisions.loaded(job_of(call)) for call in calls] == [revisions.active, None]


def test_closed_revision_is_loaded_again_for_late_call(factory: Factory) -> None:
    revisions = factory.revisions()
    revisions.activate("r2")
    factory.now += 2 * UNUSED_SECONDS
    revisions.close_unused()
    assert run(revisions, "r1") == "r1"
    assert factory.fetched == ["r2", "r1"]


@pytest.mark.parametrize(
    ("tool", "ref", "is_one"),
    [
        ("goondan__step", None, True),
        ("goondan__event", None, True),
        ("goondan__delegate", None, True),
        ("goondan__event", "r1", False),
        ("skin__colour", None, False),
    ],
)
def test_beginning_step_or_turn_reaches_safe_point(
    factory: Factory, tool: str, ref: str | None, is_one: bool
) -> None:
    revisions = factory.revisions()
    revisions.reach_safe_point = lambda: revisions.activate("r2")
    assert run(revisions, ref, tool) == ("r2" if is_one else "r1")


def test_without_following_revisions_no_safe_point_is_reached(factory: Factory) -> None:
    revisions = factory.revisions(None)
    revisions.reach_safe_point = lambda: pytest.fail("looked")
    assert run(revisions, None, "goondan__event") is None
    revisions.close_unused()
    assert factory.alive() == {None}


def test_claimed_call_keeps_revision_fixed_at_safe_point(factory: Factory) -> None:
    revisions = factory.revisions()
    revisions.reach_safe_point = lambda: revisions.activate("r2")
    fixed = revisions.fixed(new_call("lizard", "goondan__event", {}, {}))
    revisions.reach_safe_point = lambda: revisions.activate("r3")
    assert fixed.bundle_ref == "r2"
    assert revisions.fixed(fixed) is fixed
    assert run(revisions, fixed.bundle_ref, "goondan__event") == "r2"


def test_where_revisions_are_not_followed_none_is_fixed(factory: Factory) -> None:
    revisions = factory.revisions(None)
    revisions.reach_safe_point = lambda: pytest.fail("looked")
    call = new_call("lizard", "goondan__event", {}, {})
    assert revisions.fixed(call) is call
