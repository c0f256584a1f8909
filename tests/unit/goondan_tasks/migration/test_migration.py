"""Older bundles in today's version."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from goondan_tasks.bundle import BundleError, inspect_bundle, load_bundle
from goondan_tasks.bundle.inventory import read_text
from goondan_tasks.bundle.resource import V1_API_VERSION
from goondan_tasks.bundle.yaml import parse_documents
from goondan_tasks.migration import Migration, migrate_bundle
from tests.unit.goondan_tasks.bundle.odd_texts import TEXTS
from tests.unit.goondan_tasks.bundle.writing import write

OLD = "apiVersion: agents.example.io/v1alpha1\n"
NEW = "apiVersion: goondan.ai/v1\n"
TOOL = """\
kind: Tool
metadata: { name: slackToolkit } # the kit
spec:
  runtime: python
  # where it stands
  entry: "./tools/slack.py"
  exports:
    - name: slack.post-message
      parameters: { type: object }
    - { name: 'slack.list.all', parameters: { type: object } }
"""
AGENT = """\
kind: Agent
metadata: { name: clerk }
spec:
  modelConfig: { modelRef: { apiVersion: agents.example.io/v1alpha1, kind: Model, name: gpt } }
  tools:
    - { kind: Tool, name: slackToolkit }
    - "Tool/slackToolkit"
    - ref: Tool/slackToolkit
    - selector: { name: slackToolkit }
    - { ref: { kind: Tool, name: slackToolkit } }
    - { kind: Tool, name: bash, package: "@goondan/base" }
  requiredTools: [bash__exec, slack.list.all]
"""
SWARM = """\
kind: Swarm
metadata: { name: default }
spec:
  entrypoint: Agent/clerk # first
  agents: [Agent/clerk]
  policy:
    queueMode: serial
    lifecycle: { autoPauseIdleSeconds: 5 }
    toolCalls:
      approval: ["bash__*", slack.post-message]
