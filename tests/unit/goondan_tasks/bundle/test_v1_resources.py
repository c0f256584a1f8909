"""Resources of the older version, beside today's."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import Bundle, build_catalog, inspect_bundle, load_bundle
from goondan_tasks.bundle.v1_resources import V1ToolSpec
from goondan_tasks.contract.calls import new_call
from goondan_tasks.ledger.limiter import Limits
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, found_in, told, write
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
spec: { type: slack, runtime: node, entry: ./slack.js, triggers: [{ handler: onMessage }] }
---
apiVersion: agents.example.io/v1alpha1
kind: Connection
metadata: { name: chat }
spec: { connectorRef: { kind: Connector, name: slack } }
"""
FILES = {"calc.py": HANDLERS, "log.py": "def register(api):\n    pass\n", "slack.js": ""}
ALL = "---\n".join(
    [CALCULATOR, TOOL, V1_AGENT, AGENT.replace("Tool/echo", "Tool/calculator"), V1_SWARM, V1_OTHERS]
)


def bundle(tmp_path: Path, text: str = ALL) -> Bundle:
    """Return the bundle that ``text`` declares."""
    found, findings = inspect_bundle(write(tmp_path, {**FILES, "goondan.yaml": text}))
    assert found is not None, findings
    assert findings == []
    return found


def test_resources_of_both_versions_use_each_other(tmp_path: Path) -> None:
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


def test_older_tool_is_called_by_its_dotted_name(tmp_path: Path) -> None:
    found = bundle(tmp_path)

    assert run_tool(found, "coder", "calc.add", {"a": 1, "b": 2}).output == {"result": 3}
    assert run_tool(found, "coder", "calc.multiply", {"a": 6, "b": 7}).output == {"result": 42}


def test_resource_is_written_as_it_may_be_read(tmp_path: Path) -> None:
    agent = bundle(tmp_path).agents["clerk"]

    wire = agent.model_dump(mode="json", by_alias=True, exclude_unset=True)

    assert wire["spec"]["tools"] == [
        {"kind": "Tool", "name": "calculator"},
        {"kind": "Tool", "name": "echo"},
    ]
    assert type(agent).model_validate(wire) == agent


def faults(tmp_path: Path, text: str) -> list[tuple[str, str, str]]:
    """Return the level, the path and the message of what is found in ``text``."""
    found = found_in(write(tmp_path, {**FILES, "goondan.yaml": text}))
    return [(finding.level, finding.path, finding.message) for finding in found]


@pytest.mark.requirement("v1.tool-spec")
def test_older_tool_with_all_fields_is_accepted(tmp_path: Path) -> None:
    text = slack("['chat:write']").replace("  entry:", "  errorMessageLimit: 77\n  entry:")

    spec = bundle(tmp_path, text).tools["calculator"].spec

    assert isinstance(spec, V1ToolSpec)
    assert (spec.runtime, spec.entry, spec.error_message_limit) == ("python", "./calc.py", 77)
    assert spec.auth is not None
    assert str(spec.auth.oauth_app_ref) == "OAuthApp/slack-bot"
    assert [export.name for export in spec.exports] == ["calc.add", "calc.multiply"]


@pytest.mark.requirement("v1.tool-spec")
@pytest.mark.parametrize(
    ("old", "new", "path", "message"),
    [
        (
            "runtime: python",
            "runtime: ruby",
            "spec.runtime",
            'the runtime "ruby" is not available',
        ),
        (
            "runtime: python",
            "runtime: 3",
            "spec.runtime",
            "the runtime 3 is not available",
        ),
        ("  runtime: python\n", "", "spec.runtime", "'runtime' is required"),
        ("  entry: ./calc.py\n", "", "spec.entry", "'entry' is required"),
        ("runtime:", "runtme: x\n  runtime:", "spec.runtme", "unknown field 'runtme'"),
        ("entry:", "errorMessageLimit: 0\n  entry:", "spec.errorMessageLimit", None),
        ("entry:", "auth: { scopes: [a] }\n  entry:", "spec.auth.oauthAppRef", "'oauthAppRef' is required"),
    ],
)
def test_older_tool_has_fields_of_its_document(
    tmp_path: Path, old: str, new: str, path: str, message: str | None
) -> None:
    [fault] = faults(tmp_path, CALCULATOR.replace(old, new))

    assert fault[:2] == ("error", path)
    assert message is None or fault[2] == message


