"""Where a bundle lives."""

from pathlib import Path

from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle
from goondan_tasks.revisions.bootstrap import workspace_of
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, write

SWARMS = "".join(
    "---\napiVersion: goondan.ai/v1\nkind: Swarm\n"
    f'metadata: {{ name: {name} }}\nspec: {{ entryAgent: "Agent/coder", agents: ["Agent/coder"] }}\n'
    for name in ("default", "lair")
)


def test_a_bundle_lives_where_the_settings_say_else_by_the_name_of_its_swarm(tmp_path: Path) -> None:
    bundle = load_bundle(write(tmp_path, {"goondan.yaml": f"{TOOL}---\n{AGENT}{SWARMS}"}))

    assert workspace_of(bundle, Settings.load()) == "default"
    assert workspace_of(bundle, Settings.load(swarm="lair")) == "lair"
    assert workspace_of(bundle, Settings.load(swarm="lair", workspace="den")) == "den"
