from pathlib import Path

from benchmarks.bundle_copy import BUNDLE, bundle_with
from benchmarks.shape import HANDOFF_QUEUES, LAYERED_QUEUES, STOCKED_QUEUE, USUAL_QUEUE, many_queues
from goondan_tasks.bundle import load_bundle


def test_the_bundle_itself_serves_the_usual_queue(tmp_path: Path) -> None:
    bundle = bundle_with([USUAL_QUEUE], tmp_path)

    assert bundle == BUNDLE
    names = (USUAL_QUEUE, *HANDOFF_QUEUES, *LAYERED_QUEUES, STOCKED_QUEUE)
    assert load_bundle(bundle).agent_names(None) == names


def test_a_copy_has_an_agent_for_each_of_many_queues(tmp_path: Path) -> None:
    names = many_queues(200)

    bundle = load_bundle(bundle_with(names, tmp_path))

    assert set(names) <= set(bundle.agent_names(None))
    assert set(bundle.bound_tools(names[199])) == {"bench__noop", "bench__sleep"}
