"""What the author of an agent sees of its Steps: ``async with ctx.step() as step``.

::

    async def handle(ctx, event):
        messages = [{"role": "user", "content": event.input}]
        while True:
            async with ctx.step() as step:
                reply = await ask_the_model(messages, tools=step.catalog.to_openai(), told=step.blocks)
                messages.append(reply)
                messages += [result.message for result in await step.run(reply)]
            if not step.should_continue:
                return reply["content"]
"""

from typing import Any, Protocol

from goondan_tasks.bundle.catalog import ToolCatalog
from goondan_tasks.extension_api import StepResult
from goondan_tasks.messages import JsonObject
from goondan_tasks.model_messages import StepCallResult

__all__ = ["AgentStep", "StepCallResult", "StepResult", "ToolCatalog"]


class AgentStep(Protocol):
    """One Step of a Turn: one call of the model, and the tool calls that it makes (003 §1.2).

    Step middlewares have done what they do before ``next()`` when its block begins, and do the rest when the
    block ends. What is raised in the block passes through them.
    """

    @property
    def id(self) -> str:
        """The ``stepId`` of its calls."""

    @property
    def index(self) -> int:
        """How many Steps the Turn has had before."""

    @property
    def catalog(self) -> ToolCatalog:
        """What the model may call: ``.to_openai()``, ``.to_anthropic()``, ``.to_mcp()``."""

    @property
    def blocks(self) -> tuple[JsonObject, ...]:
        """What the model is told besides its messages, the most important first."""

    @property
    def result(self) -> StepResult | None:
        """What the middlewares have made of the Step, once its block has ended."""

    @property
    def should_continue(self) -> bool:
        """Whether the Turn goes on, once the block has ended: the model has called tools, whose results it is
        to see, or a middleware put ``shouldContinue`` into the result's metadata."""

    def run(self, reply: Any, *, timeout_seconds: float | None = None) -> Any:
        """Run the tool calls of the model side by side, through the agent's queue.

        ``reply`` is the model's whole message, which handlers and middlewares are shown, or the list of its
        tool calls; as OpenAI, Anthropic or we write them. The results come in call order, each with
        a ``message``: what the model expects back for it. Whatever the model has got wrong is a result too.
        ``timeout_seconds`` limits each run.

        Raises:
            ToolInputValidationError: it is no reply of a model, or something in it is no tool call at all.
        """