"""
MODEL = "kind: Model\nmetadata: { name: gpt }\nspec: { provider: openai, model: any }\n"
ENTRY = "handlers = {'slack.post-message': lambda ctx, input: 1, 'slack.list.all': lambda ctx, input: 2}\n"
FILES = {
    "tools/slack.py": ENTRY,
    "goondan.yaml": f"{OLD}{AGENT}---\n{OLD}{SWARM}",
    "tools.yaml": OLD + TOOL,
    "model.yaml": NEW + MODEL,
}


def migrated(tmp_path: Path, files: dict[str, str]) -> Migration:
    """Migrate a bundle of these files."""
    return migrate_bundle(write(tmp_path, files))


def told(migration: Migration) -> list[tuple[str, str, str]]:
    """Return what tests compare of the findings."""
    return [(finding.level, finding.resource, finding.path) for finding in migration.findings]


def test_bundle_is_rewritten_other_text_stays(tmp_path: Path) -> None:
    migration = migrated(tmp_path, FILES)

    expected = FILES["goondan.yaml"].replace("agents.example.io/v1alpha1", "goondan.ai/v1")
    expected = expected.replace("slackToolkit", "slack").replace("entrypoint", "entryAgent")
    expected = expected.replace("    queueMode: serial\n    lifecycle: { autoPauseIdleSeconds: 5 }\n", "")
    expected = expected.replace("slack.list.all", "slack__list-all")
    assert migration.files[tmp_path / "goondan.yaml"] == expected.replace(
        "slack.post-message", "slack__post-message"
    )
    tool = f"{NEW}{TOOL}".replace("slackToolkit", "slack").replace("  runtime: python\n", "")
    assert migration.files[tmp_path / "tools.yaml"] == tool.replace("slack.post", "post").replace(
        "slack.list.all", "list-all"
    )
    assert migration.files[tmp_path / "model.yaml"] == FILES["model.yaml"]
    assert [file.name for file in migration.changed] == ["goondan.yaml", "tools.yaml"]


def test_other_necessary_changes_are_reported(tmp_path: Path) -> None:
    migration = migrated(tmp_path, FILES)

    assert told(migration) == [
        ("warning", "Agent/clerk", "spec.modelConfig"),
        ("warning", "Swarm/default", "spec.policy.lifecycle.autoPauseIdleSeconds"),
        ("warning", "Tool/slackToolkit", "spec.exports[0].name"),
        ("warning", "Tool/slackToolkit", "spec.exports[1].name"),
    ]
    assert "workers handle the Agent's events" in migration.findings[0].message
    assert migration.findings[2].message == (
        "the model sees 'slack__post-message' instead of 'slack.post-message'"
    )
    assert "handler 'list-all' in ./tools/slack.py" in migration.findings[3].suggestion


def test_outcome_is_valid_once_handlers_are_renamed(tmp_path: Path) -> None:
    migration = migrated(tmp_path, FILES)

    for file, text in migration.files.items():
        file.write_text(text, encoding="utf-8")
    renamed = ENTRY.replace("slack.post", "post").replace("slack.list.all", "list-all")
    (tmp_path / "tools/slack.py").write_text(renamed, encoding="utf-8")

    assert inspect_bundle(tmp_path)[1] == []
    again = migrate_bundle(tmp_path)
    assert (again.changed, again.findings) == ((), [])


def test_every_kind_of_older_version_is_rewritten(tmp_path: Path) -> None:
    kinds = [
        "kind: Extension\nmetadata: { name: e }\nspec: { runtime: python, entry: ./e.py }\n",
        "kind: Connector\nmetadata: { name: c }\nspec: { runtime: node, entry: ./c.js }\n",
        "kind: Connection\nmetadata: { name: k }\nspec: { connectorRef: Connector/c }\n",
        "kind: Package\nmetadata: { name: p }\n",
        MODEL,
    ]
    texts = {f"resources{number}.yaml": OLD + text for number, text in enumerate(kinds)}

    files = {"e.py": "def register(api):\n    api.logger.info('x')\n", "c.js": ""}
    migration = migrated(tmp_path, {**files, **texts})

    assert migration.findings == []
    assert all("agents.example.io" not in text and "runtime" not in text for text in migration.files.values())
    assert inspect_bundle(tmp_path)[0] is not None


@pytest.mark.parametrize(
    ("tool", "exports", "expected"),
    [
        ("calc", ["calc.add", "calc.sub"], "calc: calc__add calc__sub"),
        ("calculator", ["calc.add"], "calc: calc__add"),
        ("misc", ["a.foo", "b.run"], "misc: misc__a-foo misc__b-run"),
        ("misc", ["plain", "a.foo"], "misc: misc__plain misc__a-foo"),
        ("my.kit", ["plain"], "my-kit: my-kit__plain"),
        ("shell", ["bash.exec"], "shell: shell__bash-exec"),
        ("kit", ["goondan.step"], "kit: kit__goondan-step"),
        ("goondan", ["kit.step"], "kit: kit__step"),
        ("kit", ["taken.x"], "kit: kit__taken-x"),
        ("kit", ["a.b__c"], "a: a__b-c"),
    ],
)
def test_free_namespace_becomes_name_of_its_tool(
    tmp_path: Path, tool: str, exports: list[str], expected: str
) -> None:
    listed = "".join(f"    - {{ name: {name}, parameters: {{ type: object }} }}\n" for name in exports)
    head = f"kind: Tool\nmetadata: {{ name: {tool} }}\nspec:\n  entry: ./echo.py\n  exports:\n"
    taken = head.replace(tool, "taken", 1) + "    - { name: x }\n"

    migration = migrated(tmp_path, {"goondan.yaml": f"{OLD}{head}{listed}---\n{NEW}{taken}"})

    seen = [finding.message.split("'")[1] for finding in migration.findings]
    name = migration.files[tmp_path / "goondan.yaml"].partition("name: ")[2].split(" ")[0]
    assert f"{name}: {' '.join(seen)}" == expected


@pytest.mark.parametrize(
    ("export", "full"),
    [
        ("lamp.1", "lamp__1"),
        ("lamp.null", "lamp__null"),
        ("lamp.true", "lamp__true"),
        ("lamp.1e5", "lamp__1e5"),
        ("null.a", "null__a"),
        ("123.a", "123__a"),
    ],
)
def test_name_that_looks_like_something_else_is_quoted(tmp_path: Path, export: str, full: str) -> None:
    tool = TOOL.replace("slack.post-message", export).partition("    - { name: 'slack.list")[0]
    agent = "kind: Agent\nmetadata: { name: clerk }\nspec: { tools: [Tool/slackToolkit] }"
    swarm = "kind: Swarm\nmetadata: { name: s }\nspec: { entrypoint: Agent/clerk, agents: [Agent/clerk] }\n"
    short = full.partition("__")[2]
    code = f"handlers = {{'{short}': lambda ctx, input: 1}}\n"
    text = "---\n".join(OLD + part for part in (tool, f"{agent}\n", swarm))

    migration = migrated(tmp_path, {"tools/slack.py": code, "goondan.yaml": text})

    (tmp_path / "goondan.yaml").write_text(migration.files[tmp_path / "goondan.yaml"], encoding="utf-8")
    assert list(load_bundle(tmp_path).bound_tools("clerk")) == [full]


def test_tool_with_merged_fields_stays_with_its_names(tmp_path: Path) -> None:
    bound = "spec:\n  <<: { runtime: python }\n  runtime: python"
    text = OLD + TOOL.replace("spec:\n  runtime: python", bound)

    migration = migrated(tmp_path, {**FILES, "tools.yaml": text})

    assert migration.files[tmp_path / "tools.yaml"] == text
    assert "Tool/slackToolkit" in migration.files[tmp_path / "goondan.yaml"]
    assert told(migration) == [
        ("warning", "Agent/clerk", "spec.modelConfig"),
        ("warning", "Swarm/default", "spec.policy.lifecycle.autoPauseIdleSeconds"),
        ("error", "Tool/slackToolkit", "spec.runtime"),
    ]


STAYS = [
    ("runtime: python", "auth: { oauthAppRef: OAuthApp/a }\n  runtime: python", "spec.auth"),
    ("'slack.list.all',", "'slack.list.all', auth: { scopes: [a] },", "spec.exports[1].auth"),
    ("./tools/slack.py", "./tools/slack.js", "spec.entry"),
    ("slack.list.all", "slack.post.message", "spec.exports"),
    ("{ name: slackToolkit }", "{}", "spec.exports"),
]


@pytest.mark.parametrize(("old", "new", "path"), STAYS)
def test_tool_without_current_form_stays_unchanged(tmp_path: Path, old: str, new: str, path: str) -> None:
    text = OLD + TOOL.replace(old, new)
    files = {**FILES, "tools.yaml": text}

    migration = migrated(tmp_path, files)

    assert migration.files[tmp_path / "tools.yaml"] == text
    assert "Tool/slackToolkit" in migration.files[tmp_path / "goondan.yaml"], "so its name stays as well"
    assert [found[2] for found in told(migration) if found[0] == "error"] == [path]


def test_tool_named_goondan_stays_without_other_name(tmp_path: Path) -> None:
    text = OLD + TOOL.replace("slackToolkit", "goondan").replace("slack.", "goondan.")

    migration = migrated(tmp_path, {"tools/goondan.py": ENTRY, "tools.yaml": text})

    assert migration.changed == ()
    assert told(migration) == [("error", "Tool/goondan", "spec.exports")]


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("async def post(ctx, input):\n    return await ctx.oauth.get_access_token(a=1)\n", ["ctx.oauth"]),
        ("def post(ctx, /, input):\n    return ctx.turn.id, input.text\n", ["ctx.turn"]),
        ("def post(ctx, /):\n    return ctx.turn.id\n", ["ctx.turn"]),
        ("post = lambda ctx, _: (ctx.turn.id, ctx.workdir, ctx.step)\n", ["ctx.step", "ctx.turn"]),
        ("class A:\n    def post(self, input):\n        return self.turn\n", []),
        (
            "def post(ctx, input):\n    return ctx.pending('x'), ctx.cancelled, ctx.runtime\n",
            [],
        ),
        ("def post(ctx:\n", []),
    ],
)
def test_tool_whose_code_asks_for_older_context_stays(tmp_path: Path, code: str, asked: list[str]) -> None:
    migration = migrated(tmp_path, {**FILES, "tools/slack.py": code})

    errors = [finding for finding in migration.findings if finding.level == "error"]
    assert [finding.message.split("'")[1] for finding in errors] == asked
    assert all(finding.file == str((tmp_path / "tools/slack.py").resolve()) for finding in errors)
    assert (tmp_path / "tools.yaml" in migration.changed) == (not asked)


@pytest.mark.parametrize(
    ("code", "asked"),
    [
        ("api.pipelines.wrap('toolCall.exec', None)", ["api.pipelines"]),
        ("api.tools.register({'name': 'a.b'})", ["api.tools.register({…})"]),
        ("api.tools.register({'name': 'a__b'}, print)", []),
        ("api.state.get('x')", []),
    ],
)
def test_extension_whose_code_asks_for_older_api_stays(tmp_path: Path, code: str, asked: list[str]) -> None:
    text = "kind: Extension\nmetadata: { name: e }\nspec: { entry: ./e.py }\n"

    migration = migrated(
        tmp_path, {"e.py": f"\n\ndef register(api):\n    {code}\n", "goondan.yaml": OLD + text}
    )

    assert [finding.message.split("'", 1)[1].split("',")[0] for finding in migration.findings] == asked
    assert [finding.line for finding in migration.findings] == [4] * len(asked)


def test_connector_with_triggers_stays(tmp_path: Path) -> None:
    text = OLD + "kind: Connector\nmetadata: { name: c }\nspec: { entry: ./c.js, triggers: [] }\n"

    migration = migrated(tmp_path, {"goondan.yaml": text})

    assert told(migration) == [("error", "Connector/c", "spec.triggers")]
    assert migration.changed == ()


def test_model_gets_names_of_today(tmp_path: Path) -> None:
    text = f"{OLD}kind: Model\nmetadata: {{ name: gpt }}\nspec:\n  provider: openai-chat # as ever\n"
    fields = "  name: gpt-9\n  endpoint: http://127.0.0.1:8000/v1\n"

    migration = migrated(tmp_path, {"goondan.yaml": text + fields})

    assert migration.findings == []
    new = text.replace("agents.example.io/v1alpha1", "goondan.ai/v1")
    renamed = fields.replace("name", "model").replace("endpoint", "baseUrl")
    assert migration.files[tmp_path / "goondan.yaml"] == new + renamed


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        ("{ provider: x }", "spec"),
        ("{ provider: x, name: y, model: z }", "spec.model"),
        ("{ provider: x, name: y, region: z }", "spec.region"),
    ],
)
def test_model_that_has_no_form_of_today_stays(tmp_path: Path, spec: str, path: str) -> None:
    text = f"{OLD}kind: Model\nmetadata: {{ name: gpt }}\nspec: {spec}\n"

    migration = migrated(tmp_path, {"goondan.yaml": text})

    assert told(migration) == [("error", "Model/gpt", path)]
    assert migration.changed == ()


def test_swarm_with_two_entry_agent_spellings_stays(tmp_path: Path) -> None:
    text = OLD + SWARM.replace("  agents:", "  entryAgent: Agent/clerk\n  agents:")

    migration = migrated(tmp_path, {**FILES, "goondan.yaml": text})

    assert ("error", "Swarm/default", "spec.entryAgent") in told(migration)
    assert "entrypoint: Agent/clerk # first" in migration.files[tmp_path / "goondan.yaml"]


def test_resource_without_kind_is_reported(tmp_path: Path) -> None:
    migration = migrated(
        tmp_path, {**FILES, "goondan.yaml": f"{OLD}metadata: {{ name: x }}\n---\n{NEW}{MODEL}"}
    )

    assert ("error", "", "kind") in told(migration)


def test_version_of_references_changes_but_not_lookalikes(tmp_path: Path) -> None:
    use = "{ apiVersion: agents.example.io/v1alpha1, kind: Tool, name: bash }"
    agent = f"""\
