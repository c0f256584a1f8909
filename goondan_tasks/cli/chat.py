"""``goondan chat``: a session with an agent in the terminal, or over a pipe."""

import io
import math
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from rich.text import Text

from broker_config import serializer
from broker_config.connections import retrying
from goondan_tasks.authoring.handoff import EventFields
from goondan_tasks.cli.calls import Agent
from goondan_tasks.cli.live_output import TurnView, ending_text
from goondan_tasks.cli.options import Auth, Origin, flag, name_option, parse_positive_seconds, seconds_option
from goondan_tasks.cli.output import (
    Screen,
    describe_failure,
    pretty,
    write_failure,
)
from goondan_tasks.cli.session import Session, can_ask, login, require_agent, takes_client
from goondan_tasks.client import Client, PendingCall, TurnEnded, TurnEvent
from goondan_tasks.client.decisions import DecidedCall
from goondan_tasks.client.following import CHAT_SECONDS, FollowTerms, TurnFollower
from goondan_tasks.contract.errors import (
    CallNotFoundError,
    GoondanError,
    HandoffError,
    ToolCancelledError,
)
from goondan_tasks.contract.events import completion_id
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.wording import printable
from goondan_tasks.ledger.record import CallRecord

#: how long a Turn may take
TURN_SECONDS = 3600.0

_HELP = """\
/new       start a new instance: the agent forgets the conversation
/instance  show the instance
/help      show this help
/quit      end, like Ctrl-D
Ctrl-C cancels the running Turn."""


@takes_client
def chat(
    session: Session,
    client: Client,
    agent: Agent,
    instance: Annotated[str | None, name_option("K", "Continue in instance K. Default: a new one.")] = None,
    reasoning: Annotated[bool, flag("Show the model's reasoning, if it reports any.", "--reasoning")] = False,
    auth: Auth = None,
    origin: Origin = None,
    limit: Annotated[
        float,
        seconds_option(
            "Tell the agent to stop when a Turn has taken S seconds.",
            "--timeout",
            parser=parse_positive_seconds,
        ),
    ] = TURN_SECONDS,
) -> None:
    """Talk to an agent: see its text and tool calls as they come, and decide about approvals.

    Ctrl-C cancels the running Turn; Ctrl-D or /quit ends. Off a terminal each line of stdin is an input, and
    stdout gets what the agent says, or with --json all events, one per line.
    """
    require_agent(client, agent)
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    fields = EventFields(auth=auth, origin=origin)
    Chat(session, client, agent, instance or new_instance(), fields, limit, reasoning).run()


def _json_or_text(line: str) -> Any:
    try:
        return serializer.decode(line)
    except serializer.NotJsonError:
        return line


def new_instance() -> str:
    return f"chat-{secrets.token_hex(4)}"