@pytest.mark.requirement("v1.tool-spec")
def test_entry_in_another_language_is_error_with_advice(tmp_path: Path) -> None:
    text = CALCULATOR.replace("runtime: python", "runtime: ruby").replace("./calc.py", "./calc.rb")

    findings = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert [finding.path for finding in findings] == ["spec.runtime", "spec.entry"]
    assert "runtime: node" in findings[0].suggestion
    assert ".py, .ts or .js file" in findings[1].suggestion


@pytest.mark.requirement("v1.tool-spec")
def test_entry_may_name_compiled_typescript_file(tmp_path: Path) -> None:
    text = CALCULATOR.replace("runtime: python", "runtime: node").replace("./calc.py", "./calc.js")

    assert found_in(write(tmp_path, {"goondan.yaml": text, "calc.ts": "export const handlers = {};"})) == []


@pytest.mark.parametrize(
    ("old", "path"),
    [("timeoutSeconds: 9", "spec.isolation"), ("timeoutSeconds: 3", "spec.exports[1].isolation")],
)
def test_older_tools_have_no_process_of_their_own(tmp_path: Path, old: str, path: str) -> None:
    [(level, place, message)] = faults(tmp_path, CALCULATOR.replace(old, "isolation: process"))

    assert (level, place) == ("error", path)
    assert message.startswith("the older context needs its worker")


@pytest.mark.requirement("v1.export-name.dotted", "v1.export-name.charset")
@pytest.mark.parametrize("name", ["calc.add", "slack.post-message", "a", "file.read_all", "a.b.c", "9.x"])
def test_older_tools_export_may_have_dotted_name(tmp_path: Path, name: str) -> None:
    assert faults(tmp_path, CALCULATOR.replace("calc.add", name)) == []


@pytest.mark.requirement("v1.export-name.charset")
@pytest.mark.parametrize(
    "name",
    [".add", "add.", "a b", "a/b", "도구.a", "''", "_a", "a-", "goondan__read-output"],
)
def test_other_names_of_exports_are_refused(tmp_path: Path, name: str) -> None:
    findings = found_in(write(tmp_path, {**FILES, "goondan.yaml": CALCULATOR.replace("calc.add", name)}))

    assert [(finding.code, finding.path) for finding in findings] == [
        ("E_CONFIG_INVALID_NAME", "spec.exports[0].name")
    ]


def test_upper_case_in_older_export_is_warning(tmp_path: Path) -> None:
    [(level, path, _)] = faults(tmp_path, CALCULATOR.replace("calc.add", "slack.postMessage"))

    assert (level, path) == ("warning", "spec.exports[0].name")


TWO_TOOLS = f"""{CALCULATOR}---
{CALCULATOR.replace("calculator", "abacus").replace("calc.add", "abacus.add")}---
{AGENT.replace('"Tool/echo"', "Tool/calculator, Tool/abacus")}"""


@pytest.mark.requirement("v1.export-name.unique-per-agent")
def test_two_tools_of_agent_cannot_export_one_name(tmp_path: Path) -> None:
    [finding] = found_in(write(tmp_path, {**FILES, "goondan.yaml": TWO_TOOLS}))

    assert (finding.code, finding.resource, finding.path) == (
        "E_CONFIG_DUPLICATE_NAME",
        "Agent/coder",
        "spec.tools[1]",
    )
    assert finding.message == "'Tool/calculator' and 'Tool/abacus' both export 'calc.multiply'"


def test_older_export_with_double_underscore_is_refused(tmp_path: Path) -> None:
    message = "'echo__run': names with '__' belong to goondan.ai/v1"
    assert faults(tmp_path, CALCULATOR.replace("calc.add", "echo__run")) == [
        ("error", "spec.exports[0].name", message)
    ]


def test_dotted_name_in_current_tool_suggests_older_version(tmp_path: Path) -> None:
    [finding] = found_in(write(tmp_path, {"goondan.yaml": TOOL.replace("name: run", "name: echo.run")}))

    assert (finding.level, finding.path) == ("error", "spec.exports[0].name")
    assert "older version" in finding.suggestion


