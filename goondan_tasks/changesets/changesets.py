"""The changesets of one bundle: open, commit and discard them, and roll back.

Commits to a bundle are made one at a time: on this machine by a file lock, between machines by a lock in
Redis. Neither is needed for correctness, which the compare-and-set of git's refs ensures, here and in the
remote. They keep concurrent commits from overtaking one another again and again.
"""

import contextlib
import fcntl
import functools
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self, TypeVar

from redis import Redis
from redis.exceptions import RedisError

from goondan_tasks.authoring.changesets_api import (
    ChangesetError,
    ChangesetHint,
    ChangeSummary,
    CommitError,
    CommitResult,
    OpenedChangeset,
    RollbackResult,
)
from goondan_tasks.changesets.check import BundleCheck, Checked
from goondan_tasks.changesets.commit import (
    TRAILER,
    Changeset,
    Committing,
    Draft,
    OpenChangesets,
    new_changeset_id,
    summary_of,
)
from goondan_tasks.changesets.policy import PERSON, ChangesetRules, Principal
from goondan_tasks.changesets.working_files import WorkingFiles
from goondan_tasks.contract.errors import (
    BrokerUnreachableError,
    BundleRevisionUnavailableError,
    ConfigError,
    GoondanError,
)
from goondan_tasks.contract.messages import JsonObject, iso_time, wall_clock
from goondan_tasks.contract.table_rows import naming
from goondan_tasks.revisions.active import ActiveRevision, RevisionChange
from goondan_tasks.revisions.checkouts import BundleRef, RevisionSource, unknown_revision
from goondan_tasks.revisions.git import (
    GitError,
    Overtaken,
    Repository,
    changes_between,
    require_merge_tree,
)

#: how long a commit waits for others, and how often it tries the lock
WAIT_SECONDS = 120.0
LOOK_SECONDS = 0.05
#: after this time the lock of a dead machine is released; a commit that takes longer may be overtaken
HOLD_SECONDS = 60.0
#: how often an overtaken commit is tried
ATTEMPTS = 5
#: characters of a commit's message
MAX_MESSAGE = 10_000
#: characters of paths of each kind in a proposal, which every worker and producer reads once a second
MOST_CHARACTERS = 2_000

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LOCK = "goondan-commit.lock"
Outcome = TypeVar("Outcome")

#: waits for the lock and holds it in the block; raises ChangesetError if that takes too long
CommitLock = Callable[[], AbstractContextManager[None]]