@dataclass(slots=True)
class Chat:
    session: Session
    client: Client
    agent: str
    instance: str
    fields: EventFields
    limit: float
    reasoning: bool
    #: the calls for which approval was asked
    asked: set[str] = field(default_factory=set)

    @property
    def is_with_person(self) -> bool:
        """Whether a person types and reads on a terminal."""
        return can_ask(self.session.output) and sys.stdout.isatty()

    def run(self) -> None:
        self._say(f"{self.agent} in instance {self.instance} · /help for help, Ctrl-D to end")
        if self.is_with_person:
            self._decide(None)
        for line in self._lines():
            match line.strip():
                case "":
                    continue
                case "/quit":
                    break
                case "/new":
                    self.instance = new_instance()
                    self._say(f"instance {self.instance}")
                case "/instance":
                    self._say(f"instance {self.instance}")
                case "/help":
                    self._say(_HELP)
                case command if re.fullmatch(r"/\w+", command):
                    self._write_failure(
                        {"code": "E_USAGE", "message": f"There is no command {command}; see /help."}
                    )
                case _:
                    self._turn(_json_or_text(line) if self.session.output.as_json else line)
        self._say(f"Continue with: goondan chat {self.agent} --instance {self.instance}")

    def _lines(self) -> Iterator[str]:
        if not self.is_with_person:
            yield from (line.removesuffix("\n") for line in sys.stdin or ())
            return
        with suppress(ImportError):  # for line editing and a history
            import readline  # noqa: F401
        while True:
            try:
                yield input("> ")
            except EOFError:
                self.session.output.note("")
                return
            except KeyboardInterrupt:
                self._say("\nPress Ctrl-D to end.")

    def _say(self, text: str) -> None:
        if not self.session.output.as_json:
            self.session.output.note(Text(printable(text), style="dim"))

    def _fail(self, error: GoondanError) -> None:
        self._write_failure(describe_failure(error))

    def _write_failure(self, failure: JsonObject) -> None:
        write_failure(failure, replace(self.session.output, is_compact=True), label=failure["code"])

    def _turn(self, input: Any) -> None:
        """Ask the agent, show its Turn, and ask about calls in it that wait for an approval."""
        fields = EventFields(instance_key=self.instance, keep=CHAT_SECONDS, **self.fields)
        try:
            _, follower = self.client.following(self.agent, input, timeout=self.limit, **fields)
        except GoondanError as error:
            return self._fail(error)
        if self._follow(follower, self.agent):
            self._decide(follower.event_id)
        return None

    def _follow(self, follower: TurnFollower, agent: str, call: DecidedCall | None = None) -> bool:
        """Show a Turn; return whether it has ended. Neither an error nor Ctrl-C ends the session."""
        live = Screen() if sys.stdout.isatty() else None
        shown = TurnView(self.client, agent, live=live, reasoning=self.reasoning)
        try:
            with closing(follower.events(ticks=True)) as events, closing(shown) as view:
                for event in events:
                    with retrying(math.inf):
                        for one in (event,) if call is None else (*call.events(), event):
                            self._show(one, view)
                    if call is not None and call.comes_later:
                        break
        except KeyboardInterrupt:
            is_over = follower.is_called_off or (call is not None and call.cancel())
            self._say("cancelled" if is_over else "stopped waiting; the Turn may go on")
            if self.session.output.as_json:
                self._fail(ToolCancelledError())
            return False
        except GoondanError as error:
            self._fail(error)
            return isinstance(error, HandoffError)
        return True

    def _show(self, event: TurnEvent | None, view: TurnView) -> None:
        if not self.session.output.as_json:
            view.show(event)
            if isinstance(event, TurnEnded):
                self._end(event, view)
        elif event is not None:
            replace(self.session.output, is_compact=True).document(event.to_wire())

    def _end(self, event: TurnEnded, view: TurnView) -> None:
        answer = event.result.response
        if not view.has_shown(answer):
            self.session.output.print(pretty(answer))
        if tokens := ending_text(event):
            self._say(tokens)

    def _decide(self, event_id: str | None) -> None:
        """Ask about the calls that wait for an approval, and show how the agent continues."""
        try:
            waiting = [record for record in self._waiting(event_id) if record.id not in self.asked]
        except GoondanError as error:
            return self._fail(error)
        for record in waiting:
            self.asked.add(record.id)
            self._ask(record)
        return None

    def _waiting(self, event_id: str | None) -> list[CallRecord]:
        """Return the waiting calls of this instance, and of other agents in a Turn's trace."""
        found, trace_id = self.client.approvals(), None
        if found and event_id is not None:
            with suppress(CallNotFoundError):
                trace_id = self.client.record(event_id).call.trace_id
        own = self.agent, self.instance
        return [
            one
            for one in found
            if (one.call.agent_name, one.call.instance_key) == own or one.call.trace_id == trace_id
        ]

    def _ask(self, record: CallRecord) -> None:
        later = f"goondan approvals approve {record.id}, or deny"
        if not self.is_with_person:
            return self._say(f"{record.call.tool_name} waits for an approval: {later}")
        self._say(f"{record.call.agent_name} waits for your approval of {record.call.tool_name} with")
        self.session.output.print(pretty(record.call.args))
        try:
            said = input("Approve? [y/N, or why not] ").strip()
        except (EOFError, KeyboardInterrupt):
            return self._say(f"\nNot decided. Later: {later}")
        call = DecidedCall(self.client, record)

        def begin() -> PendingCall:
            if said.lower() in {"y", "yes"}:
                self.client.approve(record.id, login())
            else:
                self.client.deny(record.id, "" if said.lower() in {"n", "no"} else said, login())
            return self.client.expect(follower.event_id, call.look)

        follower = self.client.follower(completion_id(record.call, record.id), begin, FollowTerms(opens=True))
        if self._follow(follower, record.call.agent_name, call):
            self._decide(follower.event_id)
        return None
