"""The resources that an agent runs with, as older extensions see them (002 §5.3)."""

from pathlib import Path

from goondan_tasks.bundle import load_bundle
from tests.unit.goondan_tasks.bundle.writing import write
from workers.v1.views import effective_config

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: clerk }
spec:
  tools: ["Tool/bash"]
  extensions:
    - { ref: Extension/log, config: { level: 2 } }
    - { ref: Extension/tool-search }
---
apiVersion: agents.example.io/v1alpha1
kind: Extension
metadata: { name: log, labels: { tier: own } }
spec: { entry: ./log.py, config: { level: 1 } }
"""


def test_extensions_have_config_given_by_agent(tmp_path: Path) -> None:
    files = {"goondan.yaml": BUNDLE, "log.py": "def register(api): pass\n"}
    bundle = load_bundle(write(tmp_path, files))

    config = effective_config(bundle, bundle.swarm(), bundle.agents["clerk"])

    log, built_in = config.extensions
    assert (log.metadata.labels, log.spec.config, log.is_v1) == ({"tier": "own"}, {"level": 2}, True)
    assert (built_in.metadata.name, built_in.kind, built_in.is_v1) == ("tool-search", "Extension", False)
    assert bundle.extensions["log"].spec.config == {"level": 1}
    assert [tool.metadata.name for tool in config.tools] == ["bash"]
    assert (config.swarm.name, config.agent.name, config.revision) == ("default", "clerk", None)
