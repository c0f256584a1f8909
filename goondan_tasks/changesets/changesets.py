"""The changesets of one bundle: opening, committing, discarding them, and going back to what was."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self, TypeVar

from goondan_tasks.changesets.changeset import Changeset, OpenChangesets, new_changeset_id
from goondan_tasks.changesets.changeset_error import ChangesetError
from goondan_tasks.changesets.check import BundleCheck, Checked
from goondan_tasks.changesets.committing import TRAILER, Committing, Draft, summary_of
from goondan_tasks.changesets.locks import CommitLock, FileLock
from goondan_tasks.changesets.party import PERSON, Party
from goondan_tasks.changesets.results import (
    ChangesetHint,
    ChangeSummary,
    CommitError,
    CommitResult,
    Committed,
    OpenedChangeset,
    RollbackResult,
)
from goondan_tasks.changesets.working_files import WorkingFiles
from goondan_tasks.clocks import wall_clock
from goondan_tasks.errors import BundleRevisionUnavailableError, ConfigError, GoondanError
from goondan_tasks.messages import JsonObject, iso_time
from goondan_tasks.revisions.branch import Branch
from goondan_tasks.revisions.bundle_ref import BundleRef
from goondan_tasks.revisions.git import GitError
from goondan_tasks.revisions.named import why_unknown
from goondan_tasks.revisions.remote import Overtaken
from goondan_tasks.revisions.repository import Author, Repository
from goondan_tasks.revisions.source import RevisionSource

#: how often a commit that was overtaken is tried again
ATTEMPTS = 5

#: characters of a commit's message
MAX_MESSAGE = 10_000

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LOCK = "goondan-commit.lock"
Outcome = TypeVar("Outcome")

#: is told of each commit, before another one can be made
Announce = Callable[[Committed], None]


def to_nobody(_committed: Committed) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class Changesets:
    """The changesets of the bundle that ``source`` has the revisions of."""

    source: RevisionSource
    repository: Repository
    #: in the order in which they are taken
    locks: tuple[CommitLock, ...]
    announce: Announce = to_nobody
    #: the Swarm that counts, if one is named
    swarm: str | None = None
    #: where the pages about errors are
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
        """Return the changesets of a bundle; ``locks`` are taken beside the one of this machine.

        Raises:
            ChangesetError: the bundle is in no git repository.
        """
        repository = source.repository
        if repository is None:
            raise ChangesetError(
                f"The bundle {source.bundle} is in no git repository.",
                code="GIT_ERROR",
                suggestion="Run `git init` in its folder, and commit it.",
            )
        file = FileLock(repository.common_directory / _LOCK)
        return cls(source, repository, (*locks, file), announce, swarm, help_url)

    def open(self, party: Party, reason: str = "") -> OpenedChangeset:
        """Open a changeset, in a directory of its own below that of ``party``.

        Raises:
            ChangesetError: the rules do not allow changesets, or the bundle is not committed.
            GitError: git or the remote fails.
        """
        _require_enabled(party)
        try:
            changeset = self._new(party, reason)
            self._make(changeset)
        except OSError as error:
            raise ChangesetError(f"The changeset cannot be opened: {error}", code="GIT_ERROR") from error
        root = self.repository.prefix.rstrip("/") or "."
        return OpenedChangeset(
            changeset_id=changeset.changeset_id,
            base_ref=changeset.base_ref,
            workdir=str(changeset.workdir),
            hint=ChangesetHint(bundle_root_in_workdir=root, recommended_files=party.rules.recommended_files),
        )

    def find(self, changeset_id: str, party: Party = PERSON) -> Changeset:
        """Return an open changeset that ``party`` can commit.

        Raises:
            ChangesetError: there is none.
            GitError: git or the remote fails.
        """
        changeset = self._open_changesets.find(changeset_id)
        if changeset is not None and party.instance_key is not None:
            # another machine may know the same directory by another path
            here = changeset.model_copy(update={"workdir": party.directory / changeset_id})
            changeset = here if changeset.instance_key == party.instance_key else None
        if changeset is None or not changeset.workdir.is_dir():
            raise ChangesetError(
                f"There is no open changeset {changeset_id[:100]!r} here.",
                code="CHANGESET_NOT_FOUND",
                suggestion="Open a changeset first; `goondan changeset list` shows those that are open.",
            )
        return changeset

    def all(self) -> list[Changeset]:
        """Return the open changesets, the oldest first.

        Raises:
            GitError: git or the remote fails.
        """
        return self._open_changesets.all()

    def commit(self, changeset_id: str, message: str = "", party: Party = PERSON) -> CommitResult:
        """Commit a changeset, or say why not; it raises only what a lock in Redis does.

        ``message`` is ``Changeset <id>`` if it is empty.
        """
        return self._answer(changeset_id, message, party).with_page(self.help_url)

    def _answer(self, changeset_id: str, message: str, party: Party) -> CommitResult:
        text = _message(message) or f"Changeset {changeset_id}"
        try:
            with self._turn():
                tip = _tried(self._branch.tip)
            committing = self._committing(changeset_id, party, tip)
            draft = committing.draft(text)
            if draft.is_refused:
                return draft.require_answer()
            with self._turn():
                return _tried(lambda: self._finished(committing, draft, party=party, message=text))
        except (ChangesetError, GitError, BundleRevisionUnavailableError, OSError) as error:
            return _failed(changeset_id, error)

    def _committing(self, changeset_id: str, party: Party, tip: str) -> Committing:
        changeset = self.find(changeset_id, party)
        before = self._check.check(tip, import_entries=False)
        places = (self.repository, self._branch, self._open_changesets, self._check)
        return Committing(*places, changeset, self._bound(party, before), tip, before)

    def _finished(self, committing: Committing, draft: Draft, *, party: Party, message: str) -> CommitResult:
        """Commit what was drafted; again from the start, in this turn, if somebody was faster.

        Only who was just found good is drafted again: so one that cannot be checked in time holds up nobody.
        """
        changeset_id, tip = committing.changeset.changeset_id, self._branch.tip()
        if (committing.changeset, committing.tip) != (self.find(changeset_id, party), tip):
            committing = self._committing(changeset_id, party, tip)
            draft = committing.draft(message)
        result = committing.finish(draft)
        if result.status != "ok":
            return result
        made = Committed(result.new_ref or "", result.summary or ChangeSummary(), party, changeset_id)
        warning = self._told(made) if draft.is_news else None
        committing.remove()
        return result.model_copy(update={"warning": warning})

    def discard(self, changeset_id: str) -> None:
        """Give a changeset up, and remove its directory.

        Raises:
            ChangesetError: there is none.
            GitError, OSError: not all could be removed.
            BrokerUnreachableError: a lock in Redis cannot be had.
        """
        changeset = self._open_changesets.find(changeset_id) or self.find(changeset_id)
        with self._turn():  # nobody is to take a directory that is half gone for what is proposed
            WorkingFiles(self.repository, changeset.workdir).remove()
            self._open_changesets.delete(changeset)

    def diff(self, changeset_id: str) -> str:
        """Return what a changeset changes of its base, as a unified diff.

        Raises:
            ChangesetError: there is none.
            GitError, OSError: its files cannot be read.
        """
        changeset = self.find(changeset_id)
        base = self.repository.entries(changeset.base)
        proposal = WorkingFiles(self.repository, changeset.workdir).proposal(base)
        tree = self.repository.tree_with(changeset.base, proposal.changes)
        options = ("--no-ext-diff", "--no-textconv", "--no-renames", "--no-color")
        return self.repository.git.run("diff", *options, changeset.base, tree).decode("utf-8", "replace")

    def log(self, limit: int = 20) -> list[JsonObject]:
        """Return the commits of the bundle, the last one first, with the changesets that they come from.

        Raises:
            GitError: git fails.
        """
        trailer = f"%(trailers:key={TRAILER},valueonly,separator=%x20)"
        # no message holds a NUL, and each commit has as many
        form = "%x00".join(("--format=%H", "%aI", "%an", "%s", trailer))
        wanted = ("-z", f"--max-count={limit}", form, self.repository.tip(), *self.repository.inside)
        fields = self.repository.git.run("log", *wanted).decode("utf-8", "replace").split("\0")
        return [_logged(*fields[at : at + 5]) for at in range(0, len(fields) - 1, 5)]

    def roll_back(self, ref: str) -> RollbackResult:
        """Commit the bundle as it was at ``ref``: ``git:<commit>``, or what git calls a commit.

        Raises:
            ChangesetError: there is no such revision, or the bundle of that time is not valid.
            GitError, OSError: git or the remote fails.
        """
        with self._turn():
            result = _tried(lambda: self._roll_back(ref))
            made = Committed(result.new_ref, result.summary, PERSON)
            return result.model_copy(update={"warning": self._told(made)})

    def _roll_back(self, ref: str) -> RollbackResult:
        tip = self._branch.tip()
        wanted = self.repository.commit_of(ref.removeprefix("git:"))
        before, after = self.repository.entries(tip), self.repository.entries(wanted) if wanted else {}
        if wanted is None or not after:
            message = why_unknown(self.repository, ref)
            raise ChangesetError(message, code="GIT_ERROR", suggestion="`goondan changeset log` shows them.")
        changes = {
            path: after.get(path) for path in before.keys() | after if before.get(path) != after.get(path)
        }
        summary, new = summary_of(changes, before), tip
        if changes:
            new = self._restored(tip, self.repository.tree_with(tip, changes), wanted)
        return RollbackResult(
            base_ref=str(BundleRef("git", tip)),
            new_ref=str(BundleRef("git", new)),
            summary=summary,
        )

    def _restored(self, tip: str, tree: str, wanted: str) -> str:
        before = self._check.check(tip, import_entries=False)
        errors = self._check.errors(self._check.check(tree), before)
        if errors:
            raise ChangesetError(
                f"The bundle of that revision has {len(errors)} error(s): {errors[0]}",
                code="BUNDLE_INVALID",
                suggestion="Roll back to another revision.",
            )
        message = f"Roll back to {BundleRef('git', wanted)}\n"
        commit = self.repository.commit(tree, tip, message, Author.of(None))
        self._branch.advance(tip, commit)
        return commit

    def _new(self, party: Party, reason: str) -> Changeset:
        with self._turn():
            tip = _tried(self._branch.tip)
        if not self.repository.entries(tip):
            raise ChangesetError(
                f"The bundle {self.source.bundle} is not committed.",
                code="GIT_ERROR",
                suggestion="Add its files to git, and commit them.",
            )
        if party.is_bound:
            party = self._bound(party, self._check.check(tip, import_entries=False))
            _require_enabled(party)
        now = self.clock()
        changeset_id = new_changeset_id(now)
        return Changeset(
            changeset_id=changeset_id,
            base_ref=str(BundleRef("git", tip)),
            workdir=party.directory / changeset_id,
            opened_at=iso_time(now),
            reason=_message(reason),
            agent_name=party.agent,
            instance_key=party.instance_key,
        )

    def _make(self, changeset: Changeset) -> None:
        files = WorkingFiles(self.repository, changeset.workdir)
        with contextlib.ExitStack() as undo:
            undo.callback(files.remove)
            files.create(changeset.base)
            self._open_changesets.save(changeset)
            undo.pop_all()

    def _told(self, made: Committed) -> str | None:
        """Tell of a commit, which stands whether anybody hears of it or not; return why nobody does."""
        try:
            self.announce(made)
        except GoondanError as error:
            return f"It is committed, but not active: {error}"
        return None

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        with contextlib.ExitStack() as held:
            for lock in self.locks:
                held.enter_context(lock.hold())
            yield

    def _bound(self, party: Party, tip: Checked) -> Party:
        """Return a party as the branch's tip binds it, too: its Step may be older than what is forbidden."""
        if not party.is_bound:
            return party
        if tip.bundle is None:
            raise ChangesetError(
                f"The bundle has {len(tip.errors)} error(s) as it is committed: {tip.errors[0]}",
                code="BUNDLE_INVALID",
                suggestion="A person has to correct them, or to roll back.",
            )
        try:
            return party.bound_by(tip.bundle, self.swarm)
        except ConfigError as error:
            raise ChangesetError(error.message, code="BUNDLE_INVALID", suggestion=error.suggestion) from error

    @property
    def _check(self) -> BundleCheck:
        return BundleCheck(self.source, self.swarm)

    @property
    def _branch(self) -> Branch:
        return Branch(self.repository, self.source.remote)

    @property
    def _open_changesets(self) -> OpenChangesets:
        return OpenChangesets(self.repository, self.source.remote)


def _require_enabled(party: Party) -> None:
    if not party.rules.is_enabled:
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
    """Make a commit's message of what a model wrote, without characters that a terminal would obey."""
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
        # the last one is ours; those before stand in the message that was given
        "changesetId": changesets.split()[-1] if changesets else None,
    }
