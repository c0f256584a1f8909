"""Our Redis keys: every family is named here, starts with the namespace and has a TTL.

========================  =========  ==========================================================
key                       type       holds
========================  =========  ==========================================================
``call:<id>``             hash       the ledger's record of one call
``due``                   zset       id -> the ms at which something must be decided about it
``swept``                 string     the ms of the last sweep over the above
``calls:<agent>``         zset       id -> queued at (ms): the agent's recent calls
``running:<agent>``       zset       id -> claimed at (ms): the agent's calls in progress
``dead-letters:<agent>``  zset       id -> died at (ms): the agent's dead letters
``pending:<agent>``       zset       id -> expires at (ms): the agent's calls whose results come later
``approvals:<agent>``     zset       id -> expires at (ms): those of them that wait for an approval
``trace:<name>``          zset       id -> queued at (ms): calls that belong to one another, 50,000 at most
``limits``                zset       limit -> the ms at which its wait queue is due for a look
``limit:<name>``          hash       a limit's state: owner of an idempotencyKey, how long calls take
``holders:<name>``        zset       id -> admitted at (ms): the calls that count for a limit
``line:<name>``           zset       id -> queued at (ms): a limit's wait queue
``waiter:<id>``           hash       a waiting call's limits, and the message for its turn
``waiting:<agent>``       zset       id -> queued at (ms): the agent's calls that wait at a limit
``mailbox:<box>``         list      ids of the events of one agent's instance, in order
``mailboxes:<agent>``     zset      box -> since (ms), or last served: where events wait or are handled
``fetched:<token>``       string     the event that a producer got for this token
``late-answers``          hash      agent -> answers that came after their requests had ended
``counts:<row>``          string     what a worker process has counted of its calls, for metrics
``counted``               zset       row -> last written (s), to find the above
``lost-calls``            hash       agent -> calls whose worker has died with them
``instances``             zset       directory -> last used (ms): every instance's directory
``instance:<directory>``  hash       an instance: its agents, their owners, and the guests in its directory
``extension:<digest>``    hash      what an extension remembers for one instance of an agent
``collector:<root>``      string     the worker that looks for instances unused too long, below one state root
``commit-lock:<workspace>``  string   whose turn it is to commit a changeset of the bundle
``revision:<workspace>``  string     the revision of the bundle that is active, and the one that is to be
``revision-load:<workspace>:<ref>``  string  the worker that loads a revision; ``:begun``, how many have
``step-revision:<digest>``  string     the revision of the last Step of one instance of an agent
``agents``                hash       agent -> its catalog, for producers without the bundle
``worker:<row>``          string     a live worker's description; the row is its process's id
``workers``               zset       row -> last seen (s), to find the above
``mail:<agent>``          channel   something waits in a mailbox of the agent
``upkeep:<agent>``        string     crash back-off of the agent's workers: starts, crashes, reason
``orchestrated:<agent>``  string     an orchestrator looks after the agent
``shutdown:<target>``     string     the last request that ``agent:<name>`` or ``worker:<name>`` drain
``step:<id>``             hash       a Step: what was fixed when it opened
``catalog:<digest>``      string     a Tool Catalog, for all the Steps that have the same
``model-request:<id>``    string     what a model is asked by one call; gone when the call has ended
``turn-stream:<id>``      stream     what happens in the Turn of an event, for a client that follows it
``tokens:<model>``        hash       minute -> the tokens that a Model's requests have used
``turn:<digest>``         list       one Turn: its Steps, what each began with, its calls
``results:<producer>``    channel    results, for the producer process that waits for them
``oauth:grants``          zset       name -> stored at (ms): the grants of the OAuth store
``oauth:grant:<name>``    hash       a subject's consent to an OAuthApp, its token encrypted
``oauth:sessions``        zset       id -> expires at (ms): the sessions that ask a user for consent
``oauth:session:<id>``    hash       one of them, its secrets encrypted, and its status
``oauth:asked:<name>``    zset       id -> expires at (ms): the sessions for one app and subject
``oauth:lock:<name>``     string     who refreshes a grant's token
========================  =========  ==========================================================

Celery's own keys (queues, ``_kombu.*``, and ``celery-task-meta-<id>`` of calls from plain Celery) keep
Celery's names.
"""

