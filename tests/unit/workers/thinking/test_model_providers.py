"""Providers that are loaded while a worker starts."""

import threading
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.bundle import load_bundle
from workers.thinking.model_providers import ModelProviders
from workers.thinking.providers import ModelProvider

BUNDLE = """
apiVersion: goondan.ai/v1
kind: Model
metadata: {name: bright}
spec: {provider: openai-chat, model: any, apiKey: {value: none}}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: thinker}
spec: {modelConfig: {modelRef: Model/bright}}
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: {name: plain}
spec: {}
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: {name: swarm}
spec: {agents: [{ref: Agent/thinker}, {ref: Agent/plain}], entryAgent: Agent/thinker}
"""


@pytest.fixture
def models(tmp_path: Path) -> ModelProviders:
    (tmp_path / "goondan.yaml").write_text(BUNDLE, encoding="utf-8")
    return ModelProviders(load_bundle(tmp_path))


def test_served_agents_providers_load_before_worker_is_warm(
    models: ModelProviders, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_load, loaded = threading.Event(), list[str]()

    def load(provider: ModelProvider) -> Any:
        may_load.wait()
        loaded.append(provider.resource.name)

    monkeypatch.setattr(ModelProvider, "load", load)
    models.warm_up(["thinker", "plain"])
    assert not models.is_warm(0.01)
    may_load.set()
    assert models.is_warm(60)
    assert loaded == ["bright"]


def test_worker_without_thinking_agents_loads_no_provider(
    models: ModelProviders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ModelProvider, "load", lambda _: pytest.fail("it was loaded"))
    before = set(threading.enumerate())  # the thread of another test may end meanwhile
    models.warm_up(["plain"])
    assert models.is_warm(0)
    assert not [one for one in set(threading.enumerate()) - before if one.name == "goondan-models"]
