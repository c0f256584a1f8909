"""The names of our Redis keys. All of them start with the namespace and have a TTL.

========================  =========  ==========================================================
key                       type       holds
========================  =========  ==========================================================
``call:<id>``             hash       the ledger's record of one call
``due``                   zset       id -> when something must be decided about the call (ms)
``swept``                 string     when ``due`` was last swept (ms)
``calls:<agent>``         zset       id -> queued at (ms): the agent's recent calls
``running:<agent>``       zset       id -> claimed at (ms): the agent's calls in progress
``dead-letters:<agent>``  zset       id -> died at (ms): the agent's dead letters
``failures:<agent>``      zset       id -> ended at (ms): the agent's calls that ended with an error
``pending:<agent>``       zset       id -> expires at (ms): the agent's pending calls
``approvals:<agent>``     zset       id -> expires at (ms): the pending calls that wait for an approval
``mcp-task:<id>``         string     nothing, while no worker is to ask an MCP server about the task of a call
``scheduled:<agent>``     zset       id -> not before (ms): the agent's calls and events whose time is to come
``trace:<name>``          zset       id -> queued at (ms): the calls of a trace, 50,000 at most
``barrier``               string     nothing; it is written before replicas are waited for
``limits``                zset       limit -> when its wait queue must be checked (ms)
``limit:<name>``          hash       a limit's state: owner of an idempotencyKey, how long calls take
``holders:<name>``        zset       id -> admitted at (ms): the calls that count for a limit
``line:<name>``           zset       id -> queued at (ms): a limit's wait queue
``waiter:<id>``           hash       a waiting call's limits, and its message
``waiting:<agent>``       zset       id -> queued at (ms): the agent's calls that wait for a limit
``mailbox:<box>``         list       ids of the events of one agent's instance, in order
``mailboxes:<agent>``     zset       box -> since or last served (ms): the agent's mailboxes that hold events
``fetched:<token>``       string     the event that a producer got for this token
``late-answers``          hash       agent -> number of answers that came after their requests had ended
``counts:<row>``          string     a worker process's counters of calls, for metrics
``counted``               zset       row -> last written (s): the index of ``counts``
``usage:<day>``           hash       worker process -> what it has counted on the day; empty: a folded day
``handoffs:<day>``        hash       worker process -> the hand-offs that it has counted on the day, by hour
``lost-calls``            hash       agent -> number of calls whose worker died
``settled-calls``         hash       agent, code -> number of calls that were ended outside a run
``recent-losses``         zset       id, agent, code, worker -> at (ms): the latest calls whose worker died
``schedules:<owner>``     zset       name -> due at (ms): the schedules of a bundle, or those made at run time
``schedule:<name>``       hash       a schedule: its definition, next slot, counts and last run
``schedule-runs:<name>``  zset       id -> fired at (ms): its runs that have not ended
``schedule-owners``       hash       workspace -> since when its schedules are these (ms)
``instances``             zset       directory -> last used (ms): every instance's directory
``instance:<directory>``  hash       an instance: its agents, their owners, and the guests in its directory
``extension:<digest>``    hash       an extension's state for one instance of an agent
``collector:<root>``      string     the worker that collects unused instances below one state root
``commit-lock:<workspace>``  string  the lock for committing changesets of the bundle
``revision:<workspace>``  string     the active revision of the bundle, and the next one
``revision-load:<workspace>:<ref>``  string  the worker that loads a revision; ``:begun``, how many began to
``step-revision:<digest>``  string     the revision of the last Step of one instance of an agent
``agents``                hash       agent -> its catalog, for producers without the bundle
``worker:<row>``          string     a live worker's description; the row is the id of its process
``workers``               zset       row -> last seen (s): the index of ``worker``
``mail:<agent>``          channel    an event waits in a mailbox of the agent
``upkeep:<agent>``        string     crash back-off of the agent's workers: starts, crashes, reason
``orchestrated:<agent>``  string     the orchestrator that manages the agent's workers
``paused``                hash       agent or agent/tool -> who has paused it, and why
``shutdown:<target>``     string     the last request to drain ``agent:<name>`` or ``worker:<name>``
``step:<id>``             hash       a Step, as it was fixed when it opened
``catalog:<digest>``      string     a Tool Catalog, shared by Steps
``model-request:<id>``    string     the request of a call to a model, until the call has ended
``asked-models:<id>``     hash       the requests to models of an event's Turn, in order, for another run
``turn-stream:<id>``      stream     the progress of the Turn of an event, for a client that follows it
``tokens:<model>``        hash       slot of 10 s -> the tokens that requests to a Model have used
``request-key:<digest>``  string     the digest of the request that was made with a producer's own key
``turn:<digest>``         list       a Turn: its Steps with their inputs, its calls
``results:<producer>``    channel    results, for the producer process that waits for them
``audit``                 stream     who did what, by which door: the latest 10,000 acts
``http-tokens``           hash       name -> a token for the HTTP application, hashed; its scopes
``http-tokens-used``      hash       name -> when the token was last used (ms)
``connection:<workspace>:<name>``  hash  a Connection: its lease, cursor, counts, last event and error
``oauth:grants``          zset       name -> stored at (ms): the grants of the OAuth store
``oauth:grant:<name>``    hash       a subject's consent to an OAuthApp, its token encrypted
``oauth:sessions``        zset       id -> expires at (ms): the sessions that ask a user for consent
``oauth:session:<id>``    hash       such a session: its status, and its secrets, encrypted
``oauth:asked:<name>``    zset       id -> expires at (ms): the sessions for one app and subject
``oauth:lock:<name>``     string     the lock for refreshing a grant's token
========================  =========  ==========================================================

Celery's own keys (queues, ``_kombu.*``, and ``celery-task-meta-<id>`` of calls from plain Celery) keep
Celery's names.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from urllib.parse import quote

#: a name that may be part of a key; other names become digests, because they have no limits
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class Keys:
    """The names of our keys under one namespace; the table above describes them."""

    namespace: str = "goondan"

    @property
    def prefix(self) -> str:
        """The prefix of all our keys."""
        return f"{self.namespace}:"

    def call(self, call_id: str) -> str:
        return f"{self.namespace}:call:{call_id}"

    @property
    def due(self) -> str:
        return f"{self.namespace}:due"

    @property
    def swept(self) -> str:
        return f"{self.namespace}:swept"

    @property
    def barrier(self) -> str:
        return f"{self.namespace}:barrier"

    def calls(self, agent: str) -> str:
        return f"{self.namespace}:calls:{agent}"

    def running(self, agent: str) -> str:
        return f"{self.namespace}:running:{agent}"

    def dead_letters(self, agent: str) -> str:
        return f"{self.namespace}:dead-letters:{agent}"

    def failures(self, agent: str) -> str:
        return f"{self.namespace}:failures:{agent}"

    def pending(self, agent: str) -> str:
        return f"{self.namespace}:pending:{agent}"

    def mcp_task(self, call_id: str) -> str:
        return f"{self.namespace}:mcp-task:{call_id}"

    def approvals(self, agent: str) -> str:
        return f"{self.namespace}:approvals:{agent}"

    def scheduled(self, agent: str) -> str:
        return f"{self.namespace}:scheduled:{agent}"

    def trace(self, name: str) -> str:
        """The calls of a traceId or correlationId."""
        if _PLAIN.fullmatch(name):
            return f"{self.namespace}:trace:{name}"
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.namespace}:trace:sha256:{digest}"

    @property
    def limits(self) -> str:
        return f"{self.namespace}:limits"

    def limit(self, name: str) -> str:
        return f"{self.namespace}:limit:{name}"

    def holders(self, name: str) -> str:
        return f"{self.namespace}:holders:{name}"

    def wait_queue(self, name: str) -> str:
        return f"{self.namespace}:line:{name}"

    def waiter(self, call_id: str) -> str:
        return f"{self.namespace}:waiter:{call_id}"

    def waiting(self, agent: str) -> str:
        return f"{self.namespace}:waiting:{agent}"

    def mailbox(self, box: str) -> str:
        return f"{self.namespace}:mailbox:{box}"

    def mailboxes(self, agent: str) -> str:
        return f"{self.namespace}:mailboxes:{agent}"

    def mail(self, agent: str) -> str:
        return f"{self.namespace}:mail:{agent}"

    def counts(self, row: str) -> str:
        return f"{self.namespace}:counts:{row}"

    @property
    def counted(self) -> str:
        return f"{self.namespace}:counted"

    def usage(self, day: str) -> str:
        return f"{self.namespace}:usage:{day}"

    def handoffs(self, day: str) -> str:
        return f"{self.namespace}:handoffs:{day}"

    @property
    def lost_calls(self) -> str:
        return f"{self.namespace}:lost-calls"

    @property
    def settled_calls(self) -> str:
        return f"{self.namespace}:settled-calls"

    @property
    def recent_losses(self) -> str:
        return f"{self.namespace}:recent-losses"

    @property
    def late_answers(self) -> str:
        return f"{self.namespace}:late-answers"

    def schedules(self, owner: str) -> str:
        """The schedules of a bundle, by its workspace; those made at run time have no owner."""
        return f"{self.namespace}:schedules:{owner}"

    def schedule(self, full_name: str) -> str:
        return f"{self.namespace}:schedule:{full_name}"

    def schedule_runs(self, full_name: str) -> str:
        return f"{self.namespace}:schedule-runs:{full_name}"

    @property
    def schedule_owners(self) -> str:
        return f"{self.namespace}:schedule-owners"

    @property
    def instances(self) -> str:
        return f"{self.namespace}:instances"

    def instance(self, directory: str) -> str:
        return f"{self.namespace}:instance:{directory}"

    def extension(self, agent: str, extension: str, instance_key: str) -> str:
        parts = "\0".join((agent, extension, instance_key))
        digest = hashlib.sha256(parts.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.namespace}:extension:{digest}"

    def step_revision(self, agent: str, instance_key: str) -> str:
        text = f"{agent}\0{instance_key}"
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.namespace}:step-revision:{digest}"

    def collector(self, root_id: str) -> str:
        return f"{self.namespace}:collector:{root_id}"

    def commit_lock(self, workspace: str) -> str:
        """The lock for commits; ``workspace`` is the name of its directory."""
        return f"{self.namespace}:commit-lock:{workspace}"

    def revision(self, workspace: str) -> str:
        """The active revision; ``workspace`` is the name of its directory."""
        return f"{self.namespace}:revision:{workspace}"

    def revision_load(self, workspace: str, ref: str) -> str:
        return f"{self.namespace}:revision-load:{workspace}:{ref}"

    @property
    def agents(self) -> str:
        return f"{self.namespace}:agents"

    @property
    def workers(self) -> str:
        return f"{self.namespace}:workers"

    def worker(self, row: str) -> str:
        return f"{self.namespace}:worker:{row}"

    def crash_backoff(self, agent: str) -> str:
        return f"{self.namespace}:upkeep:{agent}"

    def orchestrated(self, agent: str) -> str:
        return f"{self.namespace}:orchestrated:{agent}"

    @property
    def paused(self) -> str:
        return f"{self.namespace}:paused"

    def shutdown(self, target: str) -> str:
        return f"{self.namespace}:shutdown:{target}"

    def model_request(self, call_id: str) -> str:
        return f"{self.namespace}:model-request:{call_id}"

    def asked_models(self, turn: str) -> str:
        return f"{self.namespace}:asked-models:{turn}"

    def turn_stream(self, event_id: str) -> str:
        """The progress of the Turn of an event, given the event's identity."""
        return f"{self.namespace}:turn-stream:{event_id}"

    def request_key(self, key: str) -> str:
        """The request that was made with a producer's own key, which may be of any length."""
        digest = hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()
        return f"{self.namespace}:request-key:{digest}"

    def tokens(self, model: str) -> str:
        return f"{self.namespace}:tokens:{quote(model, safe='')}"

    def step(self, step_id: str) -> str:
        return f"{self.namespace}:step:{step_id}"

    def catalog(self, digest: str) -> str:
        return f"{self.namespace}:catalog:{digest}"

    def turn(self, agent: str, instance_key: str, turn_id: str) -> str:
        name = json.dumps([agent, instance_key, turn_id])
        return f"{self.namespace}:turn:{hashlib.sha256(name.encode()).hexdigest()}"

    def results(self, producer: str) -> str:
        return f"{self.namespace}:results:{producer}"

    @property
    def audit(self) -> str:
        return f"{self.namespace}:audit"

    @property
    def http_tokens(self) -> str:
        return f"{self.namespace}:http-tokens"

    @property
    def http_tokens_used(self) -> str:
        return f"{self.namespace}:http-tokens-used"

    def connection(self, workspace: str, name: str) -> str:
        """A Connection; both names are percent-encoded."""
        return f"{self.namespace}:connection:{workspace}:{name}"

    @property
    def connections(self) -> str:
        """All Connections, ``<workspace>:<name>``, by when they were last begun (ms)."""
        return f"{self.namespace}:connections"

    @property
    def oauth_grants(self) -> str:
        return f"{self.namespace}:oauth:grants"

    def oauth_grant(self, name: str) -> str:
        return f"{self.namespace}:oauth:grant:{name}"

    @property
    def oauth_sessions(self) -> str:
        return f"{self.namespace}:oauth:sessions"

    def oauth_session(self, session_id: str) -> str:
        return f"{self.namespace}:oauth:session:{session_id}"

    def oauth_asked(self, name: str) -> str:
        """The sessions for one app and subject, given the grant's name."""
        return f"{self.namespace}:oauth:asked:{name}"

    def oauth_lock(self, name: str) -> str:
        return f"{self.namespace}:oauth:lock:{name}"

    @staticmethod
    def celery_result(call_id: str) -> str:
        """Celery's result record, and the channel of the same name (celery/backends/redis.py)."""
        return f"celery-task-meta-{call_id}"
