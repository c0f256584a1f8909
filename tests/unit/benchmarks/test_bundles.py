from pathlib import Path

from benchmarks.bundles import BUNDLE, bundle_for, other_refs, revised_bundle
from benchmarks.systems import BUNDLED_QUEUES, Shape, many_queues
from goondan_tasks.bundle import load_bundle
from goondan_tasks.revisions.checkouts import BundleRef, Checkouts, RevisionSource


def test_usual_shape_runs_bundle_itself(tmp_path: Path) -> None:
    bundle = bundle_for(Shape(), tmp_path / "bundle")

    assert bundle == BUNDLE
    assert set(load_bundle(bundle).agent_names(None)) == BUNDLED_QUEUES


def test_copy_has_agent_for_each_of_many_queues(tmp_path: Path) -> None:
    names = many_queues(200)

    bundle = load_bundle(bundle_for(Shape(queues=names), tmp_path / "bundle"))

    assert set(names) <= set(bundle.agent_names(None))
    assert set(bundle.bound_tools(names[199])) == {
        "bench__noop",
        "bench__sleep",
        "bench__pause-short",
        "bench__pause-medium",
        "bench__pause-long",
    }


def test_each_revision_checks_out_with_own_tool(tmp_path: Path) -> None:
    bundle = revised_bundle(tmp_path / "bundle", 3)
    source, refs = RevisionSource.of(bundle), other_refs(bundle)
    checkouts = Checkouts(tmp_path / "cache", source)

    tools = set()
    for ref in refs:
        with checkouts.open(BundleRef.parse(ref)) as checkout:
            assert load_bundle(checkout.path).swarm(None).spec.policy.changesets.enabled
            tools.add((checkout.path / "tools" / "bench.py").read_text(encoding="utf-8"))

    assert len(tools) == len(refs) == 3
    assert str(source.current()) not in refs
