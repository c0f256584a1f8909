"""``goondan changeset`` and ``goondan rollback``: change a bundle, and see its workers load the change."""

import contextlib
from collections.abc import Callable, Iterator
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, TypeVar

import typer
from redis import Redis
from rich.text import Text

from broker_config.connections import connect
from broker_config.keys import Keys
from broker_config.settings import Settings
from goondan_tasks.authoring.changesets_api import ChangesetError, CommitResult, RollbackResult
from goondan_tasks.bundle import load_bundle
from goondan_tasks.bundle.workspaces import declared_workspace
from goondan_tasks.changesets.changesets import (
    Changesets,
    CommitLock,
    Committed,
    propose_commit,
    redis_lock,
    to_nobody,
)
from goondan_tasks.changesets.policy import UNRESTRICTED, ChangesetRules, Principal
from goondan_tasks.cli.options import Yes, argument, flag, option, seconds_option
from goondan_tasks.cli.output import (
    CONFIGURATION,
    WAIT_TIMED_OUT,
    Answer,
    Columns,
    Output,
    error_text,
    exit_code_of,
    listing,
    local_time,
    make_table,
)
from goondan_tasks.cli.session import Session, chosen_agents, chosen_bundle, takes_session
from goondan_tasks.client.known_agents import broker_errors
from goondan_tasks.contract.errors import BrokerUnreachableError, ConfigError
from goondan_tasks.contract.messages import JsonObject, epoch_milliseconds, iso_time, wall_clock
from goondan_tasks.contract.wording import on_one_line, printable
from goondan_tasks.fleet.agent_registry import AgentRegistry
from goondan_tasks.fleet.audit import AuditLog, Target
from goondan_tasks.instances.table import encoded
from goondan_tasks.revisions.active import (
    Activation,
    ActiveRevision,
    RevisionChange,
    RevisionState,
    await_activation,
)
from goondan_tasks.revisions.checkouts import RevisionSource

#: how long commands wait for the workers by default
_TIMEOUT_SECONDS = 60.0
#: the length of a ref on a narrow terminal; git accepts abbreviated commits
_SHORT_REF = len("git:") + 12

ChangesetId = Annotated[str, argument("ID", "The changeset.")]
Reason = Annotated[str, option("TEXT", "The reason for the change.", "--message", "-m")]
Message = Annotated[str, option("TEXT", "The message of the commit.", "--message", "-m")]
ActingAgent = Annotated[
    str | None, option("A", "Act as agent A, within what the policy allows it.", "--agent")
]
Wait = Annotated[
    bool, flag("Wait until all live workers run the revision, or one fails to load it.", "--wait/--no-wait")
]
Timeout = Annotated[float | None, seconds_option("Wait at most S seconds. Default: 60. The proposal stays.")]

Found = TypeVar("Found")

_OUTCOMES = {
    "active": "Active: new Steps run it.",
    "superseded": "Superseded: another revision was proposed after it.",
    "unfollowed": "No worker follows the revisions of this bundle; workers run this one when they start.",
    "proposed": "Proposed: a worker that loads it makes it active; check with `goondan changeset active`.",
}
_NOT_LOADED = "Not active yet: no worker has loaded it in time. Check again with `goondan changeset active`."
_SOME_BEHIND = "Active, but {} still run{} another revision; `goondan doctor` shows which, the logs say why."


@takes_session
def open_(
    session: Session,
    message: Reason = "",
    agent: ActingAgent = None,
) -> None:
    """Open a changeset, and print its id and the directory in which to edit the bundle.

    The bundle must be in a git repository. Without --agent no policy limits the files: the user of this
    command can write to the repository anyway.
    """
    with _git_errors():
        changeset = _changesets(session.settings).open(_principal(session.settings, agent), message)
    place = printable(str(Path(changeset.workdir, changeset.hint.bundle_root_in_workdir)))
    note = f"Edit the files there, then: goondan changeset diff|commit|discard {changeset.changeset_id}"
    session.output.give(changeset.to_wire(), f"{changeset.changeset_id}  {place}", note)