kind: Agent
metadata: {{ name: clerk, labels: {{ apiVersion: agents.example.io/v1alpha1 }} }}
spec:
  modelConfig: {{ modelRef: {{ apiVersion: agents.example.io/v1alpha1, kind: Model, name: gpt }} }}
  tools: [{use}, {{ ref: {use} }}]
"""
    swarm = f"kind: Swarm\nmetadata: {{ name: s }}\nspec: {{ entryAgent: {use}, agents: [{use}] }}\n"
    connection = (
        f"kind: Connection\nmetadata: {{ name: k }}\nspec: {{ connectorRef: {use}, swarmRef: {use} }}\n"
    )
    own = "config: { template: { apiVersion: agents.example.io/v1alpha1, kind: Tool, name: x } }"
    extension = f"kind: Extension\nmetadata: {{ name: e }}\nspec: {{ entry: ./e.py, {own} }}\n"
    parts = [OLD + part for part in (agent, swarm, connection, extension)]

    migration = migrated(
        tmp_path,
        {"e.py": "def register(api):\n    api.logger.info('x')\n", "goondan.yaml": "---\n".join(parts)},
    )

    text = migration.files[tmp_path / "goondan.yaml"]
    expected = "---\n".join(parts).replace("agents.example.io/v1alpha1", "goondan.ai/v1")
    for place in ("labels: { apiVersion: ", "template: { apiVersion: "):
        expected = expected.replace(f"{place}goondan.ai/v1", f"{place}agents.example.io/v1alpha1")
    assert text == expected


def test_tools_sharing_export_are_not_both_renamed(tmp_path: Path) -> None:
    second = OLD + TOOL.replace("slackToolkit", "other")

    migration = migrated(tmp_path, {**FILES, "tools.yaml": f"{OLD}{TOOL}---\n{second}"})

    assert [found for found in told(migration) if found[0] == "error"] == [
        ("error", "Tool/other", "spec.exports")
    ]


def test_agents_of_today_follow_new_names_too(tmp_path: Path) -> None:
    migration = migrated(tmp_path, {**FILES, "goondan.yaml": NEW + AGENT})

    text = migration.files[tmp_path / "goondan.yaml"]
    assert text.count("slackToolkit") == 0
    assert "requiredTools: [bash__exec, slack__list-all]" in text


def test_built_in_tool_of_same_name_is_another(tmp_path: Path) -> None:
    use = '{ kind: Tool, name: slackToolkit, package: "@goondan/base" }'

    migration = migrated(tmp_path, {**FILES, "goondan.yaml": NEW + AGENT.replace('"Tool/slackToolkit"', use)})

    assert use in migration.files[tmp_path / "goondan.yaml"]


def test_approval_that_would_be_lost_is_error(tmp_path: Path) -> None:
    swarm = SWARM.replace('"bash__*", slack.post-message', '"bash__*", "slack.p*", "slack*"')

    migration = migrated(tmp_path, {**FILES, "goondan.yaml": f"{OLD}{AGENT}---\n{OLD}{swarm}"})

    [error] = [finding for finding in migration.findings if finding.level == "error"]
    assert (error.resource, error.path) == ("Swarm/default", "spec.policy.toolCalls.approval[1]")
    assert "slack__post-message" in error.message


def test_overrides_of_older_tool_are_reported(tmp_path: Path) -> None:
    use = "selector: { name: slackToolkit }\n      overrides: { spec: { auth: { scopes: [a] } } }"
    agent = AGENT.replace("selector: { name: slackToolkit }", use)

    migration = migrated(tmp_path, {**FILES, "goondan.yaml": OLD + agent})

    assert ("warning", "Agent/clerk", "spec.tools[3].overrides.spec.auth") in told(migration)


def test_shared_text_stays_and_rest_is_rewritten(tmp_path: Path) -> None:
    shared = MODEL.replace("spec: {", "spec: &spec {").replace("name: gpt", "name: &name gpt")
    tool = TOOL.replace("parameters: { type: object }\n", "parameters: &any { type: object }\n")
    tool = tool.replace("parameters: { type: object } }", "parameters: *any }")
    extension = "kind: Extension\nmetadata: { name: e }\nspec: &e { runtime: python, entry: ./echo.py }\n"

    migration = migrated(
        tmp_path,
        {
            **FILES,
            "model.yaml": OLD + shared,
            "tools.yaml": OLD + tool,
            "more.yaml": f"{OLD}{extension}",
            "goondan.yaml": f"{NEW}{AGENT}".replace('- "Tool/slack', '- &t "Tool/slack'),
        },
    )

    errors = [finding for finding in migration.findings if finding.level == "error"]
    assert [(finding.resource, finding.path) for finding in errors] == [
        ("Agent/clerk", "spec.tools[1]"),
        ("Extension/e", "spec.runtime"),
    ]
    assert [file.name for file in migration.changed] == ["goondan.yaml", "model.yaml", "tools.yaml"]


def test_tabs_between_parts_of_line_stay(tmp_path: Path) -> None:
    tool = TOOL.replace(": ", ":\t").replace("} #", "}\t#")

    migration = migrated(tmp_path, {**FILES, "tools.yaml": OLD + tool})

    expected = f"{NEW}{tool}".replace("slackToolkit", "slack").replace("  runtime:\tpython\n", "")
    expected = expected.replace("slack.post", "post").replace("slack.list.all", "list-all")
    assert migration.files[tmp_path / "tools.yaml"] == expected


def test_yaml_only_faster_library_reads_is_reported_with_line(tmp_path: Path) -> None:
    files = {"model.yaml": OLD + MODEL.replace("any }", "any, more? }")}
    assert inspect_bundle(write(tmp_path, files))[1] == []

    with pytest.raises(BundleError) as refused:
        migrate_bundle(tmp_path)

    [finding] = refused.value.findings
    assert (Path(finding.file).name, finding.line, finding.code) == ("model.yaml", 4, "E_CONFIG_PARSE_ERROR")


@pytest.mark.parametrize("text", ["a: [", "a: 1\na: 2\n", "\0"])
def test_invalid_yaml_is_not_migrated(tmp_path: Path, text: str) -> None:
    with pytest.raises(BundleError):
        migrated(tmp_path, {**FILES, "goondan.yaml": text})


@pytest.mark.parametrize(
    "text",
    [
        "kind: Tool\n",
        "kind: 5\nspec: []\n",
        "kind: Tool\nmetadata: 5\nspec: { exports: 5 }\n",
        "kind: Tool\nmetadata: { name: x }\nspec: { exports: [5, {}, { name: 5 }] }\n",
        "kind: Agent\nmetadata: { name: [] }\nspec: { tools: [5, { ref: 5 }, { selector: [] }] }\n",
        "kind: Swarm\nspec: { policy: 5, entrypoint: [] }\n",
        "kind: Connector\nspec: x\n",
    ],
)
def test_invalid_resource_is_rewritten_where_possible(tmp_path: Path, text: str) -> None:
    migration = migrated(tmp_path, {"goondan.yaml": f"{OLD}{text}---\n{OLD}{MODEL}"})

    assert f"---\n{NEW}{MODEL}" in migration.files[tmp_path / "goondan.yaml"]


@settings(
    max_examples=3 * settings().max_examples,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(text=TEXTS)
def test_any_yaml_migrates_to_yaml_without_raising(tmp_path: Path, text: str) -> None:
    folder = write(tmp_path, {})
    (folder / "goondan.yaml").write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        migration = migrate_bundle(folder)
    except BundleError:
        return

    [(file, rewritten)] = migration.files.items()
    before, _ = parse_documents(read_text(file)[0], "before")
    after, faults = parse_documents(rewritten, "after")
    assert faults == []
    assert [_kind(document.data) for document in after] == [_kind(document.data) for document in before]
    stays = {finding.resource for finding in migration.findings if finding.level == "error"}
    assert stays or V1_API_VERSION not in {_version(document.data) for document in after}


def _kind(data: Any) -> Any:
    return data.get("kind") if isinstance(data, dict) else None


def _version(data: Any) -> Any:
    return str(data.get("apiVersion")) if isinstance(data, dict) else None
