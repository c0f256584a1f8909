"""A client's connection: what all of its methods share."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Self

from broker_config.connections import connect
from broker_config.settings import Settings, SettingsError
from goondan_tasks.bundle import Bundle, load_bundle
from goondan_tasks.client.active_refs import ActiveRefs
from goondan_tasks.client.broker_errors import broker_errors
from goondan_tasks.client.known_agents import KnownAgents
from goondan_tasks.client.mailroom import Mailroom
from goondan_tasks.client.net import LOOK_SECONDS, Net, not_found, unreadable
from goondan_tasks.client.pending_call import CallActions, PendingCall
from goondan_tasks.client.result_listener import ResultListener
from goondan_tasks.client.submitter import Accepted, Submitter
from goondan_tasks.client.sweeper import Sweeper
from goondan_tasks.dispatch import dispatch_for
from goondan_tasks.errors import (
    BrokerUnreachableError,
    ConfigError,
)
from goondan_tasks.instances.housekeeping import Housekeeping
from goondan_tasks.ledger.completions import Completions
from goondan_tasks.ledger.dead_letters import DeadLetters
from goondan_tasks.ledger.ledger import Ledger
from goondan_tasks.ledger.record import CallRecord
from goondan_tasks.ledger.settlement import Settlement
from goondan_tasks.messages import ToolCallResult
from goondan_tasks.new_call import Draft
from goondan_tasks.roster import AgentRecord, Roster, describe_agents
from goondan_tasks.steps import StepStore

#: the longest id of a call, in bytes
LONGEST_ID = 200


class Connection:
    """Everything that one producer process needs, put together. Threads may share it."""

    def __init__(self, settings: Settings, bundle: Bundle | None = None) -> None:
        self.settings = settings
        self._redis = connect(settings.redis_url, name="goondan-client")
        self._ledger = Ledger(self._redis, settings)
        dispatch = dispatch_for(settings)
        self._settlement = Settlement(self._ledger, dispatch, settings.help_url)
        self._sweeper = Sweeper(lambda: self._settlement.sweep("producer"), LOOK_SECONDS)
        self.submitter = Submitter(
            self._ledger, dispatch, self._settlement, max_args_bytes=settings.max_args_bytes
        )
        self._dead_letters = DeadLetters(self._ledger)
        self._steps = StepStore(self._redis, self._ledger.keys, settings.result_ttl_seconds)
        self._completions = Completions(self._ledger, self._settlement, dispatch)
        self._listener = ResultListener(self._redis, self._ledger.keys, self._ledger.result)
        self._net = Net(self._ledger, self._listener, self._sweeper.sweep)
        self._actions = CallActions(
            self._listener.future,
            self._listener.wait,
            self._listener.awaited,
            self._look,
            self._look_for_all,
            lambda: self._net.is_due,
            self._cancel,
            self.record,
        )
        self._roster = Roster(self._redis, self._ledger.keys)
        own = describe_agents(bundle, settings.swarm, settings.workspace) if bundle else ()
        self._known_agents = KnownAgents(self._roster, own)
        self._active_refs = ActiveRefs(self._redis, self._ledger.keys)
        self._mailroom = Mailroom(self._ledger, self._settlement, settings, known_agents=self._known_agents)
        self._housekeeping = Housekeeping(
            self._ledger, settings.state_root_path, lambda: self._known_agents.all().values()
        )

    @classmethod
    def connect(cls, url: str | None = None, *, bundle: Path | str | None = None) -> Self:
        """Make a client of ``url``, default ``GOONDAN_REDIS_URL``; nothing is sent yet.

        ``bundle`` (default ``GOONDAN_BUNDLE``) tells which agents there are; without one, the
        agents that workers have announced are known.

        Raises:
            ConfigError: a setting or the bundle is not valid.
        """
        try:
            settings = Settings.load(redis_url=url, bundle=bundle)
            return cls(settings, load_bundle(settings.bundle) if settings.bundle else None)
        except SettingsError as error:
            raise ConfigError(str(error)) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the subscription, let go of the events that have no answer, and close the connections."""
        self._mailroom.close()
        self._listener.close()
        self._redis.close()

    @property
    def producer(self) -> str:
        """The name under which results are sent here."""
        return self._listener.producer

    def listen(self) -> None:
        """Subscribe to results.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
        """
        with self._broker_errors():
            self._listener.start()

    def expect(self, call_id: str, look: Callable[[str], str]) -> PendingCall:
        """Return a call that is about to be submitted: no result of it is missed from now on.

        Whoever waits for it calls ``look`` now and then, in place of :meth:`look`. An outage does not end
        the waiting.
        """
        return PendingCall(call_id, replace(self._actions, look=look, look_for_all=self._look_patiently))

    def _look_patiently(self, call_id: str) -> bool:
        try:
            return self._look_for_all(call_id)
        except BrokerUnreachableError:
            return False

    def look(self, call_id: str) -> str:
        """Read a call's status, and hand its result to whoever waits here; raises as :meth:`record`."""
        return self._look(call_id)

    def give_up(self, call_id: str, error: Exception) -> None:
        """Let whoever waits for a call be told ``error``."""
        self._listener.fail(call_id, error)

    def send_messages(self, unsent: Mapping[str, bytes]) -> None:
        """Send messages of calls, by id, that the ledger has and could not push.

        Raises:
            BrokerUnreachableError: the broker cannot be reached.
        """
        self._settlement.send(unsent)

    def record(self, call_id: str) -> CallRecord:
        """Return the ledger's record of a call; raises as :meth:`pending` does."""
        require_possible(call_id)
        with self._broker_errors():
            record = self._ledger.record(call_id)
        if record is None:
            raise not_found(call_id)
        return record

    def agents(self) -> dict[str, AgentRecord]:
        """Return the agents that can be called, by name, with their catalogs."""
        with self._broker_errors():
            return self._known_agents.all()

    def _agents_of(self, agent: str | None) -> list[str]:
        return [agent] if agent else list(self.agents())

    def _submit(self, drafts: list[Draft]) -> list[PendingCall]:
        with self._broker_errors():
            workspaces = {agent: self._known_agents.require(agent).workspace for agent in _agents(drafts)}
            named = [self._active_refs.named(draft, workspaces[draft.call.agent_name]) for draft in drafts]
        return self._accept(named, lambda: self.submitter.submit(named, self.producer))

    def _accept(self, drafts: list[Draft], submit: Callable[[], list[Accepted]]) -> list[PendingCall]:
        with self._broker_errors():
            for agent in _agents(drafts):
                self._known_agents.require(agent)
            self._listener.start()
            # the futures stand before the calls do: a result may be quicker than this thread
            pending = [self._pending(draft.id) for draft in drafts]
            for call in submit():
                if not call.is_new:
                    self._look(call.id)
        return pending

    def _pending(self, call_id: str) -> PendingCall:
        return PendingCall(call_id, self._actions)

    def _look(self, call_id: str) -> str:
        """Read a call's status, and hand over its result if there is one.

        Whoever waits also sweeps, so that nobody waits for ever, not even without workers.
        """
        with self._broker_errors():
            result = self._result(call_id)
            if result is None and self._sweeper.sweep():
                result = self._result(call_id)
            record = self._ledger.record(call_id)
        if result is not None:
            self._listener.resolve(call_id, result)
        elif record is None:
            raise not_found(call_id)
        return record.status if record is not None else "done"

    def _look_for_all(self, call_id: str) -> bool:
        with self._broker_errors():
            self._net.look()
        return call_id in self._net.unknown

    def _result(self, call_id: str) -> ToolCallResult | None:
        try:
            return self._ledger.result(call_id)
        except ValueError as error:
            raise unreadable(call_id, error) from error

    def _broker_errors(self) -> AbstractContextManager[None]:
        return broker_errors(self.settings.redis_url)

    def _cancel(self, call_id: str) -> None:
        require_possible(call_id)
        with self._broker_errors():
            self._settlement.cancel(call_id, "producer")


def _agents(drafts: Iterable[Draft]) -> set[str]:
    return {draft.call.agent_name for draft in drafts}


def require_possible(call_id: str) -> None:
    """Refuse what no call is called, before Redis is asked.

    Raises:
        CallNotFoundError: it is too long, or no text that can be sent.
    """
    try:
        size = len(call_id.encode())
    except UnicodeEncodeError as error:
        raise not_found(call_id) from error
    if size > LONGEST_ID:
        raise not_found(f"{call_id[:LONGEST_ID]}…")
