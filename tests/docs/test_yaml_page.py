"""docs/reference/yaml.md lists every field of the resources that are run."""

import pytest

from goondan_tasks.bundle.connection_spec import ConnectionSpec, ConnectorSpec
from goondan_tasks.bundle.fields import ResourceModel
from goondan_tasks.bundle.resource import Resource
from goondan_tasks.bundle.resources import (
    RESOURCE_MODELS,
    AgentSpec,
    BudgetPolicy,
    ChangesetPolicy,
    ExtensionSpec,
    LifecyclePolicy,
    ModelConfiguration,
    ModelSpec,
    PackageSpec,
    Prompts,
    Retry,
    RunPolicy,
    SwarmPolicy,
    SwarmSpec,
    ToolExport,
    ToolSpec,
)
from goondan_tasks.bundle.schedule_spec import ScheduleSpec
from goondan_tasks.bundle.v1_connectors import V1ConnectionSpec, V1ConnectorSpec
from goondan_tasks.bundle.v1_resources import (
    V1AgentSpec,
    V1ExtensionSpec,
    V1LifecyclePolicy,
    V1SwarmPolicy,
    V1SwarmSpec,
    V1ToolExport,
    V1ToolSpec,
)
from tests.docs.pages import page

YAML = page("docs/reference/yaml.md")


def names(model: type[ResourceModel]) -> set[str]:
    """Return the names of a model's fields in YAML."""
    return {str(field.alias) for field in model.model_fields.values()}


@pytest.mark.parametrize(
    ("heading", "fields"),
    [
        ("Every resource", names(Resource) | {"spec"}),
        ("Tool", names(ToolSpec) - names(RunPolicy)),
        ("Export", names(ToolExport) - names(RunPolicy)),
        ("Run policy", names(RunPolicy)),
        ("Retry", names(Retry)),
        ("Agent", names(AgentSpec)),
        ("Model configuration", names(ModelConfiguration)),
        ("Prompts", names(Prompts)),
        ("Model", names(ModelSpec)),
        ("Swarm", names(SwarmSpec)),
        ("Budget", names(BudgetPolicy)),
        ("Lifecycle", names(LifecyclePolicy)),
        ("Changesets", names(ChangesetPolicy)),
        ("Package", names(PackageSpec)),
        ("Extension", names(ExtensionSpec)),
        ("Schedule", names(ScheduleSpec)),
    ],
)
def test_page_lists_every_field(heading: str, fields: set[str]) -> None:
    listed = YAML.section(heading).first_cells()

    assert {name for name in listed if not name.startswith("any of")} == fields


def test_page_lists_older_resources_additions_and_differences() -> None:
    added: set[str] = set()
    for path, older, today in (
        ("spec", V1ToolSpec, ToolSpec),
        ("spec", V1ExtensionSpec, ExtensionSpec),
        ("spec", V1AgentSpec, AgentSpec),
        ("spec", V1SwarmSpec, SwarmSpec),
        ("spec.policy", V1SwarmPolicy, SwarmPolicy),
        ("spec.policy.lifecycle", V1LifecyclePolicy, LifecyclePolicy),
        ("spec.exports[]", V1ToolExport, ToolExport),
        ("spec", V1ConnectorSpec, ConnectorSpec),
        ("spec", V1ConnectionSpec, ConnectionSpec),
    ):
        added |= {f"{path}.{name}" for name in names(older) - names(today)}

    listed = set(YAML.section("Older version").first_cells())

    assert listed == added | {"spec.exports[].name", "spec.prompts"}


def test_page_names_every_kind() -> None:
    [kinds] = [row[1] for row in YAML.section("Every resource").tables()[0] if row[0] == "`kind`"]

    assert set(kinds.split(", ")) == set(RESOURCE_MODELS)