@takes_session
def diff(session: Session, changeset_id: ChangesetId) -> None:
    """Print the diff of a changeset, as git does."""
    with _git_errors():
        text = _changesets(session.settings).diff(changeset_id)
    if session.output.as_json:
        return session.output.document({"changesetId": changeset_id, "diff": text})
    return session.output.stream([text.encode("utf-8")])


@takes_session
def commit(
    session: Session,
    changeset_id: ChangesetId,
    message: Message = "",
    agent: ActingAgent = None,
    wait: Wait = True,
    timeout: Timeout = None,
) -> None:
    """Commit a changeset. The workers run the new revision from their next Steps on.

    The exit code is 2 if there is no such changeset, 3 if the changed bundle is not valid.
    """
    patience = _patience(wait, timeout)
    with _git_errors(), _followers(session.settings) as followers:
        changesets = _changesets(session.settings, followers)
        result = changesets.commit(changeset_id, message, _principal(session.settings, agent))
        if (error := result.error) is not None:
            told = error_text("Error", f"{error.code}: {error.message}", error.suggestion, error.help_url)
            session.output.document(result.to_wire()) if session.output.as_json else session.output.note(told)
            raise typer.Exit(exit_code_of(error.code))
        followers.note("commit_changeset", result)
        _show_committed(result, followers, session.output, patience)


@takes_session
def discard(session: Session, changeset_id: ChangesetId, yes: Yes = False) -> None:
    """Discard a changeset and its files."""
    with _git_errors():
        changesets = _changesets(session.settings)
        session.confirm(f"Discard changeset {changeset_id} and its files", is_confirmed=yes)
        changesets.discard(changeset_id)
    session.output.give({"discarded": changeset_id}, f"discarded {changeset_id}")


@takes_session
def list_open(session: Session) -> None:
    """List the open changesets."""
    with _git_errors():
        found = [one.model_dump(mode="json", by_alias=True) for one in _changesets(session.settings).all()]
    columns = {
        "opened": "openedAt",
        "agent": "agentName",
        "instance": "instanceKey",
        "reason": "reason",
        "directory": "workdir",
        "changeset": "changesetId",
    }
    none = "No changeset is open; open one with `goondan changeset open`."
    session.output.write(listing(found, columns, none=none, unbroken="changeset"))


@takes_session
def log(
    session: Session,
    limit: Annotated[int, option("N", "Show at most N commits.", min=1)] = 20,
) -> None:
    """List the commits of the bundle."""
    with _git_errors():
        commits = _changesets(session.settings).log(limit)
    shown = _SHORT_REF if session.output.is_narrow else None
    columns: Columns[JsonObject] = {
        "committed": "committedAt",
        "author": "author",
        "message": "message",
        "changeset": "changesetId",
        "ref": lambda one: one["ref"][:shown],
    }
    none = "The bundle has no commit."
    session.output.write(listing(commits, columns, none=none, unbroken="ref", spare={"changeset"}))


@takes_session
def active(session: Session) -> None:
    """Show the revision that the workers run, the one proposed, and the one that failed to load, and why."""
    with _followers(session.settings) as followers:
        state = followers.ask(ActiveRevision.state)
    if state is None:
        return session.output.give({"active": None}, "No worker follows the revisions of this bundle.")
    columns = ("state", "ref", "since", "changeset", "by", "reason")
    return session.output.write(Answer(state.to_wire(), make_table(columns, _states(state), unbroken="ref")))


@takes_session
def activate(
    session: Session,
    revision: Annotated[str | None, argument("ID", "A revision. Default: the branch's last commit.")] = None,
    wait: Wait = True,
    timeout: Timeout = None,
) -> None:
    """Propose a revision that was committed without a changeset, or that was active before.

    The exit code is 3 if it cannot be loaded or no worker follows revisions, 4 if it is not loaded in time.
    """
    patience = _patience(wait, timeout)
    with _git_errors(), _followers(session.settings) as followers:
        ref = str(_source(session.settings).named(revision))
        change = RevisionChange(new_ref=ref, timestamp=iso_time(wall_clock()))
        followers.ask(lambda revisions: revisions.propose(change))
        activation = followers.outcome(ref, patience)
        if activation.status != "unfollowed":
            followers.audit.add("activate_revision", Target("revision", ref))
    session.output.give(activation.to_wire(), ref)
    _report_outcome(activation, session.output, patience)
    if activation.status == "unfollowed":
        raise typer.Exit(CONFIGURATION)


