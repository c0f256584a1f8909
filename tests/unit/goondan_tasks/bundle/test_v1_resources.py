"""Resources of the older version, beside today's."""

from pathlib import Path

from goondan_tasks.bundle import Bundle, inspect_bundle
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, write
from workers.testing import run_tool

HANDLERS = """\
def add(ctx, input):
    return {"result": input["a"] + input["b"]}


handlers = {"calc.add": add, "calc.multiply": lambda ctx, input: {"result": input["a"] * input["b"]}}
"""
CALCULATOR = """\
apiVersion: agents.example.io/v1alpha1
kind: Tool
metadata: { name: calculator }
spec:
  runtime: python
  entry: ./calc.py
  timeoutSeconds: 9
  exports:
    - { name: calc.add, description: Adds., parameters: { type: object } }
    - { name: calc.multiply, parameters: { type: object }, timeoutSeconds: 3 }
"""
V1_AGENT = """\
apiVersion: agents.example.io/v1alpha1
kind: Agent
metadata: { name: clerk }
spec:
  modelConfig: { modelRef: { kind: Model, name: gpt }, params: { temperature: 0.5 } }
  prompts: { system: You count. }
  tools: [{ kind: Tool, name: calculator }, { kind: Tool, name: echo }]
  extensions: [{ kind: Extension, name: log }]
"""
V1_SWARM = """\
apiVersion: agents.example.io/v1alpha1
kind: Swarm
metadata: { name: default }
spec:
  entrypoint: { kind: Agent, name: clerk }
  agents: [{ kind: Agent, name: clerk }, Agent/coder]
  policy:
    maxStepsPerTurn: 7
    queueMode: serial
"""
V1_OTHERS = """\
apiVersion: agents.example.io/v1alpha1
kind: Extension
metadata: { name: log }
spec: { runtime: python, entry: ./log.py, config: { level: 1 } }
---
apiVersion: agents.example.io/v1alpha1
kind: Model
metadata: { name: gpt }
spec: { provider: openai, name: gpt-9 }
---
apiVersion: agents.example.io/v1alpha1
kind: Connector
metadata: { name: slack }
spec: { runtime: node, entry: ./slack.js, triggers: [{ handler: onMessage }] }
---
apiVersion: agents.example.io/v1alpha1
kind: Connection
metadata: { name: chat }
spec: { connectorRef: { kind: Connector, name: slack } }
"""
FILES = {"calc.py": HANDLERS, "log.py": "def register(api):\n    pass\n"}
ALL = "---\n".join(
    [CALCULATOR, TOOL, V1_AGENT, AGENT.replace("Tool/echo", "Tool/calculator"), V1_SWARM, V1_OTHERS]
)


def bundle(tmp_path: Path, text: str = ALL) -> Bundle:
    """Return the bundle that ``text`` declares."""
    found, findings = inspect_bundle(write(tmp_path, {**FILES, "goondan.yaml": text}))
    assert found is not None, findings
    assert findings == []
    return found


def test_resources_of_both_versions_stand_in_one_bundle_and_use_each_other(tmp_path: Path) -> None:
    found = bundle(tmp_path)

    assert [found.tools[name].is_v1 for name in ("calculator", "echo")] == [True, False]
    assert list(found.bound_tools("clerk")) == ["calc.add", "calc.multiply", "echo__run"]
    assert [tool.is_v1 for tool in found.bound_tools("clerk").values()] == [True, True, False]
    assert list(found.bound_tools("coder")) == ["calc.add", "calc.multiply"]
    assert found.bound_tools("clerk")["calc.multiply"].export.timeout_seconds == 3
    assert found.bound_tools("clerk")["calc.add"].export.timeout_seconds == 9
    [extension] = found.bound_extensions("clerk")
    assert (extension.name, extension.is_v1, extension.config) == ("log", True, {"level": 1})
    assert found.swarm().spec.entry_agent.name == "clerk"
    assert found.swarm().spec.policy.max_steps_per_turn == 7


def test_an_older_tool_is_called_by_its_dotted_name(tmp_path: Path) -> None:
    found = bundle(tmp_path)

    assert run_tool(found, "coder", "calc.add", {"a": 1, "b": 2}).output == {"result": 3}
    assert run_tool(found, "coder", "calc.multiply", {"a": 6, "b": 7}).output == {"result": 42}


def test_a_resource_is_written_as_it_may_be_read(tmp_path: Path) -> None:
    agent = bundle(tmp_path).agents["clerk"]

    wire = agent.model_dump(mode="json", by_alias=True, exclude_unset=True)

    assert wire["spec"]["tools"] == [
        {"kind": "Tool", "name": "calculator"},
        {"kind": "Tool", "name": "echo"},
    ]
    assert type(agent).model_validate(wire) == agent
