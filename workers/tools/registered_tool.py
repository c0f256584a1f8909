"""A tool ready to run."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from goondan_tasks.bundle import BoundTool
from goondan_tasks.messages import JsonObject
from goondan_tasks.schema import ArgumentSchema
from workers.processes.isolation import IsolatedTool


@dataclass(frozen=True, slots=True)
class RegisteredTool:
    """One function with what was declared about it; it is called with a context and the arguments."""

    bound: BoundTool
    handler: Callable[[Any, JsonObject], Any] | IsolatedTool
    arguments: ArgumentSchema
    is_async: bool