@takes_session
def rollback(
    session: Session,
    ref: Annotated[
        str, argument("REF", "git:<commit>, its first digits, or any name of a commit, such as HEAD~1.")
    ],
    wait: Wait = True,
    timeout: Timeout = None,
) -> None:
    """Commit the bundle as it was at REF. Later commits stay in the history."""
    patience = _patience(wait, timeout)
    with _git_errors(), _followers(session.settings) as followers:
        result = _changesets(session.settings, followers).roll_back(ref)
        followers.note("roll_back", result)
        _show_committed(result, followers, session.output, patience)


class Followers:
    """The workers that follow the bundle's revisions; after one failure Redis is not asked again."""

    def __init__(self, settings: Settings, redis: Redis) -> None:
        self._settings, self._redis = settings, redis
        self._keys = Keys(settings.namespace)
        self.audit = AuditLog(redis, self._keys)
        self._away: BrokerUnreachableError | None = None

    def ask(self, act: Callable[[ActiveRevision], Found]) -> Found:
        """Call ``act`` with the record of the active revision, and return its result.

        Raises:
            BrokerUnreachableError: Redis cannot be reached.
            ConfigError: the bundle on disk is not valid.
        """
        if self._away is not None:
            raise self._away
        revision = ActiveRevision(self._redis, self._keys, self._workspace)
        try:
            with broker_errors(self._settings.redis_url):
                return act(revision)
        except BrokerUnreachableError as error:
            self._away = error
            raise

    def announce(self, committed: Committed) -> None:
        """Propose a commit; raises as :meth:`ask` does."""
        self.ask(lambda revision: propose_commit(revision, committed))

    def note(self, act: str, result: CommitResult | RollbackResult) -> None:
        """Record a commit in the audit, unless it has changed nothing."""
        if result.summary is not None and not result.summary.is_empty:
            self.audit.add(act, Target("revision", f"{result.new_ref}"))

    def locks(self) -> tuple[CommitLock, ...]:
        """Return the lock that all machines share; none without Redis, or if the bundle is not valid."""
        try:
            self.ask(ActiveRevision.state)
        except (BrokerUnreachableError, ConfigError):
            return ()
        return (partial(redis_lock, self._redis, self._keys.commit_lock(encoded(self._workspace))),)

    def outcome(self, ref: str, patience: float | None) -> Activation:
        """Wait at most ``patience`` seconds until all live workers run a revision; raises as :meth:`ask`.

        It does not wait without workers, or once the revision has failed to load.
        """
        registry = AgentRegistry(self._redis, self._keys)

        def look() -> Activation:
            state, workers = self.ask(lambda revision: (revision.state(), registry.workers()))
            activation = Activation.of(ref, state)
            if activation.status != "active":
                return activation
            ours = (one for one in workers if one.workspace == self._workspace)
            behind = tuple(one.name for one in ours if one.bundle_ref not in {None, ref})
            return activation.model_copy(update={"behind": behind or None})

        workers = self.ask(lambda _: registry.workers())
        return await_activation(look, patience if patience is not None and workers else 0.0)

    @cached_property
    def _workspace(self) -> str:
        settings = self._settings
        if settings.workspace:
            return settings.workspace
        path = chosen_bundle(settings)
        # a bundle that is not valid must not keep its workspace from going back to another revision
        return declared_workspace(path, settings.swarm) or load_bundle(path).workspace_name(
            swarm=settings.swarm
        )


@contextlib.contextmanager
def _followers(settings: Settings) -> Iterator[Followers]:
    with connect(settings.redis_url, name="goondan-changeset") as redis:
        yield Followers(settings, redis)


def _patience(wait: bool, timeout: float | None) -> float | None:
    """Return how many seconds to wait for a proposal; ``None`` means not to wait."""
    if not wait and timeout is not None:
        raise typer.BadParameter("--timeout does not go with --no-wait.")
    return (_TIMEOUT_SECONDS if timeout is None else timeout) if wait else None


