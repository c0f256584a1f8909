"""Documents as resources: versions, kinds, names and fields."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import inspect_bundle
from tests.unit.goondan_tasks.bundle.writing import AGENT, TOOL, found_in, told, write

NAME = "metadata.name"


def test_bundle_without_faults_has_no_findings(tmp_path: Path) -> None:
    assert found_in(write(tmp_path, {"goondan.yaml": f"{TOOL}---\n{AGENT}"})) == []


@pytest.mark.parametrize("text", ["- a list", "just text", "5", "true"])
def test_document_that_is_not_mapping_is_finding(tmp_path: Path, text: str) -> None:
    assert told(found_in(write(tmp_path, {"goondan.yaml": text}))) == [(1, "E_CONFIG_SCHEMA_INVALID", "")]


@pytest.mark.parametrize(
    ("version", "part"),
    [
        ("apiVersion: goondan.ai/v2", '"goondan.ai/v2" is not supported'),
        ("apiVersion: 1", "1 is not supported"),
        ("labels: {}", "'apiVersion' is missing"),
        ("apiVersion: agents.example.io/v1", '"agents.example.io/v1" is not supported'),
    ],
)
def test_only_supported_version_is_taken(tmp_path: Path, version: str, part: str) -> None:
    text = AGENT.replace("apiVersion: goondan.ai/v1", version) + "---\n" + TOOL

    findings = found_in(write(tmp_path, {"goondan.yaml": text}))

    (finding,) = [finding for finding in findings if finding.path == "apiVersion"]
    assert finding.code == "E_CONFIG_UNSUPPORTED_API_VERSION"
    assert part in finding.message


@pytest.mark.parametrize(
    ("kind", "hint"), [("Tol", "Did you mean 'Tool'?"), ("Deployment", "Known are"), ("[]", "Known are")]
)
def test_unknown_kind_is_finding(tmp_path: Path, kind: str, hint: str) -> None:
    findings = found_in(write(tmp_path, {"goondan.yaml": TOOL.replace("kind: Tool", f"kind: {kind}")}))

    assert told(findings) == [(2, "E_CONFIG_UNKNOWN_KIND", "kind")]
    assert findings[0].suggestion.startswith(hint)


@pytest.mark.requirement("tool.name.no-separator-inside")
@pytest.mark.parametrize(
    "name", ["a__b", "__a", "a__", "_a", "a_", "a b", "a.b", "도구", "''", "5", "~", "[x]"]
)
def test_tool_name_no_model_can_call_is_refused(tmp_path: Path, name: str) -> None:
    text = TOOL.replace("name: echo", f"name: {name}")

    assert (3, "E_CONFIG_INVALID_NAME", NAME) in told(found_in(write(tmp_path, {"goondan.yaml": text})))


@pytest.mark.parametrize("name", ["a", "file-system", "post_message", "slackToolkit", "9lives"])
def test_other_names_of_tools_are_taken(tmp_path: Path, name: str) -> None:
    text = TOOL.replace("name: echo", f"name: {name}")

    assert found_in(write(tmp_path, {"goondan.yaml": text})) == []


@pytest.mark.parametrize("name", ["Coder", "-a", "a_b", "a.b", "a" * 64, "a/b"])
def test_name_of_agent_must_fit_queue(tmp_path: Path, name: str) -> None:
    text = TOOL + "---\n" + AGENT.replace("name: coder", f"name: {name}")

    assert told(found_in(write(tmp_path, {"goondan.yaml": text}))) == [(11, "E_CONFIG_INVALID_NAME", NAME)]


def test_missing_metadata_is_one_finding(tmp_path: Path) -> None:
    text = TOOL.replace("metadata: { name: echo, labels: { tier: base } }\n", "")

    findings = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert told(findings) == [(1, "E_CONFIG_SCHEMA_INVALID", "metadata")]


@pytest.mark.parametrize(
    ("old", "new", "path", "message"),
    [
        ("  entry: ./echo.py\n", "", "spec.entry", "'entry' is required"),
        ("./echo.py", "5", "spec.entry", "must be text, not 5"),
        ("./echo.py", "''", "spec.entry", "must not be empty"),
        ("entry:", "entrie: x\n  entry:", "spec.entrie", "unknown field 'entrie'"),
        ("Echoes.", "5", "spec.exports[0].description", "must be text, not 5"),
        ("{ tier: base }", "{ tier: 1 }", "metadata.labels.tier", "must be text, not 1"),
        ("{ tier: base }", "[]", "metadata.labels", "must be an object, not an array of 0 items"),
    ],
)
@pytest.mark.requirement("bundle.tool.entry-required")
def test_wrong_field_is_named_by_its_path(
    tmp_path: Path, old: str, new: str, path: str, message: str
) -> None:
    findings = found_in(write(tmp_path, {"goondan.yaml": TOOL.replace(old, new)}))

    assert [(finding.path, finding.message) for finding in findings] == [(path, message)]
    assert findings[0].resource == "Tool/echo"


@pytest.mark.parametrize("value", ["3s", "'3'"])
def test_number_with_unit_or_quotes_gets_advice(tmp_path: Path, value: str) -> None:
    text = TOOL.replace("entry:", f"timeoutSeconds: {value}\n  entry:")

    (finding,) = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert finding.message.startswith("must be a number, not")
    assert finding.suggestion == "Write a number such as 30 or 0.5: no quotes, no unit."


def test_unknown_field_suggests_one_that_was_meant(tmp_path: Path) -> None:
    text = TOOL.replace("description:", "descripton:")

    (finding,) = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert finding.suggestion == "Did you mean 'description'?"


@pytest.mark.requirement("bundle.tool.no-v1-fields")
@pytest.mark.parametrize("field", ["runtime: node", "auth: { oauthAppRef: { kind: OAuthApp, name: x } }"])
def test_removed_tool_field_warns_naming_its_replacement(tmp_path: Path, field: str) -> None:
    text = TOOL.replace("  entry:", f"  {field}\n  entry:")

    (finding,) = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert "was removed" in finding.message
    assert finding.suggestion.startswith("Remove it:")
    assert (finding.level, finding.line) == ("warning", 5)
    assert inspect_bundle(tmp_path)[0] is not None, "the resource can be used without it"


def test_every_removed_field_suggests_its_replacement(tmp_path: Path) -> None:
    text = TOOL.replace("Echoes.", "Echoes., auth: { scopes: [a] }")
    agent = AGENT.replace('["Tool/echo"]', '["Tool/echo"], hooks: [], changesets: {}')
    swarm = (
        "apiVersion: goondan.ai/v1\nkind: Swarm\nmetadata: { name: s }\nspec:\n  entrypoint: Agent/coder\n"
        "  agents: [Agent/coder]\n  policy: { queueMode: serial, liveConfig: {}, changesets: {} }\n"
    )

    findings = found_in(write(tmp_path, {"goondan.yaml": "---\n".join([text, agent, swarm])}))

    assert [(finding.level, finding.path, finding.suggestion.partition(":")[0]) for finding in findings] == [
        ("warning", "spec.exports[0].auth", "Remove it"),
        ("warning", "spec.hooks", "Remove it"),
        ("error", "spec.entryAgent", "Add 'entryAgent'."),
        ("warning", "spec.entrypoint", "Use 'entryAgent' instead."),
        ("warning", "spec.policy.queueMode", "Remove it"),
        ("warning", "spec.policy.liveConfig", "Remove it"),
    ]


def test_misplaced_changesets_are_error_naming_right_place(tmp_path: Path) -> None:
    text = TOOL.replace("  entry:", "  changesets: {}\n  entry:")

    (finding,) = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert (finding.level, finding.path) == ("error", "spec.changesets")
    assert "spec.policy.changesets" in finding.suggestion


def test_two_resources_of_one_name_are_finding(tmp_path: Path) -> None:
    write(tmp_path, {"goondan.yaml": TOOL, "tools.yaml": "\n" + TOOL})

    (finding,) = found_in(tmp_path)

    assert (Path(finding.file).name, finding.line) == ("tools.yaml", 4)
    assert finding.code == "E_CONFIG_DUPLICATE_NAME"
    assert "goondan.yaml:3" in finding.message


def test_second_resource_of_same_name_is_checked(tmp_path: Path) -> None:
    second = TOOL.replace("./echo.py", "./gone.py")

    paths = [finding.path for finding in found_in(write(tmp_path, {"goondan.yaml": f"{TOOL}---\n{second}"}))]

    assert paths == ["metadata.name", "spec.entry"]


def test_resources_without_names_are_no_namesakes(tmp_path: Path) -> None:
    nameless = TOOL.replace("name: echo, ", "")

    findings = found_in(write(tmp_path, {"goondan.yaml": f"{nameless}---\n{nameless}"}))

    assert told(findings) == [(3, "E_CONFIG_INVALID_NAME", NAME), (11, "E_CONFIG_INVALID_NAME", NAME)]


def test_resources_of_two_kinds_may_share_name(tmp_path: Path) -> None:
    text = f"{TOOL}---\n{AGENT.replace('name: coder', 'name: echo')}"

    assert found_in(write(tmp_path, {"goondan.yaml": text})) == []


PACKAGE = "apiVersion: goondan.ai/v1\nkind: Package\nmetadata: { name: '@me/swarm' }\n"


def test_package_is_one_and_first_of_its_file(tmp_path: Path) -> None:
    assert found_in(write(tmp_path, {"goondan.yaml": f"{PACKAGE}---\n{TOOL}"})) == []


def test_package_further_down_is_finding(tmp_path: Path) -> None:
    findings = found_in(write(tmp_path, {"goondan.yaml": f"{TOOL}---\n{PACKAGE}"}))

    assert told(findings) == [(10, "E_CONFIG_PACKAGE_DOC_POSITION", "kind")]


@pytest.mark.parametrize("second", [PACKAGE, PACKAGE.replace("@me/swarm", "other")])
def test_second_package_is_finding(tmp_path: Path, second: str) -> None:
    findings = found_in(write(tmp_path, {"goondan.yaml": PACKAGE, "resources.yaml": second}))

    assert told(findings) == [(2, "E_CONFIG_PACKAGE_DOC_DUPLICATED", "kind")]


@pytest.mark.parametrize(
    "dependencies", ["{ '@else/where': 1.2.3 }", "[{ name: '@else/where', version: 1.2.3 }]"]
)
def test_dependency_that_is_not_built_in_is_warning(tmp_path: Path, dependencies: str) -> None:
    text = f"{PACKAGE}spec:\n  dependencies: {dependencies}\n"

    findings = found_in(write(tmp_path, {"goondan.yaml": text}))

    assert [(finding.level, finding.code) for finding in findings] == [
        ("warning", "E_CONFIG_PACKAGE_NOT_INSTALLED")
    ]


KEPT = """\
apiVersion: goondan.ai/v1
kind: Model
metadata: { name: claude }
spec:
  provider: anthropic
  model: claude-sonnet-5-5
  apiKey: { valueFrom: { env: ANTHROPIC_API_KEY } }
  options: { anything: [1, 2] }
---
apiVersion: goondan.ai/v1
kind: Connector
metadata: { name: cli }
spec: { entry: ./cli.ts, events: [{ name: message }] }
---
apiVersion: goondan.ai/v1
kind: Connection
metadata: { name: chat }
spec: { connectorRef: Connector/cli, ingress: { rules: [] } }
"""


def test_kinds_without_agents_are_checked(tmp_path: Path) -> None:
    assert found_in(write(tmp_path, {"cli.ts": "", "goondan.yaml": KEPT})) == []
    wrong = KEPT.replace("Connector/cli", "Connector/clo").replace("provider: anthropic", "provider: 5")

    found = found_in(write(tmp_path, {"goondan.yaml": wrong}))
    assert told([finding for finding in found if finding.level == "error"]) == [
        (5, "E_CONFIG_SCHEMA_INVALID", "spec.provider"),
        (18, "E_CONFIG_REF_NOT_FOUND", "spec.connectorRef"),
    ]