@contextlib.contextmanager
def file_lock(file: Path, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock among the processes of this machine; the kernel releases that of a dead one.

    Raises:
        ChangesetError: it is not free in time.
    """
    deadline = time.monotonic() + wait_seconds
    with file.open("ab") as opened:
        while True:
            try:
                fcntl.flock(opened.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() > deadline:
                    raise _too_late() from error
                time.sleep(LOOK_SECONDS)
        yield


@contextlib.contextmanager
def redis_lock(redis: Redis, key: str, wait_seconds: float = WAIT_SECONDS) -> Iterator[None]:
    """Hold the lock among machines.

    Raises:
        ChangesetError: it is not free in time.
        RecordDamagedError: another program has written its key.
        BrokerUnreachableError: Redis cannot be reached.
    """
    lock = redis.lock(key, timeout=HOLD_SECONDS, blocking_timeout=wait_seconds, sleep=LOOK_SECONDS)
    try:
        is_held = lock.acquire()
    except RedisError as error:
        raise BrokerUnreachableError(f"The lock of commits cannot be had: {error}") from error
    if not is_held:
        with naming(key):  # one that another program has written is never free
            redis.get(key)
        raise _too_late()
    try:
        yield
    finally:
        # the lock may have expired, or Redis may have lost it: git's refs decide
        with contextlib.suppress(RedisError):
            lock.release()


def _too_late() -> ChangesetError:
    message = "Other commits to this bundle are in progress."
    return ChangesetError(message, code="GIT_ERROR", suggestion="Commit the changeset again in a minute.")


@dataclass(frozen=True, slots=True)
class Committed:
    """A commit that was made."""

    new_ref: str
    #: empty if nothing was changed
    summary: ChangeSummary
    principal: Principal
    #: ``None`` for a rollback
    changeset_id: str | None = None


#: called with each commit, before another one can be made
Announce = Callable[[Committed], None]


def to_nobody(_committed: Committed) -> None:
    """Do not announce a commit."""


def propose_commit(
    active: ActiveRevision, committed: Committed, clock: Callable[[], float] = wall_clock
) -> None:
    """Propose a commit to the workers that follow the bundle's revisions, if there are any (000 §12.4).

    Raises:
        BrokerUnreachableError: Redis cannot be reached.
    """
    change = RevisionChange(
        new_ref=committed.new_ref,
        changeset_id=committed.changeset_id,
        summary=committed.summary.shortened(MOST_CHARACTERS).to_wire(),
        timestamp=iso_time(clock()),
        agent_name=committed.principal.agent,
        instance_key=committed.principal.instance_key,
    )
    try:
        active.propose(change)
    except RedisError as error:
        raise BrokerUnreachableError(f"The workers cannot be notified: {error}") from error


@dataclass(frozen=True, slots=True)
class Changesets:
    """The changesets of the bundle of ``source``.

    The methods raise ChangesetError, GitError, OSError if files cannot be read or written, and
    BrokerUnreachableError if a lock in Redis cannot be reached.
    """

    source: RevisionSource
    repository: Repository
    #: in the order in which they are acquired
    locks: tuple[CommitLock, ...]
    announce: Announce = to_nobody
    #: the name of the Swarm whose policy counts, if one is chosen
    swarm: str | None = None
    #: the base URL of the error pages
    help_url: str | None = None
    clock: Callable[[], float] = wall_clock

    @classmethod
    def of(
        cls,
        source: RevisionSource,
        locks: Sequence[CommitLock] = (),
        announce: Announce = to_nobody,
        *,
        swarm: str | None = None,
        help_url: str | None = None,
    ) -> Self:
        """Return the changesets of a bundle; ``locks`` are acquired before this machine's.

        Raises:
            ChangesetError: the bundle is in no git repository.
            GitError: git is not installed, or too old to merge.
        """
        repository = source.repository
        if repository is None:
            raise ChangesetError(
                f"The bundle {source.bundle} is in no git repository.",
                code="GIT_ERROR",
                suggestion="Run `git init` in its folder, and commit it.",
            )
        require_merge_tree(repository.git)
        lock = functools.partial(file_lock, repository.common_directory / _LOCK)
        return cls(source, repository, (*locks, lock), announce, swarm, help_url)

    def open(self, principal: Principal, reason: str = "") -> OpenedChangeset:
        """Open a changeset in a new directory below that of ``principal``."""
        _require_enabled(principal)
        try:
            changeset = self._new(principal, reason)
        except OSError as error:
            raise ChangesetError(f"The changeset cannot be opened: {error}", code="GIT_ERROR") from error
        root = self.repository.prefix.rstrip("/") or "."
        hint = ChangesetHint(bundle_root_in_workdir=root, recommended_files=principal.rules.recommended_files)
        return OpenedChangeset(
            changeset_id=changeset.changeset_id,
            base_ref=changeset.base_ref,
            workdir=str(changeset.workdir),
            hint=hint,
        )

    def find(self, changeset_id: str, principal: Principal = PERSON) -> Changeset:
        """Return an open changeset that ``principal`` can commit; raises ChangesetError if there is none."""
        changeset = self._open_changesets.find(changeset_id)
        if changeset is not None and principal.instance_key is not None:
            # another machine may use another path for the same directory
            here = changeset.model_copy(update={"workdir": principal.directory / changeset_id})
            changeset = here if changeset.instance_key == principal.instance_key else None
        if changeset is None or not WorkingFiles(self.repository, changeset.workdir).is_there:
            raise ChangesetError(
                f"There is no open changeset {changeset_id[:100]!r} here.",
                code="CHANGESET_NOT_FOUND",
                suggestion="Open a changeset first; `goondan changeset list` shows those that are open.",
            )
        return changeset

    def all(self) -> list[Changeset]:
        """Return the open changesets, the oldest first."""
        return self._open_changesets.all()

    def commit(self, changeset_id: str, message: str = "", principal: Principal = PERSON) -> CommitResult:
        """Commit a changeset, or return why not; raises only BrokerUnreachableError.

        An empty ``message`` becomes ``Changeset <id>``.
        """
        text = _message(message) or f"Changeset {changeset_id}"
        try:
            result = self._commit(changeset_id, text, principal)
        except (ChangesetError, GitError, BundleRevisionUnavailableError, OSError) as error:
            result = _failed(changeset_id, error)
        return result.with_page(self.help_url)

    def _commit(self, changeset_id: str, message: str, principal: Principal) -> CommitResult:
        # the draft is made without the lock, because the check takes long
        with self._locked():
            tip = _tried(self._open_changesets.branch.tip)
        committing = self._committing(changeset_id, principal, tip)
        draft = committing.draft(message)
        if draft.is_refused:
            return draft.answer
        with self._locked():
            return _tried(lambda: self._finished(committing, draft, principal, message))

    def _committing(self, changeset_id: str, principal: Principal, tip: str) -> Committing:
        changeset, before = self.find(changeset_id, principal), self._committed(tip)
        who = self._bound(principal, before)
        return Committing(self._open_changesets, self._check, changeset, who, tip, before)

    def _finished(
        self, committing: Committing, draft: Draft, principal: Principal, message: str
    ) -> CommitResult:
        """Carry a draft out. If another commit was faster, draft again, under the lock.

        Only a draft that has just passed is made again, so a changeset that cannot be checked in time delays
        no other.
        """
        changeset_id, tip = committing.changeset.changeset_id, self._open_changesets.branch.tip()
        if (committing.changeset, committing.tip) != (self.find(changeset_id, principal), tip):
            committing = self._committing(changeset_id, principal, tip)
            draft = committing.draft(message)
        result = committing.finish(draft)
        if result.status != "ok":
            return result
        made = Committed(result.new_ref or "", result.summary or ChangeSummary(), principal, changeset_id)
        warning = self._announced(made) if draft.is_news else None
        committing.remove()
        return result.model_copy(update={"warning": warning})

    def discard(self, changeset_id: str) -> None:
        changeset = self._open_changesets.find(changeset_id) or self.find(changeset_id)
        with self._locked():  # otherwise a half-removed directory could be committed
            WorkingFiles(self.repository, changeset.workdir).remove()
            self._open_changesets.delete(changeset)

    def diff(self, changeset_id: str) -> str:
        """Return the changes of a changeset as a unified diff."""
        changeset = self.find(changeset_id)
        repository = self.repository
        base = repository.bundle_tree(changeset.base)
        proposal = WorkingFiles(repository, changeset.workdir).proposal(repository.entries(base))
        sides = f"--src-prefix=a/{repository.prefix}", f"--dst-prefix=b/{repository.prefix}"
        options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--no-color", *sides)
        trees = base or "", repository.tree_with(base, proposal.changes)
        return repository.git.run("diff", *options, *trees).decode("utf-8", "replace")

    def log(self, limit: int = 20) -> list[JsonObject]:
        """Return the commits of the bundle, the last one first, with their changesets."""
        trailer = f"%(trailers:key={TRAILER},valueonly,separator=%x20)"
        # no message holds a NUL, so each commit has five fields
        form = "%x00".join(("--format=%H", "%aI", "%an", "%s", trailer))
        wanted = ("-z", f"--max-count={limit}", form, self.repository.tip(), *self.repository.inside)
        fields = self.repository.git.run("log", *wanted).decode("utf-8", "replace").split("\0")
        return [_logged(*fields[at : at + 5]) for at in range(0, len(fields) - 1, 5)]

    def roll_back(self, ref: str) -> RollbackResult:
        """Commit the bundle as it was at ``ref``: ``git:<commit>``, or any name of a commit in git."""
        with self._locked():
            result = _tried(lambda: self._roll_back(ref))
            made = Committed(result.new_ref, result.summary, PERSON)
            return result.model_copy(update={"warning": self._announced(made)})

    def _roll_back(self, ref: str) -> RollbackResult:
        tip = self._open_changesets.branch.tip()
        wanted = self.repository.commit_of(ref.removeprefix("git:"))
        tree = self.repository.bundle_tree(wanted) if wanted else None
        if wanted is None or tree is None:
            unknown = unknown_revision(ref)
            raise ChangesetError(unknown.message, code="GIT_ERROR", suggestion=unknown.suggestion)
        before = self.repository.entries(self.repository.bundle_tree(tip))
        changes = changes_between(before, self.repository.entries(tree))
        new = self._restored(tip, tree, wanted) if changes else tip
        return RollbackResult(
            base_ref=str(BundleRef("git", tip)),
            new_ref=str(BundleRef("git", new)),
            summary=summary_of(changes, before),
        )

    def _restored(self, tip: str, tree: str, wanted: str) -> str:
        errors = self._check.errors(self._check.check(tree), self._committed(tip))
        if errors:
            raise ChangesetError(
                f"The bundle of that revision has {len(errors)} error(s): {errors[0]}",
                code="BUNDLE_INVALID",
                suggestion="Roll back to another revision.",
            )
        message = f"Roll back to {BundleRef('git', wanted)}\n"
        root = self.repository.with_bundle(tip, tree)
        commit = self.repository.commit(root, tip, message)
        self._open_changesets.branch.advance(tip, commit)
        return commit

    def _committed(self, commit: str) -> Checked:
        """Validate the bundle in a commit, without importing its entries."""
        return self._check.check(self._tree(commit), import_entries=False)

    def _tree(self, commit: str) -> str:
        tree = self.repository.bundle_tree(commit)
        if tree is None:
            raise ChangesetError(
                f"The bundle {self.source.bundle} is not committed.",
                code="GIT_ERROR",
                suggestion="Add its files to git, and commit them.",
            )
        return tree

    def _new(self, principal: Principal, reason: str) -> Changeset:
        with self._locked():
            tip = _tried(self._open_changesets.branch.tip)
        self._tree(tip)
        if principal.is_bound:
            principal = self._bound(principal, self._committed(tip))
            _require_enabled(principal)
        now = self.clock()
        changeset_id = new_changeset_id(now)
        changeset = Changeset(
            changeset_id=changeset_id,
            base_ref=str(BundleRef("git", tip)),
            workdir=principal.directory / changeset_id,
            opened_at=iso_time(now),
            reason=_message(reason),
            agent_name=principal.agent,
            instance_key=principal.instance_key,
        )
        files = WorkingFiles(self.repository, changeset.workdir)
        with contextlib.ExitStack() as undo:
            undo.callback(files.remove)
            files.create(tip)
            self._open_changesets.save(changeset)
            undo.pop_all()
        return changeset

    def _announced(self, made: Committed) -> str | None:
        """Announce a commit that has been made; return the reason if that fails."""
        try:
            self.announce(made)
        except GoondanError as error:
            return f"It is committed, but not active: {error}"
        return None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            for lock in self.locks:
                held.enter_context(lock())
            yield

    def _bound(self, principal: Principal, tip: Checked) -> Principal:
        """Return a principal bound by the branch's tip too: its Step may be older than a prohibition."""
        if principal.agent is None or not principal.is_bound:
            return principal
        if tip.bundle is None:
            raise ChangesetError(
                f"The bundle has {len(tip.errors)} error(s) as it is committed: {tip.errors[0]}",
                code="BUNDLE_INVALID",
                suggestion="A person has to correct them, or to roll back.",
            )
        try:
            rules = ChangesetRules.of(tip.bundle, principal.agent, swarm=self.swarm)
        except ConfigError as error:
            raise ChangesetError(error.message, code="BUNDLE_INVALID", suggestion=error.suggestion) from error
        return replace(principal, rules=principal.rules.narrowed(rules))

    @property
    def _check(self) -> BundleCheck:
        return BundleCheck(self.repository, self.source.inside, self.swarm)

    @property
    def _open_changesets(self) -> OpenChangesets:
        return OpenChangesets(self.repository, self.source.remote)


def _require_enabled(principal: Principal) -> None:
    if not principal.rules.is_enabled:
        raise ChangesetError(
            "The Swarm does not allow changesets.",
            code="POLICY_VIOLATION",
            suggestion="Set policy.changesets.enabled and allowed.files of the Swarm.",
        )


def _tried(attempt: Callable[[], Outcome]) -> Outcome:
    for _ in range(ATTEMPTS):
        with contextlib.suppress(Overtaken):
            return attempt()
    raise GitError(
        f"Others committed first, {ATTEMPTS} times in a row.", suggestion="Commit the changeset again."
    )


def _message(text: str) -> str:
    """Return a commit's message without control characters: a model may have written it."""
    return _CONTROLS.sub("", text).strip()[:MAX_MESSAGE]


def _failed(changeset_id: str, error: Exception) -> CommitResult:
    code = error.code if isinstance(error, ChangesetError) else "GIT_ERROR"
    described = CommitError.model_validate(
        {"code": code, "message": str(error), "suggestion": getattr(error, "suggestion", None)}
    )
    status = "rejected" if code in {"POLICY_VIOLATION", "BUNDLE_INVALID"} else "failed"
    return CommitResult(status=status, changeset_id=changeset_id[:100], error=described)


def _logged(commit: str, at: str, author: str, subject: str, changesets: str) -> JsonObject:
    return {
        "ref": str(BundleRef("git", commit)),
        "committedAt": at,
        "author": author,
        "message": subject,
        # the last one is ours; earlier ones are part of the given message
        "changesetId": changesets.split()[-1] if changesets else None,
    }
