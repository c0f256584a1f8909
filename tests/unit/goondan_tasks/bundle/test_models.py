import subprocess
import sys
from pathlib import Path

import pytest
from pydantic_ai.providers import infer_provider_class
from pydantic_ai.settings import ModelSettings

from goondan_tasks.bundle import inspect_bundle, models
from goondan_tasks.bundle.findings import Finding
from tests.unit.goondan_tasks.bundle.writing import write

MODEL = "apiVersion: goondan.ai/v1\nkind: Model\nmetadata: { name: bright }\n"
AGENT = "---\napiVersion: goondan.ai/v1\nkind: Agent\nmetadata: { name: coder }\n"
OPENAI = f"{MODEL}spec: {{ provider: openai, model: gpt-5 }}\n"
THINKS = f"{AGENT}spec: {{ modelConfig: {{ modelRef: Model/bright }} }}\n"


def found(tmp_path: Path, text: str) -> list[Finding]:
    return inspect_bundle(write(tmp_path, {"goondan.yaml": text}))[1]


def test_agent_that_thinks_has_no_findings(tmp_path: Path) -> None:
    assert found(tmp_path, OPENAI + THINKS) == []


def test_bundle_of_usual_models_is_checked_without_library(tmp_path: Path) -> None:
    params = "params: { temperature: 0.2, maxTokens: 4000 }"
    write(tmp_path, {"goondan.yaml": OPENAI + THINKS.replace("Model/bright", f"Model/bright, {params}")})
    program = (
        "import sys; from pathlib import Path; from goondan_tasks.bundle import inspect_bundle\n"
        "print(inspect_bundle(Path(sys.argv[1]))[1], 'pydantic_ai' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True)
    assert told.stdout == "[] False\n"


def test_provider_facts_known_without_library_match_library() -> None:
    assert ModelSettings.__annotations__.keys() >= models.COMMON_PARAMETERS
    for provider, package in models.PROVIDER_PACKAGES.items():
        assert infer_provider_class(provider).__module__.startswith("pydantic_ai.providers.")
        assert package in sys.modules


@pytest.mark.parametrize(
    ("written", "meant"), [("opnai", "openai"), ("antropic", "anthropic"), ("vlm", "vllm")]
)
def test_unknown_provider_is_error_suggesting_known_provider(
    tmp_path: Path, written: str, meant: str
) -> None:
    [finding] = found(tmp_path, f"{MODEL}spec: {{ provider: {written}, model: x }}\n")
    assert (finding.level, finding.path) == ("error", "spec.provider")
    assert finding.suggestion == f"Did you mean '{meant}'?"


def test_missing_provider_package_suggests_its_installation(tmp_path: Path) -> None:
    [finding] = found(tmp_path, f"{MODEL}spec: {{ provider: cohere, model: x }}\n")
    assert (finding.level, finding.path) == ("warning", "spec.provider")
    assert finding.suggestion == "pip install 'pydantic-ai-slim[cohere]'"


def test_unread_parameters_are_reported(tmp_path: Path) -> None:
    options = "{ maxTokens: 5, temprature: 1, openaiReasoningEffort: low, anthropicThinkin: 1, cohereX: 1 }"
    params = "{ top_p: 1, topK: 2, max_tokn: 3 }"
    model = f"{MODEL}spec: {{ provider: openai, model: x, options: {options} }}\n"
    agent = THINKS.replace("Model/bright", f"Model/bright, params: {params}")
    assert [(one.level, one.path, one.suggestion) for one in found(tmp_path, model + agent)] == [
        ("warning", "spec.options.temprature", "Did you mean 'temperature'?"),
        ("warning", "spec.options.anthropicThinkin", "Did you mean 'anthropicThinking'?"),
        ("warning", "spec.modelConfig.params.max_tokn", "Did you mean 'maxTokens'?"),
    ]


def test_unset_api_key_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "apiKey: { valueFrom: { env: KEY_OF_THE_TEST } }"
    text = f"{MODEL}spec: {{ provider: openai, model: x, {key} }}\n"
    [finding] = found(tmp_path, text)
    assert (finding.level, finding.path) == ("warning", "spec.apiKey")
    assert "KEY_OF_THE_TEST" in finding.message
    monkeypatch.setenv("KEY_OF_THE_TEST", "sk-1")
    assert found(tmp_path, text) == []


def test_missing_library_warns_once_only_if_agent_thinks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "LIBRARY", "no_such_library")
    assert found(tmp_path, OPENAI) == []
    [finding] = found(tmp_path, OPENAI + THINKS + THINKS.replace("coder", "writer"))
    assert (finding.level, finding.path) == ("warning", "spec.modelConfig")
    assert finding.suggestion == "pip install 'goondan-workers[models]'"


def test_conversations_on_only_one_machine_are_reported(tmp_path: Path) -> None:
    agent = THINKS.replace("spec: {", "spec: { workdir: local,")
    [finding] = found(tmp_path, OPENAI + agent)
    assert (finding.level, finding.path) == ("warning", "spec.workdir")
    with_entry = agent.replace("spec: {", "spec: { entry: ./a.py,")
    (tmp_path / "a.py").write_text("async def handle(ctx, event):\n    return 1\n", encoding="utf-8")
    assert found(tmp_path, OPENAI + with_entry) == []


def test_model_of_older_version_cannot_be_asked(tmp_path: Path) -> None:
    older = OPENAI.replace("goondan.ai/v1", "agents.example.io/v1alpha1")
    [finding] = found(tmp_path, older + THINKS)
    assert (finding.level, finding.path) == ("error", "spec.modelConfig.modelRef")
    assert finding.suggestion == "Migrate it: goondan migrate."
    assert found(tmp_path, older + AGENT + "spec: {}\n") == []
