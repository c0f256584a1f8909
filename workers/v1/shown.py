"""What one run of a call is shown of its Turn, its Step and its catalog: read once, for all who look."""

from collections.abc import Sequence
from dataclasses import dataclass

from goondan_tasks.v1_api import Step, Turn, V1CatalogItem


@dataclass(frozen=True, slots=True)
class Shown:
    """It; the functions around a tool see the same as its handler."""

    turn: Turn
    step: Step
    tool_catalog: Sequence[V1CatalogItem]
