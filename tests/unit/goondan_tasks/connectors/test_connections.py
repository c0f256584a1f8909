"""What a Connection needs to run."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import load_bundle
from goondan_tasks.connectors.connections import program_of, runnable
from goondan_tasks.contract.errors import ConfigError

BUNDLE = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: clerk }
spec: { tools: [Tool/bash] }
---
apiVersion: goondan.ai/v1
kind: Connection
metadata: { name: shop }
spec:
  connectorRef: Connector/webhook
  NEEDED
"""


@pytest.mark.parametrize(
    "needed",
    [
        "verify: { webhook: { signingSecret: { valueFrom: { env: SHOP_UNSET } } } }",
        "secrets: { SIGNING_SECRET: { valueFrom: { env: SHOP_UNSET } } }",
        "config: { HEADER: { valueFrom: { env: SHOP_UNSET } } }",
    ],
)
def test_missing_variable_is_reported_with_its_connection(
    needed: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("SHOP_UNSET", raising=False)
    (tmp_path / "goondan.yaml").write_text(BUNDLE.replace("NEEDED", needed))
    bundle = load_bundle(tmp_path)
    [connection] = runnable(bundle)
    with pytest.raises(ConfigError, match=r"Connection 'shop': .* SHOP_UNSET") as raised:
        program_of(bundle, connection, None)
    assert raised.value.code == "E_CONFIG_REF_NOT_FOUND"
    assert "Set SHOP_UNSET" in raised.value.suggestion