def test_tools_of_two_agents_may_export_same_name(tmp_path: Path) -> None:
    both = AGENT.replace('"Tool/echo"', "Tool/abacus") + "---\n" + AGENT.replace("coder", "clerk")
    text = TWO_TOOLS.partition("---\napiVersion: goondan.ai/v1")[0] + "---\n"

    assert faults(tmp_path, text + both.replace("Tool/echo", "Tool/calculator")) == []


APP = """\
---
apiVersion: agents.example.io/v1alpha1
kind: OAuthApp
metadata: { name: slack-bot }
spec:
  provider: slack
  flow: deviceCode
  subjectMode: user
  client: { clientId: { value: a }, clientSecret: { valueFrom: { env: SECRET } } }
  endpoints: { tokenUrl: "https://slack.example/t", deviceAuthorizationUrl: "https://slack.example/d" }
  scopes: ["chat:write", "channels:read", "users:read"]
"""


def slack(tool: str | None, first: str | None = None, ref: str = "OAuthApp/slack-bot") -> str:
    """Return an OAuthApp, and a Tool with scopes on itself and on its first export."""
    auth = f"auth: {{ oauthAppRef: {ref}{'' if tool is None else f', scopes: {tool}'} }}"
    text = CALCULATOR.replace("  entry:", f"  {auth}\n  entry:")
    return text.replace("Adds.", f"Adds., auth: {{ scopes: {first} }}" if first else "Adds.") + APP


@pytest.mark.requirement("v1.export-spec", "oauth.scopes.tool-within-app", "oauth.scopes.export-within-tool")
@pytest.mark.parametrize(
    ("tool", "export"),
    [
        (None, None),
        ("['chat:write']", None),
        ("['chat:write', 'users:read']", "['users:read']"),
        ("[]", "[]"),
    ],
)
def test_scopes_may_be_narrowed_on_way_down(tmp_path: Path, tool: str | None, export: str | None) -> None:
    assert faults(tmp_path, slack(tool, export)) == []


@pytest.mark.requirement("oauth.scopes.tool-within-app")
def test_tool_scope_missing_from_app_is_refused(tmp_path: Path) -> None:
    assert faults(tmp_path, slack("['chat:write', 'admin']")) == [
        ("error", "spec.auth.scopes", "the scope 'admin' is not among those of OAuthApp/slack-bot")
    ]


@pytest.mark.requirement("oauth.scopes.export-within-tool")
def test_export_scope_missing_from_tool_is_refused(tmp_path: Path) -> None:
    path = "spec.exports[0].auth.scopes"

    assert faults(tmp_path, slack("['chat:write']", "['channels:read']")) == [
        ("error", path, "the scope 'channels:read' is not among those of Tool/calculator")
    ]
    assert faults(tmp_path, slack(None, "['channels:read']")) == [
        ("error", path, "an export's scopes need scopes of its Tool")
    ]


@pytest.mark.parametrize(
    ("ref", "code"),
    [("OAuthApp/slack", "E_CONFIG_REF_NOT_FOUND"), ("Tool/calculator", "E_CONFIG_INVALID_REF")],
)
def test_oauth_app_of_tool_must_exist(tmp_path: Path, ref: str, code: str) -> None:
    [finding] = found_in(write(tmp_path, {**FILES, "goondan.yaml": slack("['any']", "['any']", ref)}))

    assert (finding.code, finding.path) == (code, "spec.auth.oauthAppRef")


@pytest.mark.parametrize("scopes", ["5", "[5]", "{ a: b }", "['']"])
def test_scopes_without_form_are_one_finding(tmp_path: Path, scopes: str) -> None:
    [(level, path, _)] = faults(tmp_path, slack(scopes))

    assert (level, path.split("[")[0]) == ("error", "spec.auth.scopes")


def test_agent_cannot_widen_scopes_of_tool_it_uses(tmp_path: Path) -> None:
    overrides = "overrides: { spec: { auth: { scopes: [admin] } } }"
    use = AGENT.replace('"Tool/echo"', f"{{ selector: {{ name: calculator }}, {overrides} }}")

    assert faults(tmp_path, f"{slack(None)}---\n{use}") == [
        (
            "error",
            "spec.tools[0].overrides.spec.auth.scopes",
            "the scope 'admin' is not among those of OAuthApp/slack-bot",
        )
    ]
    assert faults(tmp_path, f"{slack(None)}---\n{use.replace('admin', 'users:read')}") == []


