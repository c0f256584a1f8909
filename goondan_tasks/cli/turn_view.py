"""What the terminal shows of a Turn while it goes on: text as it comes, and one line for each tool call."""

import json
import math
import sys
import time
from contextlib import closing, suppress
from typing import Any, cast

from rich.cells import cell_len
from rich.text import Text

from broker_config.connections import retrying
from goondan_tasks.cli.output import (
    STATE_STYLES,
    Output,
    Screen,
    named_message,
    on_one_line,
    printable,
)
from goondan_tasks.cli.waiting import WaitingLine, tell_of_stop
from goondan_tasks.client import (
    AnswerRestarted,
    Client,
    ReasoningDelta,
    TextDelta,
    ToolAnswered,
    ToolCalled,
    TurnAccepted,
    TurnEnded,
    TurnEvent,
)
from goondan_tasks.client.turn_events import TurnFollower
from goondan_tasks.errors import BrokerUnreachableError, CallNotFoundError, HandoffError
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.wording import duration_text

#: characters of a call's arguments that are shown, and of its error
LONGEST_ARGS = 80
LONGEST_ERROR = 200


class TurnView:
    """Shows one Turn: text on ``live`` as it comes, or with ``None`` on stdout when it is complete.

    All else is on stderr: a line for each tool call that has ended, and on a terminal what is waited for.
    """

    def __init__(
        self,
        client: Client,
        agent: str,
        *,
        live: Screen | None,
        is_answer: bool = True,
        reasoning: bool = False,
    ) -> None:
        self._output = Output()
        self._line = WaitingLine(client, agent)
        self._live = live
        #: whether ``live`` is where the answer goes, too
        self._is_answer = is_answer
        self._reasoning = reasoning
        self._columns = Screen(stderr=True).columns
        self._call_id = ""
        #: what the model has said in this Step
        self._said = ""
        #: the style of the text that the cursor is behind; ``None`` at the beginning of a line
        self._written: str | None = None
        #: the calls that run, and since when
        self._calls: dict[str, tuple[ToolCalled, float]] = {}

    def show(self, event: TurnEvent | None) -> None:
        """Show an event; ``None`` is a while without one."""
        match event:
            case None:
                self._wait()
            case TurnAccepted():
                self._call_id = event.id
            case TextDelta():
                self._said += event.text
                self._write(event.text, style="" if self._is_answer else "dim")
            case ReasoningDelta() if self._reasoning:
                self._write(event.text, style="dim italic")
            case AnswerRestarted():
                self._said = ""
                self._note(Text("the answer begins again:", style="dim"))
            case ToolCalled():
                self._end_text()
                self._calls[event.call_id] = event, time.monotonic()
                self._wait()
            case ToolAnswered():
                self._answered(event)
            case TurnEnded():
                self.close()

    def has_shown(self, answer: Any) -> bool:
        """Return whether an answer stands where answers go, and not a part of it, as when Redis was away."""
        if self._live is None or not self._is_answer:
            return False
        if isinstance(answer, str):
            return self._said.strip() == answer.strip()
        with suppress(ValueError):
            return bool(json.loads(self._said) == answer)
        return False

    def close(self) -> None:
        """End what was begun on the screen."""
        self._line.stop()
        self._end_line()

    def _write(self, text: str, style: str) -> None:
        """Write text as it comes; what is written in another style begins on a line of its own."""
        if self._live is None:
            return
        self._line.stop()
        if self._written not in (None, style):
            self._end_line()
        self._live.out(printable(text), end="", style=style)
        self._written = None if text.endswith("\n") else style

    def _end_line(self) -> None:
        if self._written is not None and self._live is not None:
            self._live.out("")
        self._written = None

    def _end_text(self) -> None:
        """End the text of a Step that goes on with tool calls."""
        self._end_line()
        if self._live is None and self._said.strip():
            self._output.print(self._said)
        self._said = ""

    def _note(self, content: Text) -> None:
        self._line.stop()
        self._end_line()
        self._output.note(content)

    def _wait(self) -> None:
        """Show on the line what is waited for."""
        if self._written is not None:
            return None
        if not self._calls:
            try:
                return self._line.show(self._call_id)
            except CallNotFoundError:  # the Turn after an approved call has not begun
                return self._line.stop()
        call, began = next(iter(self._calls.values()))
        more = f" and {len(self._calls) - 1} more" if len(self._calls) > 1 else ""
        waited = duration_text(time.monotonic() - began)
        return self._line.write(Text(f"{call_text(call.tool, call.args)}{more} · {waited}"))

    def _answered(self, event: ToolAnswered) -> None:
        call, began = self._calls.pop(event.call_id, (None, time.monotonic()))
        took = time.monotonic() - began if event.duration_ms is None else event.duration_ms / 1000
        ending = duration_text(took)
        if event.status == "pending":
            ending = "waits for an approval" if event.awaits == "approval" else "its result comes later"
        room = self._columns - len(f"{event.status}    · {ending}") - cell_len(event.tool)
        facts = [call_text(event.tool, None if call is None else call.args, room), ending]
        if event.error is not None:
            facts.append(on_one_line(f"{event.error.code}: {named_message(event.error)}")[:LONGEST_ERROR])
        line = Text().append(event.status, style=f"bold {STATE_STYLES[event.status]}")
        self._note(line.append("  " + " · ".join(facts)))
        if self._calls:
            self._wait()


def show_turn(client: Client, follower: TurnFollower, agent: str) -> tuple[ToolCallResult, bool]:
    """Show a Turn on the terminal; return its result, and whether stdout has its answer already.

    Raises:
        HandoffTimeoutError: it has not ended in time.
        BrokerUnreachableError: Redis could not be reached until then.
    """
    is_answer = sys.stdout.isatty()
    view = TurnView(client, agent, live=Screen(stderr=not is_answer), is_answer=is_answer)
    try:
        with closing(view):
            for event in follower.events(ticks=True):
                with retrying(math.inf):
                    view.show(event)
    except (KeyboardInterrupt, BrokerUnreachableError):
        tell_of_stop(follower.event_id)
        raise
    except HandoffError:
        if follower.result is None:
            raise
    result = cast(ToolCallResult, follower.result)
    return result, view.has_shown(result.output)


def call_text(tool: str, args: Any, room: int = LONGEST_ARGS) -> str:
    """Write a tool call in one line, its arguments shortened to ``room`` columns of a terminal at most."""
    text = Text("" if args in (None, {}) else on_one_line(json.dumps(args, ensure_ascii=False)))
    text.truncate(min(max(room, 1), LONGEST_ARGS), overflow="ellipsis")
    return f"{on_one_line(tool)} {text.plain}".rstrip()


def ending_text(event: TurnEnded) -> str | None:
    """Write the tokens of a Turn, how long it took and why it has ended; ``None`` if it has used none."""
    usage = event.usage
    if not usage:
        return None
    counts = [
        f"{usage.get(kind, 0):,} {kind}" + (f" ({usage[part]:,} {part})" if usage.get(part) else "")
        for kind, part in (("input", "cached"), ("output", "reasoning"))
    ]
    took = None if event.duration_ms is None else duration_text(event.duration_ms / 1000)
    reason = None if event.finish_reason == "text_response" else f"ended by {event.finish_reason}"
    return " · ".join(filter(None, [f"tokens: {', '.join(counts)}", took, reason]))
