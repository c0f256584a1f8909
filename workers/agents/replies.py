"""Sends the answer of a Turn that an outside event began to where the event came from.

The Connection's ``reply`` names a tool of the agent. Its call is stored before the Turn's result, and it has
an id of its Turn: a Turn that runs again after a worker's death makes no second one. It is a call like any
other, with its own attempts, limits and trace; the Turn does not wait for it.
"""

import asyncio
import uuid
from dataclasses import dataclass
from functools import partial
from typing import Any

import structlog

from broker_config import serializer
from goondan_tasks.authoring.handoff import Asker, random_id
from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.reply_spec import Reply
from goondan_tasks.contract.calls import Run
from goondan_tasks.contract.errors import GoondanError, ToolCallConflictError
from goondan_tasks.contract.events import event_of
from goondan_tasks.contract.messages import AgentEvent, ToolCall
from goondan_tasks.contract.output import encoded_output
from goondan_tasks.contract.redaction import KNOWN_SECRETS
from workers.agents.call_services import tool_call
from workers.agents.handoffs import Handoffs
from workers.concurrency.event_loop import is_on_loop
from workers.turns.pipeline import may_block
from workers.turns.steps import patiently

logger = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Replies:
    """Makes the replies of one revision of a bundle."""

    bundle: Bundle
    handoffs: Handoffs
    bundle_ref: str | None

    async def send(self, run: Run, answer: Any) -> None:
        """Submit the reply to a Turn's event, if its Connection declares one, and wait until it is stored.

        One that cannot be made is logged: the Turn has its answer all the same.
        """
        if not self.bundle.connections:
            return
        event = event_of(run.call, run.clock())
        connection = self.bundle.connections.get(str((event.metadata or {}).get("connection_name")))
        if connection is None or connection.spec.reply is None or not _is_from(connection.name, event):
            return
        log = logger.bind(call_id=run.id, connection=connection.name, tool=connection.spec.reply.tool_name)
        try:
            call = self._call(run, connection.spec.reply, event, answer)
            if call is None:
                log.info("reply.nothing_to_send")
            else:
                await self._submit(call)
        except ToolCallConflictError:
            log.info("reply.sent_before")
        except GoondanError as error:
            log.error("reply.not_sent", code=error.code, reason=error.message)

    def _call(self, run: Run, reply: Reply, event: AgentEvent, answer: Any) -> ToolCall | None:
        text = "" if answer is None else _text(answer, run.call.agent_name)
        if not text:
            return None
        bound = self.bundle.bound_tools(run.call.agent_name).get(reply.tool_name)
        properties = (event.metadata or {}).get("properties")
        given = properties if isinstance(properties, dict) else {}
        known = {name: value for name, value in given.items() if isinstance(value, str)}
        args = reply.arguments(bound.export.parameters if bound else None, known, text)
        call_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{run.id} reply").hex
        asker = Asker.of(run.id, run.call, random_id)
        return tool_call(asker, call_id, reply.tool_name, args, bundle_ref=self.bundle_ref)

    async def _submit(self, call: ToolCall) -> None:
        if not self.handoffs.is_ready:
            await may_block(partial(patiently, self.handoffs.get_ready), is_async=is_on_loop())
        [submitted] = self.handoffs.submit_calls([call])
        if is_on_loop():
            await asyncio.shield(asyncio.wrap_future(submitted.accepted))
        else:
            submitted.accepted.result()


def _is_from(connection: str, event: AgentEvent) -> bool:
    """Return whether a Connection has emitted an event; an agent may bear its name, and pass its event on."""
    return (event.source.kind, event.source.name) == ("connector", connection)


def _text(answer: Any, agent: str) -> str:
    """Return an answer as the tool gets it: what the Turn's result has, as it may go to anyone.

    Raises:
        ToolOutputError: it has no JSON form.
    """
    shown = KNOWN_SECRETS.hidden_in_answer(encoded_output(answer, agent).output)
    return shown if isinstance(shown, str) else serializer.encode(shown).decode()
