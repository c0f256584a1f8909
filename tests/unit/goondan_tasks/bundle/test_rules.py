"""Resources that refer to each other."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import Finding
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, found_in, told, write

SWARM = """\
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: main }
spec:
  entryAgent: "Agent/coder"
  agents: ["Agent/coder"]
"""


def swarm(tmp_path: Path, old: str, new: str) -> list[Finding]:
    """Return the findings of a bundle whose Swarm begins in line 1."""
    text = "---\n".join([SWARM.replace(old, new), AGENT, TOOL])
    return found_in(write(tmp_path, {"goondan.yaml": text}))


def agent(tmp_path: Path, spec: str) -> list[Finding]:
    """Return the findings of an Agent whose spec begins in line 5."""
    text = f"apiVersion: goondan.ai/v1\nkind: Agent\nmetadata: {{ name: coder }}\nspec:\n{spec}---\n{TOOL}"
    return found_in(write(tmp_path, {"goondan.yaml": text}))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("", ""),
        ('["Agent/coder"]', "[{ kind: Agent, name: coder }]"),
        ('["Agent/coder"]', "[{ ref: Agent/coder }]"),
        ('"Agent/coder"\n', "{ kind: Agent, name: coder }\n"),
    ],
)
def test_swarm_names_its_agents_in_any_form(tmp_path: Path, old: str, new: str) -> None:
    assert swarm(tmp_path, old, new) == []


@pytest.mark.parametrize(
    ("old", "new", "place", "code", "suggestion"),
    [
        ('Agent/coder"\n', 'Agent/codr"\n', (5, "spec.entryAgent"), "REF_NOT_FOUND", "Did you mean 'coder'?"),
        ('Agent/coder"\n', 'Tool/echo"\n', (5, "spec.entryAgent"), "INVALID_REF", "Write 'Agent/<name>'."),
        ('Agent/coder"\n', 'coder"\n', (5, "spec.entryAgent"), "INVALID_REF", 'Write "<Kind>/<name>"'),
        (
            '["Agent/coder"]',
            "['Agent/coder', 'Agent/x']",
            (6, "spec.agents[1]"),
            "REF_NOT_FOUND",
            "Known are: coder.",
        ),
    ],
)
def test_swarms_wrong_reference_is_reported_at_its_place(
    tmp_path: Path, old: str, new: str, place: tuple[int, str], code: str, suggestion: str
) -> None:
    (finding,) = swarm(tmp_path, old, new)

    assert ((finding.line, finding.path), finding.code) == (place, f"E_CONFIG_{code}")
    assert finding.suggestion.startswith(suggestion)


def test_swarm_without_agents_is_refused(tmp_path: Path) -> None:
    findings = swarm(tmp_path, '["Agent/coder"]', "[]")

    assert (6, "E_CONFIG_SCHEMA_INVALID", "spec.agents") in told(findings)


def test_entry_agent_must_be_one_of_agents(tmp_path: Path) -> None:
    text = "---\n".join([SWARM, AGENT, AGENT.replace("coder", "other"), TOOL])
    text = text.replace('agents: ["Agent/coder"]', 'agents: ["Agent/other"]')

    findings = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert [(finding.level, finding.line, finding.path) for finding in findings] == [
        ("error", 5, "spec.entryAgent"),
        ("warning", 10, "metadata.name"),
    ]


def test_agent_in_no_swarm_is_warning(tmp_path: Path) -> None:
    text = "---\n".join([SWARM, AGENT, AGENT.replace("coder", "lonely"), TOOL])

    (finding,) = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert (finding.level, finding.resource) == ("warning", "Agent/lonely")


@pytest.mark.parametrize(
    ("policy", "path"),
    [
        ("maxStepsPerTurn: 0", "maxStepsPerTurn"),
        ("toolCalls: { allow: all }", "toolCalls.allow"),
        ("toolCalls: { approval: 'bash__*' }", "toolCalls.approval"),
        ("lifecycle: { ttlSeconds: 0 }", "lifecycle.ttlSeconds"),
        ("changesets: { allowed: ['a'] }", "changesets.allowed"),
        ("queueMode: serial", "queueMode"),
    ],
)
def test_wrong_policy_is_reported_at_its_place(tmp_path: Path, policy: str, path: str) -> None:
    findings = swarm(tmp_path, "  agents:", f"  policy: {{ {policy} }}\n  agents:")

    assert told(findings) == [(6, "E_CONFIG_SCHEMA_INVALID", f"spec.policy.{path}")]


@pytest.mark.parametrize(
    "policy",
    [
        "maxStepsPerTurn: 16, toolCalls: { allow: registry, approval: ['bash__*'] }",
        "changesets: { enabled: true, allowed: { files: ['prompts/**'] }, emitRevisionChangedEvent: true }",
        "lifecycle: { ttlSeconds: 3600, gcGraceSeconds: 0 }, shutdown: { gracePeriodSeconds: 5 }",
    ],
)
def test_policies_of_specification_are_taken(tmp_path: Path, policy: str) -> None:
    assert swarm(tmp_path, "  agents:", f"  policy: {{ {policy} }}\n  agents:") == []


@pytest.mark.parametrize(
    ("use", "code", "suggestion"),
    [
        ('"Tool/ecko"', "REF_NOT_FOUND", "Did you mean 'echo'?"),
        ('"Agent/coder"', "INVALID_REF", "Write 'Tool/<name>'."),
        ('"echo"', "INVALID_REF", 'Write "<Kind>/<name>"'),
        ("{ kind: Tool, name: echo, package: '@else/where' }", "PACKAGE_NOT_INSTALLED", "Only @goondan/base"),
        ("{ selector: { name: ecko } }", "REF_NOT_FOUND", "Did you mean 'echo'?"),
        ("{ selector: { matchLabels: { tier: none } } }", "REF_NOT_FOUND", "Correct its name"),
        ("{ selector: { kind: Agent, name: coder } }", "INVALID_REF", "Write 'kind: Tool'."),
    ],
)
def test_wrong_tool_reference_is_reported_at_its_place(
    tmp_path: Path, use: str, code: str, suggestion: str
) -> None:
    (finding,) = agent(tmp_path, f"  tools:\n    - Tool/echo\n    - {use}\n")

    assert (finding.line, finding.path, finding.code) == (7, "spec.tools[1]", f"E_CONFIG_{code}")
    assert finding.suggestion.startswith(suggestion)


def test_required_tool_must_be_in_catalog(tmp_path: Path) -> None:
    spec = "  tools: [Tool/echo]\n  requiredTools: [echo__run, echo__rum]\n"

    (finding,) = agent(tmp_path, spec)

    assert (finding.line, finding.path) == (6, "spec.requiredTools[1]")
    assert finding.suggestion == "Did you mean 'echo__run'?"


def test_faulty_catalog_reports_nothing_about_required_tools(tmp_path: Path) -> None:
    findings = agent(tmp_path, "  tools: [Tool/gone]\n  requiredTools: [gone__run]\n")

    assert told(findings) == [(5, "E_CONFIG_REF_NOT_FOUND", "spec.tools[0]")]


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("  modelConfig: { modelRef: Model/x }\n", "spec.modelConfig.modelRef"),
        ("  extensions: [Extension/x]\n", "spec.extensions[0]"),
        ("  extensions: [{ selector: { name: x } }]\n", "spec.extensions[0]"),
    ],
)
def test_other_references_of_agent_are_followed_too(tmp_path: Path, spec: str, path: str) -> None:
    assert told(agent(tmp_path, spec)) == [(5, "E_CONFIG_REF_NOT_FOUND", path)]


@pytest.mark.parametrize(
    "spec",
    [
        "  {}\n",
        "  prompts: { systemPrompt: Be brief., systemRef: ./echo.py }\n",
        "  prompt: { system: Be brief. }\n",
        "  workdir: local\n  idempotent: true\n",
    ],
)
def test_agent_needs_little(tmp_path: Path, spec: str) -> None:
    assert agent(tmp_path, spec) == []


@pytest.mark.parametrize("field", ["prompts", "prompt"])
@pytest.mark.parametrize(
    ("path", "code", "part"),
    [
        ("./prompts/missing.md", "E_CONFIG_ENTRY_NOT_FOUND", "cannot be found"),
        ("../prompt.md", "E_CONFIG_ENTRY_NOT_FOUND", "leads out of the bundle"),
        ("/etc/hostname", "E_CONFIG_ENTRY_NOT_FOUND", "not a relative path"),
        ("''", "E_CONFIG_ENTRY_NOT_FOUND", "is not a file"),
        ("./latin.md", "E_CONFIG_PARSE_ERROR", "the file is not UTF-8: './latin.md'"),
    ],
)
def test_unreadable_prompt_file_is_reported_with_place(
    tmp_path: Path, field: str, path: str, code: str, part: str
) -> None:
    (tmp_path / "latin.md").write_bytes(b"caf\xe9")

    (finding,) = agent(tmp_path, f"  {field}: {{ systemRef: {path} }}\n")

    assert (finding.level, finding.line, finding.code) == ("error", 5, code)
    assert finding.path == f"spec.{field}.systemRef"
    assert part in finding.message
    assert finding.suggestion


CONNECTOR = """\
apiVersion: goondan.ai/v1
kind: Connector
metadata: { name: chat }
spec:
  entry: ./connectors/chat.ts
  events:
    - { name: message, properties: { room: { type: string } } }
    - name: left