import hashlib
import json
import re
from dataclasses import dataclass

#: an id that may be part of a key as it is; others, which have no bounds, become a digest
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of our keys under one namespace."""

    namespace: str = "goondan"

    @property
    def prefix(self) -> str:
        """What all of them begin with."""
        return f"{self.namespace}:"

    def call(self, call_id: str) -> str:
        """One call's record."""
        return f"{self.namespace}:call:{call_id}"

    @property
    def due(self) -> str:
        """The calls about which something must be decided, by time."""
        return f"{self.namespace}:due"

    @property
    def swept(self) -> str:
        """When the above was last swept."""
        return f"{self.namespace}:swept"

    def calls(self, agent: str) -> str:
        """An agent's recent calls."""
        return f"{self.namespace}:calls:{agent}"

    def running(self, agent: str) -> str:
        """An agent's calls in progress."""
        return f"{self.namespace}:running:{agent}"

    def dead_letters(self, agent: str) -> str:
        """An agent's dead letters."""
        return f"{self.namespace}:dead-letters:{agent}"

    def pending(self, agent: str) -> str:
        """An agent's calls whose results come later."""
        return f"{self.namespace}:pending:{agent}"

    def approvals(self, agent: str) -> str:
        """An agent's calls that wait for an approval."""
        return f"{self.namespace}:approvals:{agent}"

    def trace(self, name: str) -> str:
        """The calls of a traceId, or of a correlationId, that belong to one another."""
        if _PLAIN.fullmatch(name):
            return f"{self.namespace}:trace:{name}"
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.namespace}:trace:sha256:{digest}"

    @property
    def limits(self) -> str:
        """The limits that calls wait at, by the time of the next look."""
        return f"{self.namespace}:limits"

    def limit(self, name: str) -> str:
        """A limit's state."""
        return f"{self.namespace}:limit:{name}"

    def holders(self, name: str) -> str:
        """The calls that count for a limit."""
        return f"{self.namespace}:holders:{name}"

    def wait_queue(self, name: str) -> str:
        """The calls that wait at a limit, in order."""
        return f"{self.namespace}:line:{name}"

    def waiter(self, call_id: str) -> str:
        """What is known of a call that waits at a limit."""
        return f"{self.namespace}:waiter:{call_id}"

    def waiting(self, agent: str) -> str:
        """An agent's calls that wait at a limit."""
        return f"{self.namespace}:waiting:{agent}"

    def mailbox(self, box: str) -> str:
        """The events of one agent's instance."""
        return f"{self.namespace}:mailbox:{box}"

    def mailboxes(self, agent: str) -> str:
        """An agent's mailboxes in which something is."""
        return f"{self.namespace}:mailboxes:{agent}"

    def mail(self, agent: str) -> str:
        """The channel that tells of events in an agent's mailboxes."""
        return f"{self.namespace}:mail:{agent}"

    def counts(self, row: str) -> str:
        """What one worker process has counted."""
        return f"{self.namespace}:counts:{row}"

    @property
    def counted(self) -> str:
        """Which worker processes have counts."""
        return f"{self.namespace}:counted"

    @property
    def lost_calls(self) -> str:
        """How many calls were lost with their workers, by agent."""
        return f"{self.namespace}:lost-calls"

    @property
    def late_answers(self) -> str:
        """How many answers came too late, by agent."""
        return f"{self.namespace}:late-answers"

    @property
    def instances(self) -> str:
        """The instances, by when they were last used."""
        return f"{self.namespace}:instances"

    def instance(self, directory: str) -> str:
        """One instance."""
        return f"{self.namespace}:instance:{directory}"

    def extension(self, agent: str, extension: str, instance_key: str) -> str:
        """What an extension remembers for one instance of an agent."""
        parts = "\0".join((agent, extension, instance_key))
        digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.namespace}:extension:{digest}"

    def step_revision(self, agent: str, instance_key: str) -> str:
        """The revision of the bundle that the last Step of an instance of an agent had."""
        text = f"{agent}\0{instance_key}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.namespace}:step-revision:{digest}"

    def collector(self, root_id: str) -> str:
        """Who looks for instances unused too long."""
        return f"{self.namespace}:collector:{root_id}"

    def commit_lock(self, workspace: str) -> str:
        """Whose turn it is to commit a changeset; ``workspace`` is the name of its directory."""
        return f"{self.namespace}:commit-lock:{workspace}"

    def revision(self, workspace: str) -> str:
        """Which revision of the bundle is active; ``workspace`` is the name of its directory."""
        return f"{self.namespace}:revision:{workspace}"

    def revision_load(self, workspace: str, ref: str) -> str:
        """Which worker loads a revision of the bundle."""
        return f"{self.namespace}:revision-load:{workspace}:{ref}"

    @property
    def agents(self) -> str:
        """The agents' table."""
        return f"{self.namespace}:agents"

    @property
    def workers(self) -> str:
        """The rows of the workers seen lately."""
        return f"{self.namespace}:workers"

    def worker(self, row: str) -> str:
        """One live worker."""
        return f"{self.namespace}:worker:{row}"

    def crash_backoff(self, agent: str) -> str:
        """The crash back-off of an agent's workers."""
        return f"{self.namespace}:upkeep:{agent}"

    def orchestrated(self, agent: str) -> str:
        """Whether an orchestrator looks after an agent."""
        return f"{self.namespace}:orchestrated:{agent}"

    def shutdown(self, target: str) -> str:
        """The last request that an agent's workers, or one worker, drain."""
        return f"{self.namespace}:shutdown:{target}"

    def model_request(self, call_id: str) -> str:
        """What a model is asked by one call."""
        return f"{self.namespace}:model-request:{call_id}"

    def turn_stream(self, event_id: str) -> str:
        """What happens in the Turn of an event, given its identity, for a client that follows it."""
        return f"{self.namespace}:turn-stream:{event_id}"

    def tokens(self, model: str) -> str:
        """How many tokens a Model's requests have used of late."""
        return f"{self.namespace}:tokens:{model}"

    def step(self, step_id: str) -> str:
        """One Step."""
        return f"{self.namespace}:step:{step_id}"

    def catalog(self, digest: str) -> str:
        """The Tool Catalog of Steps."""
        return f"{self.namespace}:catalog:{digest}"

    def turn(self, agent: str, instance_key: str, turn_id: str) -> str:
        """One Turn; its names have no bounds."""
        name = json.dumps([agent, instance_key, turn_id])
        return f"{self.namespace}:turn:{hashlib.sha256(name.encode()).hexdigest()}"

    def results(self, producer: str) -> str:
        """A producer's notification channel."""
        return f"{self.namespace}:results:{producer}"

    @property
    def oauth_grants(self) -> str:
        """The grants of the OAuth store."""
        return f"{self.namespace}:oauth:grants"

    def oauth_grant(self, name: str) -> str:
        """One grant."""
        return f"{self.namespace}:oauth:grant:{name}"

    @property
    def oauth_sessions(self) -> str:
        """The sessions of the OAuth store."""
        return f"{self.namespace}:oauth:sessions"

    def oauth_session(self, session_id: str) -> str:
        """One session."""
        return f"{self.namespace}:oauth:session:{session_id}"

    def oauth_asked(self, name: str) -> str:
        """The sessions in which a subject is asked for one app's grant, by the grant's name."""
        return f"{self.namespace}:oauth:asked:{name}"

    def oauth_lock(self, name: str) -> str:
        """Who refreshes a grant's token."""
        return f"{self.namespace}:oauth:lock:{name}"

    @staticmethod
    def celery_result(call_id: str) -> str:
        """Celery's result record, and the channel of the same name (celery/backends/redis.py)."""
        return f"celery-task-meta-{call_id}"
