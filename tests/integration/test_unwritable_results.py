"""Results that middlewares have made and nobody can write down: their calls end nevertheless."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from goondan_tasks.testing import LocalStack

BUNDLE = """
apiVersion: goondan.ai/v1
kind: Tool
metadata: { name: kiln }
spec: { entry: kiln.py, exports: [{ name: fire }] }
---
apiVersion: goondan.ai/v1
kind: Extension
metadata: { name: spoiler }
spec: { entry: spoiler.py }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: potter }
spec: { tools: [Tool/kiln], extensions: [Extension/spoiler] }
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: default }
spec: { entryAgent: Agent/potter, agents: [Agent/potter] }
"""

SPOILER = """
from goondan_tasks.messages import ToolCallError

ERROR = ToolCallError(code="E_OWN", name="Own", message="m")
SPOILT = {
    "output": {"status": "error", "error": ERROR, "output": {1, 2}},
}


def register(api):
    async def spoil(ctx):
        result = await ctx.next()
        return result.model_copy(update=SPOILT[ctx.args["what"]])

    api.pipeline.register("toolCall", spoil)
"""


@pytest.fixture(scope="module")
def pottery(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    folder: Path = tmp_path_factory.mktemp("pottery")
    (folder / "goondan.yaml").write_text(BUNDLE)
    (folder / "kiln.py").write_text("handlers = {'fire': lambda ctx, input: None}\n")
    (folder / "spoiler.py").write_text(SPOILER)
    with LocalStack(folder) as stack:
        yield stack


@pytest.mark.parametrize("what", ["output"])
def test_call_with_unwritable_result_ends_with_error(pottery: LocalStack, what: str) -> None:
    error = pottery.client.call("potter", "kiln__fire", {"what": what}, timeout=30).error

    assert error is not None
    assert error.code == "E_TOOL_BAD_OUTPUT"
