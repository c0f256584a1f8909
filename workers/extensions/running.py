"""For whom extension code runs at this moment: the agent's instance whose Turn, Step or tool call it is."""

from contextvars import ContextVar
from typing import NamedTuple

from goondan_tasks.messages import ToolCall


class Running(NamedTuple):
    """An agent's instance."""

    agent: str
    instance_key: str
    #: what is run, with the auth and the origin of its Turn
    call: ToolCall | None = None


#: ``None`` in ``register`` and in what an extension does in the background
running: ContextVar[Running | None] = ContextVar("running", default=None)