def test_fields_without_effect_are_warnings(tmp_path: Path) -> None:
    agent = "  hooks: [{ point: step.pre, action: { toolCall: { tool: calc.add, input: {} } } }]\n"
    policy = "    liveConfig: { enabled: true }\n    lifecycle: { autoPauseIdleSeconds: 60 }\n"
    text = "---\n".join([CALCULATOR, TOOL, V1_AGENT + agent, AGENT, V1_SWARM + policy, V1_OTHERS])

    assert faults(tmp_path, text) == [
        ("warning", "spec.hooks", "'hooks' has no effect here"),
        ("warning", "spec.policy.liveConfig", "'liveConfig' has no effect here"),
        (
            "warning",
            "spec.policy.lifecycle.autoPauseIdleSeconds",
            "'autoPauseIdleSeconds' has no effect here",
        ),
    ]


@pytest.mark.parametrize(
    ("old", "new", "path"),
    [
        ("system: You count.", "system: a, systemRef: ./b.md", "spec.prompts"),
        ("entrypoint: { kind: Agent, name: clerk }", "entrypoint: Agent/other", "spec.entrypoint"),
        ("entrypoint:", "entryAgent:", "spec.entrypoint"),
        ("queueMode: serial", "queueMode: parallel", "spec.policy.queueMode"),
        ("runtime: python, entry: ./log.py", "runtime: deno, entry: ./log.py", "spec.runtime"),
    ],
)
def test_other_resources_are_held_against_their_documents(
    tmp_path: Path, old: str, new: str, path: str
) -> None:
    assert old in ALL

    found = faults(tmp_path, ALL.replace(old, new))

    assert ("error", path) in [fault[:2] for fault in found]


def test_entrypoint_must_be_one_of_swarms_agents(tmp_path: Path) -> None:
    lonely = ALL.replace("agents: [{ kind: Agent, name: clerk }, Agent/coder]", "agents: [Agent/coder]")

    message = "the entrypoint 'clerk' is not among the agents of Swarm/default"
    assert ("error", "spec.entrypoint", message) in faults(tmp_path, lonely)


def test_older_tool_name_allows_capitals_and_dots(tmp_path: Path) -> None:
    assert faults(tmp_path, CALCULATOR.replace("calculator", "slack.Tool_kit-2")) == []
    assert told(found_in(write(tmp_path, {"goondan.yaml": CALCULATOR.replace("calculator", "goondan")}))) == [
        (3, "E_CONFIG_INVALID_NAME", "metadata.name")
    ]


@pytest.mark.requirement("v1.export-name.dotted")
def test_catalog_shows_older_export_under_its_own_name(tmp_path: Path) -> None:
    catalog = build_catalog(bundle(tmp_path), "coder")

    assert [(item.name, item.source.name) for item in catalog] == [
        ("calc.add", "calculator"),
        ("calc.multiply", "calculator"),
    ]
    [short, _] = [tool["function"]["name"] for tool in catalog.to_openai()]
    assert "." not in short, "OpenAI forbids dots"
    assert catalog.original_name(short) == "calc.add"
    assert [tool["name"] for tool in catalog.to_mcp()] == ["calc.add", "calc.multiply"]


def test_same_named_older_exports_have_separate_limits(tmp_path: Path) -> None:
    limited = TWO_TOOLS.replace("timeoutSeconds: 3", "serial: true").replace("Tool/calculator, ", "")
    limited = limited.replace("timeoutSeconds: 9", "maxConcurrency: 2")
    tools = load_bundle(write(tmp_path, {**FILES, "goondan.yaml": limited})).all_tools()
    call = new_call("coder", "calc.multiply", {}, {})

    assert Limits.of(tools["calc.multiply"]).for_call(call).splitlines() == [
        "seats 1 0 - serial:abacus/calc.multiply@default",
        "seats 2 0 - concurrency:abacus/*",
    ]
    assert Limits.of(tools["calc.add"]).for_call(call) == "seats 2 0 - concurrency:calculator/*"