def _report_outcome(activation: Activation, output: Output, patience: float | None) -> None:
    """Report the outcome of a proposal, and exit with an error unless it is as active as was awaited."""
    is_late = patience is not None and not activation.is_everywhere
    if not output.as_json:
        output.note(_outcome_text(activation, is_late=is_late))
    if activation.status == "failed":
        raise typer.Exit(CONFIGURATION)
    if is_late:
        raise typer.Exit(WAIT_TIMED_OUT)


def _outcome_text(activation: Activation, *, is_late: bool) -> Text | str:
    if activation.status == "failed":
        told = f"The workers keep the previous revision: {activation.code}: {activation.reason}"
        return error_text("Not active", told, "Fix the bundle, and commit again.")
    if behind := activation.behind:
        return _SOME_BEHIND.format(on_one_line(", ".join(behind)), "s" if len(behind) == 1 else "")
    return _NOT_LOADED if is_late else _OUTCOMES[activation.status]


def _show_committed(
    result: CommitResult | RollbackResult, followers: Followers, output: Output, patience: float | None
) -> None:
    """Show a commit and whether the workers run it; exit with an error if they cannot."""
    summary, warning, activation = result.summary, result.warning, None
    if not output.as_json and summary is not None:
        output.print(f"{result.new_ref}")
        if summary.is_empty:
            output.note("Nothing has changed, so there is no new revision.")
        kinds = {"M": summary.files_changed, "A": summary.files_added, "D": summary.files_deleted}
        for letter, paths in kinds.items():
            for path in paths:
                output.print(f"{letter} {on_one_line(path)}")
    if warning is None and summary is not None and not summary.is_empty:
        try:
            activation = followers.outcome(f"{result.new_ref}", patience)
        except (BrokerUnreachableError, ConfigError) as error:
            warning = f"Whether the workers run it is unknown: {error}"
    if output.as_json:
        outcome = {"activation": activation.to_wire()} if activation else {}
        output.document({**result.model_copy(update={"warning": warning}).to_wire(), **outcome})
    elif warning is not None:
        remedy = "When they can be reached, run `goondan changeset activate`."
        output.note(error_text("Warning", warning, remedy))
    if activation is not None:
        _report_outcome(activation, output, patience)


def _states(state: RevisionState) -> Iterator[tuple[object, ...]]:
    yield "active", state.active, *_provenance(state.change), None
    if state.proposed is not None:
        yield "proposed", state.proposed.new_ref, *_provenance(state.proposed), None
    if (failed := state.failed) is not None:
        when = local_time(epoch_milliseconds(failed.timestamp))
        yield "failed", failed.ref, when, None, failed.worker, f"{failed.code}: {failed.reason}"


def _provenance(change: RevisionChange | None) -> tuple[object, object, object]:
    """Return the time, the changeset and the author of a proposal."""
    if change is None:
        return None, None, None
    who = f"{change.agent_name} ({change.instance_key})" if change.agent_name else None
    return local_time(epoch_milliseconds(change.timestamp)), change.changeset_id, who


def _source(settings: Settings) -> RevisionSource:
    """Return the source of revisions of the chosen bundle, by default this directory."""
    return RevisionSource.of(chosen_bundle(settings), settings.bundle_remote)


def _changesets(settings: Settings, followers: Followers | None = None) -> Changesets:
    """Return the changesets of the chosen bundle, whose commits are announced to ``followers``."""
    locks, announce = (followers.locks(), followers.announce) if followers else ((), to_nobody)
    return Changesets.of(_source(settings), locks, announce, swarm=settings.swarm, help_url=settings.help_url)


def _principal(settings: Settings, agent: str | None) -> Principal:
    """Return who acts: a person or ``agent``, whose changesets are beside the instances."""
    rules = UNRESTRICTED
    if agent is not None:
        bundle = load_bundle(chosen_bundle(settings))
        [known] = chosen_agents(bundle, settings.swarm, [agent])
        rules = ChangesetRules.of(bundle, known, swarm=settings.swarm)
    return Principal(settings.state_root_path / "changesets", rules, agent)


@contextlib.contextmanager
def _git_errors() -> Iterator[None]:
    """Report an OSError as an error of git."""
    try:
        yield
    except OSError as error:
        raise ChangesetError(str(error), code="GIT_ERROR") from error
