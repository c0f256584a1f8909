"""The state of one run of a Turn, or of one request to a model; and a Step that has opened."""

from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from broker_config.scripts import ScriptCall
from goondan_tasks.contract.conversation import Conversation
from goondan_tasks.history import StepRecord

AskModel = Callable[..., Awaitable[str]]


@dataclass(slots=True)
class TurnState:
    """The input of one run of a Turn besides its event, and its output besides its answer."""

    #: set if the agent thinks
    conversation: Conversation | None = None
    #: see :meth:`StepContext.ask_model`; the first argument is the Step's index
    ask_model: AskModel | None = None
    #: tokens by kind
    usage: Counter[str] = field(default_factory=Counter)
    #: how often it thought, by the input's digest
    thinkings: Counter[str] = field(default_factory=Counter)
    #: ``text_response``, ``length``, ``max_steps`` or ``budget``
    finish_reason: str | None = None

    @property
    def tokens(self) -> int:
        return self.usage["input"] + self.usage["output"]

    def note(self, usage: Mapping[str, int], finish_reason: str | None) -> None:
        """Add the tokens of a model's answer, and keep why it ended."""
        self.usage.update(usage)
        self.finish_reason = finish_reason


@dataclass(frozen=True, slots=True)
class OpenedStep:
    """A Step that is not kept yet: a producer's is kept with the result of the call that has opened it."""

    record: StepRecord
    #: keeps it; the answer is false if another run has opened it, see :meth:`Steps.opened_before`
    keeping: ScriptCall[bool]
    #: called once it is kept, or goes with its first calls, so that these are admitted here
    note_kept: Callable[[], object]
