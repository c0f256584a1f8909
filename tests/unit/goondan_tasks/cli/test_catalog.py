"""goondan catalog."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import build_catalog, load_bundle
from tests.unit.goondan_tasks.cli.fake_client import FakeClient
from tests.unit.goondan_tasks.cli.invoke import goondan

EXAMPLE = Path(__file__).parents[4] / "examples" / "coding-swarm"
FROM_BUNDLE = ("catalog", "coder", "--bundle", str(EXAMPLE))


@pytest.mark.parametrize("form", ["json", "openai", "anthropic", "mcp"])
def test_the_catalog_is_written_in_every_form(form: str) -> None:
    catalog = build_catalog(load_bundle(EXAMPLE), "coder")
    written = {
        "json": catalog.to_wire,
        "openai": catalog.to_openai,
        "anthropic": catalog.to_anthropic,
        "mcp": catalog.to_mcp,
    }

    assert goondan(*FROM_BUNDLE, "--format", form).document == written[form]()


def test_json_alone_is_the_form_of_the_specification() -> None:
    assert goondan(*FROM_BUNDLE, "--json").document == goondan(*FROM_BUNDLE, "--format", "json").document


def test_with_json_a_providers_form_stays_a_providers_form() -> None:
    both = goondan(*FROM_BUNDLE, "--json", "--format", "openai")

    assert both.document[0]["type"] == "function"


def test_people_get_names_arguments_and_descriptions() -> None:
    rows = goondan(*FROM_BUNDLE).stdout.splitlines()

    assert rows[0].split() == ["tool", "arguments", "from", "description"]
    [write] = [row for row in rows if row.startswith("file-system__write")]
    assert "path content [append]" in write
    assert "Write text into a file" in write


def test_without_a_bundle_it_is_what_the_workers_announced(client: FakeClient) -> None:
    assert goondan("catalog", "coder", "--json").document == list(client.catalog("coder"))


@pytest.mark.parametrize("bundle", [(), ("--bundle", str(EXAMPLE))])
def test_an_unknown_agent_ends_with_three(client: FakeClient, bundle: tuple[str, ...]) -> None:
    assert goondan("catalog", "codr", *bundle).exit_code == 3


def test_an_unknown_form_is_a_usage_error() -> None:
    assert goondan(*FROM_BUNDLE, "--format", "xml").exit_code == 2
