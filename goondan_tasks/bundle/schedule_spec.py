"""The fields of a Schedule in YAML; those in Redis are in :mod:`goondan_tasks.contract.schedules`."""

from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from goondan_tasks.bundle.fields import NonEmpty, OneRef, ResourceModel, by_rule
from goondan_tasks.bundle.findings import FieldError
from goondan_tasks.contract.events import DEFAULT_INSTANCE
from goondan_tasks.contract.messages import LONGEST_INSTANCE_KEY, JsonObject
from goondan_tasks.contract.schedules import CATCH_UP_LIMIT, MOST_CAUGHT_UP, CatchUp, Overlap
from goondan_tasks.contract.timing import LONGEST_JITTER, interval_seconds, require_cron, require_zone


class ScheduleSpec(ResourceModel):
    """What is due when: a Turn of an Agent, or a call of one of its tools. These fields are all ours."""

    #: exactly one of the two
    cron: Annotated[str, by_rule(require_cron)] | None = None
    every: Annotated[str, by_rule(interval_seconds)] | None = None
    #: of ``cron``
    time_zone: Annotated[str, by_rule(require_zone)] | None = None
    jitter_seconds: Annotated[int, Field(ge=0, le=LONGEST_JITTER)] = 0
    #: which slots are made up for that passed while no worker ran
    catch_up: CatchUp = "once"
    catch_up_limit: Annotated[int, Field(gt=0, le=MOST_CAUGHT_UP)] = CATCH_UP_LIMIT
    #: what becomes of a slot while an earlier run is open
    overlap: Overlap = "queue"
    agent_ref: OneRef
    #: of the Turn
    input: Any = None
    #: instead of a Turn
    tool: NonEmpty | None = None
    args: JsonObject = Field(default_factory=dict)
    instance_key: Annotated[str, Field(min_length=1, max_length=LONGEST_INSTANCE_KEY)] = DEFAULT_INSTANCE

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        if (self.cron is None) == (self.every is None):
            raise FieldError("exactly one of 'cron' and 'every' is required", "Keep one of the two.")
        if self.every is not None and self.time_zone is not None:
            message = "'every' counts real time, so no 'timeZone' changes it"
            raise FieldError(message, "Remove 'timeZone', or write 'cron' instead of 'every'.")
        if self.tool is not None and self.input is not None:
            raise FieldError("'input' is for a Turn of the Agent", "Write 'args' for the tool.")
        if self.tool is None and self.args:
            raise FieldError("'args' are for a tool", "Add 'tool', or write 'input' for the Agent.")
        if self.every is not None and self.jitter_seconds >= interval_seconds(self.every):
            raise FieldError("'jitterSeconds' is not shorter than 'every'", "Write fewer seconds.")
        if self.catch_up == "all" and self.overlap != "queue":
            message = f"'catchUp: all' makes up for each slot, and 'overlap: {self.overlap}' drops some"
            raise FieldError(message, "Write 'overlap: queue', or another 'catchUp'.")
        return self
