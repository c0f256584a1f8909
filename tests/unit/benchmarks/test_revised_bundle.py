from pathlib import Path

from benchmarks.revised_bundle import other_refs, revised_bundle
from goondan_tasks.bundle import load_bundle
from goondan_tasks.revisions.checkouts import Checkouts, RevisionSource
from goondan_tasks.revisions.content import BundleRef


def test_each_revision_can_be_checked_out_and_has_a_tool_of_its_own(tmp_path: Path) -> None:
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
