"""References of the YAML to environment variables."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import inspect_bundle
from goondan_tasks.bundle.findings import Finding
from tests.unit.goondan_tasks.bundle.writing import write

CONNECTION = """
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: default }
spec: { entryAgent: Agent/coder, agents: [Agent/coder] }
---
apiVersion: goondan.ai/v1
kind: Connection
metadata: { name: bot }
spec:
  connectorRef: Connector/webhook
  swarmRef: Swarm/default
  config: { team: { valueFrom: { env: TEAM_OF_THE_TEST } } }
  secrets: { token: { valueFrom: { env: TOKEN_OF_THE_TEST } } }
  verify: { webhook: { signingSecret: { valueFrom: { env: SIGNING_OF_THE_TEST } } } }
"""
VARIABLES = {
    "spec.config.team": "TEAM_OF_THE_TEST",
    "spec.secrets.token": "TOKEN_OF_THE_TEST",
    "spec.verify.webhook.signingSecret": "SIGNING_OF_THE_TEST",
}


def found(tmp_path: Path) -> list[Finding]:
    return inspect_bundle(write(tmp_path, {"goondan.yaml": CONNECTION}))[1]


def test_unset_variables_of_connection_are_warnings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unset = [one for one in found(tmp_path) if one.code == "E_CONFIG_REF_NOT_FOUND"]
    assert {one.path: one.level for one in unset} == dict.fromkeys(VARIABLES, "warning")
    assert all(VARIABLES[one.path] in one.message for one in unset)

    for name in VARIABLES.values():
        monkeypatch.setenv(name, "a value")
    assert found(tmp_path) == []
