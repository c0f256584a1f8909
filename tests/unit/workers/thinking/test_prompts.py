from pathlib import Path

from goondan_tasks.bundle.resources import AgentResource
from workers.thinking.turn import _prompt_of


def test_prompt_omits_its_files_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_bytes(b"\xef\xbb\xbfBe kind.\r\n")
    agent = AgentResource.model_validate({
        "apiVersion": "goondan.ai/v1",
        "kind": "Agent",
        "metadata": {"name": "a"},
        "spec": {"modelConfig": {"modelRef": "Model/m"}, "prompts": {"systemRef": "./prompt.md"}},
    })  # fmt: skip
    assert _prompt_of(agent, tmp_path) == "Be kind."
