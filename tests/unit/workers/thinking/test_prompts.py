from pathlib import Path

from goondan_tasks.bundle.resources import AgentResource
from workers.thinking.turn import _prompt_of


def test_the_byte_order_mark_of_a_prompts_file_is_not_part_of_the_prompt(tmp_path: Path) -> None:
    (tmp_path / "prompt.md").write_bytes(b"\xef\xbb\xbfBe kind.\r\n")
    agent = AgentResource.model_validate({
        "apiVersion": "goondan.ai/v1",
        "kind": "Agent",
        "metadata": {"name": "a"},
        "spec": {"modelConfig": {"modelRef": "Model/m"}, "prompts": {"systemRef": "./prompt.md"}},
    })  # fmt: skip
    assert _prompt_of(agent, tmp_path) == "Be kind."