"""
CONNECTION = """\
apiVersion: goondan.ai/v1
kind: Connection
metadata: { name: chat }
spec:
  connectorRef: Connector/chat
  swarmRef: Swarm/team
  secrets: { token: { valueFrom: { env: CHAT_TOKEN } } }
  ingress:
    rules:
      - match: { event: message, properties: { room: ops } }
        route: { agentRef: Agent/coder, instanceKeyProperty: room, instanceKeyPrefix: "chat:" }
      - route: { instanceKey: everything-else }
"""
TEAM = """\
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: team }
spec: { entryAgent: Agent/coder, agents: [Agent/coder] }
"""


def connected(
    tmp_path: Path, connector: str = CONNECTOR, connection: str = CONNECTION, tool: str = TOOL
) -> list[Finding]:
    """Return what is found in a bundle with a Connector and a Connection."""
    lone = AGENT.replace("coder", "lone")
    team = "---\n".join([tool, AGENT, lone, TEAM, TEAM.replace("team", "rest").replace("coder", "lone")])
    texts = {"goondan.yaml": team, "connector.yaml": connector, "connection.yaml": connection}
    return found_in(write(tmp_path, {**texts, "connectors/chat.ts": "export default {};\n"}))


def test_connector_and_connection_are_valid(tmp_path: Path) -> None:
    assert connected(tmp_path) == []


@pytest.mark.parametrize(
    ("reply", "level", "words"),
    [
        ("Tool/echo__run", None, ""),
        ("{ tool: Tool/echo__run, args: { text: 'To {{room}}: {{answer}}' } }", None, ""),
        ("Tool/echo__rnu", "error", "declares no tool 'echo__rnu'"),
        ("{ tool: Tool/echo__run, args: { txet: '{{answer}}' } }", "error", "has no parameter 'txet'"),
        ("echo__run", "error", "names no function of a Tool"),
        ("{ tool: Tool/echo__run, arguments: {} }", "error", "arguments"),
        ("[Tool/echo__run]", "error", ""),
    ],
)
def test_reply_needs_tool_of_agents_receiving_events(
    tmp_path: Path, reply: str, level: str | None, words: str
) -> None:
    tool = TOOL.replace("type: object", "type: object, properties: { text: { type: string } }")

    found = connected(tmp_path, connection=f"{CONNECTION}  reply: {reply}\n", tool=tool)

    assert [finding.level for finding in found] == ([level] if level else [])
    assert all(words in str(finding) for finding in found)


def test_rule_behind_one_that_takes_all_is_warning(tmp_path: Path) -> None:
    rules = "      - route: { instanceKey: everything-else }\n"
    [finding] = connected(tmp_path, connection=CONNECTION + rules)

    assert (finding.level, finding.line, finding.path) == ("warning", 13, "spec.ingress.rules[2]")
    assert "the one in line 12 takes all that it matches" in finding.message


@pytest.mark.parametrize(
    ("before", "match", "is_reached"),
    [
        ("{ event: message }", "{ event: message, properties: { room: ops } }", False),
        ("{ properties: { room: ops } }", "{ event: message, properties: { room: ops } }", False),
        (
            "{ event: message, properties: { room: 7 } }",
            "{ event: message, properties: { room: '7' } }",
            False,
        ),
        ("{ event: message, properties: { room: ops } }", "{ event: message }", True),
        ("{ event: left }", "{ event: message }", True),
        ("{ event: message, properties: { room: a } }", "{ event: message, properties: { room: b } }", True),
    ],
)
def test_rule_that_earlier_one_covers_is_warning(
    tmp_path: Path, before: str, match: str, is_reached: bool
) -> None:
    first = CONNECTION.partition("      - match")[0]
    found = connected(tmp_path, connection=f"{first}      - match: {before}\n      - match: {match}\n")
    assert [one.path for one in found] == ([] if is_reached else ["spec.ingress.rules[1]"])


def test_property_that_event_does_not_have_is_warning(tmp_path: Path) -> None:
    wrong = CONNECTION.replace("{ room: ops }", "{ rom: ops }").replace("Property: room", "Property: rooms")
    match, key = connected(tmp_path, connection=wrong)
    assert (match.level, match.path) == ("warning", "spec.ingress.rules[0].match.properties.rom")
    assert "'rom' is no property of the event 'message'" in match.message
    assert "room" in str(match.suggestion)
    assert (key.level, key.path) == ("warning", "spec.ingress.rules[0].route.instanceKeyProperty")


@pytest.mark.parametrize(
    "ref", ["Connector/telegram", '{ kind: Connector, name: telegram, package: "@goondan/base" }']
)
def test_connection_names_built_in_connector_and_its_events(tmp_path: Path, ref: str) -> None:
    text = CONNECTION.replace("Connector/chat", ref).replace("room", "chat_id")
    named = text.replace("event: message", "event: telegram_message")

    assert connected(tmp_path, connection=named) == []
    [finding] = connected(tmp_path, connection=text)
    assert finding.message == "the Connector declares no event 'message'"
    assert finding.suggestion == "Did you mean 'telegram_message'?"


def test_misspelt_built_in_connector_is_guessed(tmp_path: Path) -> None:
    [finding] = connected(tmp_path, connection=CONNECTION.replace("Connector/chat", "Connector/telegramm"))

    assert (finding.code, finding.suggestion) == ("E_CONFIG_REF_NOT_FOUND", "Did you mean 'telegram'?")


@pytest.mark.parametrize(
    ("old", "new", "line", "code", "path"),
    [
        ("chat.ts", "chat.py", 5, "E_CONFIG_ENTRY_NOT_FOUND", "spec.entry"),
        ("./connectors", "../connectors", 5, "E_CONFIG_ENTRY_NOT_FOUND", "spec.entry"),
        ("  entry: ./connectors/chat.ts\n", "", 4, "E_CONFIG_SCHEMA_INVALID", "spec"),
        ("name: left", "name: message", 8, "E_CONFIG_SCHEMA_INVALID", "spec.events[1].name"),
        ("name: left", "name: [a]", 8, "E_CONFIG_SCHEMA_INVALID", "spec.events[1].name"),
        ("name: left", "left", 8, "E_CONFIG_SCHEMA_INVALID", "spec.events[1]"),
    ],
)
def test_wrong_connector_is_reported_at_its_place(
    tmp_path: Path, old: str, new: str, line: int, code: str, path: str
) -> None:
    found = [item for item in connected(tmp_path, CONNECTOR.replace(old, new)) if item.level == "error"]

    assert [(item.line, item.code) for item in found] == [(line, code)]
    assert found[0].path.startswith(path)


@pytest.mark.parametrize(
    ("old", "new", "line", "code", "path"),
    [
        ("Connector/chat", "Connector/chit", 5, "E_CONFIG_REF_NOT_FOUND", "spec.connectorRef"),
        ("Swarm/team", "Swarm/x", 6, "E_CONFIG_REF_NOT_FOUND", "spec.swarmRef"),
        ("Agent/coder", "Agent/x", 11, "E_CONFIG_REF_NOT_FOUND", "spec.ingress.rules[0].route.agentRef"),
        ("Agent/coder", "Agent/lone", 11, "E_CONFIG_REF_NOT_FOUND", "spec.ingress.rules[0].route.agentRef"),
        ("Agent/coder", "Tool/echo", 11, "E_CONFIG_INVALID_REF", "spec.ingress.rules[0].route.agentRef"),
        ("agentRef", "agentref", 11, "E_CONFIG_SCHEMA_INVALID", "spec.ingress.rules[0].route.agentref"),
        (
            "instanceKeyProperty: room",
            "instanceKeyProperty: room, instanceKey: x",
            11,
            "E_CONFIG_SCHEMA_INVALID",
            "spec.ingress.rules[0].route",
        ),
        ("everything-else", "''", 12, "E_CONFIG_SCHEMA_INVALID", "spec.ingress.rules[1].route.instanceKey"),
    ],
)
def test_wrong_connection_rule_is_reported_at_its_place(
    tmp_path: Path, old: str, new: str, line: int, code: str, path: str
) -> None:
    text = CONNECTION.replace(old, new)

    found = [item for item in connected(tmp_path, connection=text) if item.level == "error"]

    assert [(item.line, item.code) for item in found] == [(line, code)]
    assert found[0].path == path


HTTP = CONNECTOR.replace("  events:", "  http: { path: /chat/events, methods: [GET, POST] }\n  events:")


@pytest.mark.parametrize(
    ("connector", "connection", "path"),
    [
        (HTTP, CONNECTION + "  http: { path: /other }\n  maxWaiting: 5\n", None),
        (HTTP.replace("{ path: /chat/events, methods: [GET, POST] }", "{}"), CONNECTION, None),
        (HTTP.replace("/chat/e", "chat/e"), CONNECTION, "spec.http.path"),
        (HTTP.replace("/chat/e", "/../e"), CONNECTION, "spec.http.path"),
        (HTTP.replace("chat/events,", "chat/events?x,"), CONNECTION, "spec.http.path"),
        (HTTP.replace("chat/events,", "chat/events/,"), CONNECTION, "spec.http.path"),
        (HTTP.replace("GET", "TRACE"), CONNECTION, "spec.http.methods"),
        (HTTP.replace("GET, POST", ""), CONNECTION, "spec.http.methods"),
        (HTTP, CONNECTION + "  http: {}\n", "spec.http"),
        (CONNECTOR, CONNECTION + "  http: { path: /other }\n", "spec.http"),
        (CONNECTOR, CONNECTION + "  maxWaiting: 0\n", "spec.maxWaiting"),
    ],
)
def test_requests_of_connector_are_checked(
    tmp_path: Path, connector: str, connection: str, path: str | None
) -> None:
    found = [item for item in connected(tmp_path, connector, connection) if item.level == "error"]

    assert (found[0].path[: len(path)] if path else found) == (path or [])


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        ("", "", "/connections/chat/events"),
        ("  http: { path: /two }\n", "", None),
        ("  http: { path: /two }\n", "  http: { path: /two }\n", "/connections/two"),
    ],
)
def test_two_connections_have_two_paths(tmp_path: Path, first: str, second: str, path: str | None) -> None:
    connections = CONNECTION + first + "---\n" + CONNECTION.replace("name: chat }", "name: talk }") + second
    found = [item for item in connected(tmp_path, HTTP, connections) if item.level == "error"]

    messages = [item.message for item in found]
    assert messages == ([f"Connection/chat has the path {path} as well"] if path else [])


def test_swarmless_connections_rule_needs_default_swarms_agent(tmp_path: Path) -> None:
    text = CONNECTION.replace("  swarmRef: Swarm/team\n", "").replace("Agent/coder", "Agent/lone")
    default = TEAM.replace("name: team", "name: default")
    found = connected(tmp_path, connection=f"{text}---\n{default}")

    [finding] = [item for item in found if item.level == "error"]
    assert finding.message == "the agentRef 'lone' is not among the agents of Swarm/default"


def test_rule_for_undeclared_event_is_warning(tmp_path: Path) -> None:
    found = connected(tmp_path, connection=CONNECTION.replace("event: message", "event: mesage"))

    [finding] = [item for item in found if item.path.startswith("spec.ingress")]
    assert (finding.level, finding.line) == ("warning", 10)
    assert finding.suggestion == "Did you mean 'message'?"


def test_reference_to_faulty_resource_is_no_separate_fault(tmp_path: Path) -> None:
    text = "---\n".join([AGENT, TOOL.replace("entry: ./echo.py", "errorMessageLimit: -1")])

    paths = [finding.path for finding in found_in(write(tmp_path, {"goondan.yaml": text}))]

    assert paths == ["spec.entry", "spec.errorMessageLimit"]


def test_fault_in_one_field_hides_no_others(tmp_path: Path) -> None:
    text = TOOL.replace("./echo.py", "./gone.py\n  nonsense: 1").replace("name: run", "name: RUN__x")

    findings = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert [finding.path for finding in findings] == [
        "spec.entry",
        "spec.nonsense",
        "spec.exports[0].name",
        "spec.exports[0].name",
    ]
