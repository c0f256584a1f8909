"""One attempt to commit a changeset: read, judge, merge, check, commit (000 §12.4).

What is committed differs from the branch's tip only in files that were found in the changeset's directory and
that its rules allow: whatever else an agent does to the directory does not get in.
"""

import contextlib
import os
import re
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path

from goondan_tasks.changesets.api import (
    ChangesetCode,
    ChangeSummary,
    CommitError,
    CommitResult,
    CommitStatus,
)
from goondan_tasks.changesets.check import (
    BundleCheck,
    Checked,
    changed_permissions,
    displaced_resources,
    unnamed_files,
)
from goondan_tasks.changesets.open_changesets import (
    Changeset,
    OpenChangesets,
    Proposal,
    WorkingFiles,
    parents,
    theirs_suffix,
)
from goondan_tasks.changesets.policy import Principal
from goondan_tasks.revisions.content import BundleRef
from goondan_tasks.revisions.git import (
    Author,
    Branch,
    Changes,
    Entries,
    Entry,
    GitError,
    Repository,
)

#: findings of an invalid bundle that are reported
MAX_FINDINGS = 50
#: the trailer of a commit's message that names its changeset
TRAILER = "Goondan-Changeset"
#: keeps git from a user's own attributes, which may name merge programs
_NO_ATTRIBUTES = {
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "core.attributesFile",
    "GIT_CONFIG_VALUE_0": os.devnull,
}


@dataclass(frozen=True, slots=True)
class Merge:
    """The result of a merge."""

    #: the changes of the branch's tip
    changes: dict[str, Entry | None] = field(default_factory=dict)
    #: paths of conflicts; the entry holds both sides, marked, or is ``None`` if there are no lines to mark
    conflicts: dict[str, Entry | None] = field(default_factory=dict)


def merge(repository: Repository, base: Entries, changes: Changes, theirs: Entries, *, label: str) -> Merge:
    """Merge changes of ``base`` into ``theirs``, line by line, with ``git merge-tree``.

    Git sees only the changed paths, and what is in their way. So no other path is changed, not even where
    git takes a removal and an addition for a rename, and a branch that was reset does not get back what the
    reset has removed. Attributes play no part. ``label`` names our side in the marks of a conflict.

    Raises:
        GitError: git fails.
    """
    inside = {parent for path in changes for parent in parents(path)}
    clashing = {path for path in theirs if path in inside or not changes.keys().isdisjoint(parents(path))}
    paths = changes.keys() | clashing
    before, after = ({path: side[path] for path in paths & side.keys()} for side in (base, theirs))
    mine = {path: entry for path, entry in ({**before, **changes}).items() if entry}
    root = _commit(repository, before)
    ours, tip = (_commit(repository, side, root) for side in (mine, after))
    with tempfile.TemporaryDirectory(prefix="goondan-merge-") as name:
        empty = Path(name)  # git looks for attributes there
        git = replace(
            repository.git,
            folder=empty,
            work_tree=empty,
            index=empty / "index",
            environment=_NO_ATTRIBUTES,
        )
        wanted = ("merge-tree", "--write-tree", "-z", "--no-messages", ours, tip)
        tree, *stages = os.fsdecode(git.status(*wanted, accepted=(0, 1))[1]).split("\0")
    merged = repository.entries(tree)
    found = (line.partition("\t")[2].removeprefix(repository.prefix) for line in stages if line)
    # of a file against a directory or a link, git renames one side to "<path>~<its commit>"
    clean = {path.removesuffix(f"~{ours}").removesuffix(f"~{tip}") for path in found}
    conflicts = {path: _marked(repository, merged.get(path), (ours, label), tip) for path in sorted(clean)}
    decided = {path: merged.get(path) for path in changes.keys() - conflicts.keys()}
    return Merge({path: it for path, it in decided.items() if it != theirs.get(path)}, conflicts)


def _commit(repository: Repository, entries: Entries, parent: str | None = None) -> str:
    return repository.commit(repository.tree_with(None, entries), parent, "merge", Author.of(None))


def _marked(repository: Repository, entry: Entry | None, ours: tuple[str, str], tip: str) -> Entry | None:
    """Store a file with the marks of a conflict that name the sides; ``None`` if it has no marks."""
    commit, label = ours
    content = repository.blob(entry.blob) if entry and entry.is_file else b""
    # behind a commit, git names the path if one side has renamed it
    named, count = re.subn(rf"(?m)^<<<<<<< {commit}(:.*)?$".encode(), f"<<<<<<< {label}".encode(), content)
    if entry is None or not count:
        return None
    named = re.sub(rf"(?m)^>>>>>>> {tip}(:.*)?$".encode(), b">>>>>>> branch", named)
    return Entry(entry.mode, repository.write_blob(named))


@dataclass(frozen=True, slots=True)
class Draft:
    """What a commit of the changeset would do now: bring conflicts, or give an answer."""

    answer: CommitResult | None = None
    conflicts: Merge | None = None
    #: the commit that the branch is to move to
    commit: str | None = None
    #: whether it is to be proposed to the workers, even if it changes nothing
    is_news: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether the answer is all there is to it."""
        return self.answer is not None and self.answer.status != "ok"

    def require_answer(self) -> CommitResult:
        """Return the answer of a draft without conflicts."""
        if self.answer is None:
            raise RuntimeError("a draft without conflicts has an answer")
        return self.answer


@dataclass(frozen=True, slots=True)
class Committing:
    """The commit of one changeset by a principal."""

    repository: Repository
    branch: Branch
    open_changesets: OpenChangesets
    check: BundleCheck
    changeset: Changeset
    principal: Principal
    #: the commit that it goes on top of, and the result of validating that
    tip: str
    before: Checked

    def draft(self, message: str) -> Draft:
        """Read, judge, merge and check the changeset; git gets objects only.

        Raises:
            GitError, ChangesetError, OSError: it failed.
        """
        base = self.repository.entries(self.changeset.base)
        proposal = self._files.proposal(base)
        refusal = self._judge(proposal)
        if refusal is not None:
            return Draft(answer=refusal)
        if not proposal.changes:
            return Draft(answer=self._ok(self.changeset.base, ChangeSummary()))
        theirs = self.repository.entries(self.tip)
        merged = merge(self.repository, base, proposal.changes, theirs, label=self._label)
        if merged.conflicts:
            return Draft(conflicts=merged)
        changes = merged.changes
        if not changes:
            # a process that died right after the commit finds it here when it tries again
            return Draft(answer=self._ok(self.tip, ChangeSummary()), is_news=True)
        tree = self.repository.tree_with(self.tip, changes)
        refusal = self._check(tree, changes)
        if refusal is not None:
            return Draft(answer=refusal)
        text = f"{message}\n\n{TRAILER}: {self.changeset.changeset_id}\n"
        commit = self.repository.commit(tree, self.tip, text, Author.of(self.principal.agent))
        return Draft(answer=self._ok(commit, summary_of(changes, theirs)), commit=commit, is_news=True)

    def _check(self, tree: str, changes: Changes) -> CommitResult | None:
        """Return why the changed bundle cannot be committed; ``None`` if it can."""
        is_bound, rules = self.principal.is_bound, self.principal.rules
        after = self.check.check(tree, import_entries=not is_bound)
        refused = unnamed_files(self.before, after, changes, rules) if is_bound else {}
        if refused:
            return self._violation(refused)
        errors = self.check.errors(after, self.before)
        if is_bound and not errors:
            refused = self._overreach(after)
            if refused:
                return self._violation(refused)
            # what the policy refuses is never run, not even to be checked
            errors = self.check.errors(self.check.check(tree), self.before)
        if not errors:
            return None
        findings = [error.to_wire() for error in errors]
        told = "; ".join(f"{item['file']}:{item['line']}: {item['message']}" for item in findings[:5])
        return self._refused(
            "BUNDLE_INVALID",
            f"The changed bundle has {len(findings)} error(s): {told}",
            "Correct them in the changeset's directory, and commit it again.",
            findings=tuple(findings[:MAX_FINDINGS]),
        )

    def _overreach(self, after: Checked) -> dict[str, str]:
        """Return the files that change resources or permissions beyond the agent's rules, and why."""
        refused = displaced_resources(self.before, after, self.principal.rules)
        if self.principal.rules.allows_policy_changes or self.principal.agent is None:
            return refused
        labels = changed_permissions(self.before, after, self.principal.agent, swarm=self.check.swarm)
        files = {**self.before.files, **after.files}
        return refused | {
            files.get(label, label): f"{label}: what limits or protects it is not for agents to change "
            "(policy.changesets.allowPolicyChanges)"
            for label in labels
        }

    def finish(self, draft: Draft) -> CommitResult:
        """Carry a draft out, while no other commit can be made.

        Raises:
            Overtaken: another commit was faster.
            GitError, OSError: it failed.
        """
        if draft.conflicts is not None:
            self._bring(draft.conflicts)
            self.open_changesets.save(self.changeset.rebased(self.tip))
            return self._conflict(draft.conflicts.conflicts)
        if draft.commit is not None:
            self.branch.advance(self.tip, draft.commit)
        return draft.require_answer()

    def remove(self) -> None:
        """Remove the changeset once it is committed; what cannot be removed can be discarded later."""
        with contextlib.suppress(GitError, OSError):
            self._files.remove()
            self.open_changesets.delete(self.changeset)

    @property
    def _files(self) -> WorkingFiles:
        return WorkingFiles(self.repository, self.changeset.workdir, self.principal.objection)

    @property
    def _beside(self) -> str:
        return theirs_suffix(self.changeset.changeset_id)

    @property
    def _label(self) -> str:
        return f"changeset {self.changeset.changeset_id}"

    def _judge(self, proposal: Proposal) -> CommitResult | None:
        """Refuse what still has the marks of a conflict, or is not allowed."""
        undecided = self._undecided(proposal)
        if undecided:
            return self._conflict(undecided)
        judged = {path: self.principal.objection(path) for path in proposal.changes}
        refused = {path: reason for path, reason in judged.items() if reason} | proposal.misfits
        return self._violation(refused) if refused else None

    def _undecided(self, proposal: Proposal) -> list[str]:
        beside = [path for path in proposal.changes if path.endswith(self._beside)]
        texts = {path: entry for path, entry in proposal.changes.items() if entry and entry.is_file}
        contents = self.repository.blobs(entry.blob for entry in texts.values())
        mark = f"<<<<<<< {self._label}".encode()
        marked = [path for path, data in zip(texts, contents, strict=True) if mark in data.splitlines()]
        return sorted({*marked, *(path.removesuffix(self._beside) for path in beside)})

    def _bring(self, merged: Merge) -> None:
        """Put the others' changes into the directory, with marks where they meet ours."""
        base, theirs = (self.repository.entries(commit) for commit in (self.changeset.base, self.tip))
        conflicts, ours = merged.conflicts, merged.changes.keys() | merged.conflicts.keys()
        for path in base.keys() - theirs.keys() - conflicts.keys():
            self._files.take_away(path)
        # where one side has a directory and the other a file, the directory stays as it is
        kept = ours | {parent for path in conflicts for parent in parents(path)}
        news = {
            path: entry
            for path, entry in theirs.items()
            if base.get(path) != entry and path not in kept and ours.isdisjoint(parents(path))
        }
        self._files.put(news | {path: entry for path, entry in (merged.changes | conflicts).items() if entry})
        for path, entry in conflicts.items():
            if entry is None:
                other = theirs.get(path)
                self._files.write(path + self._beside, self.repository.blob(other.blob) if other else b"")

    def _ok(self, commit: str, summary: ChangeSummary) -> CommitResult:
        return CommitResult(
            status="ok",
            changeset_id=self.changeset.changeset_id,
            base_ref=self.changeset.base_ref,
            new_ref=str(BundleRef("git", commit)),
            summary=summary,
        )

    def _violation(self, refused: dict[str, str]) -> CommitResult:
        told = "; ".join(f"{path}: {reason}" for path, reason in sorted(refused.items())[:10])
        if not self.principal.rules.is_enabled:
            told = "the Swarm does not allow changesets (policy.changesets.enabled)"
        return self._refused(
            "POLICY_VIOLATION",
            f"The changeset changes what it may not: {told}",
            "Take these changes back in the changeset's directory, and commit it again.",
            violated_files=tuple(map(shown, sorted(refused))),
        )

    def _conflict(self, paths: Iterable[str]) -> CommitResult:
        names = tuple(map(shown, paths))
        return self._refused(
            "MERGE_CONFLICT",
            f"Others have changed the same files: {', '.join(names[:10])}",
            "Their changes are in the changeset's directory now. Edit what stands between '<<<<<<<' and "
            f"'>>>>>>>'; of a file with '{self._beside}' beside it keep what is right, and remove that. "
            "Then commit the changeset again.",
            status="conflict",
            conflicting_files=names,
        )

    def _refused(
        self,
        code: ChangesetCode,
        message: str,
        suggestion: str,
        *,
        status: CommitStatus = "rejected",
        **files: tuple[object, ...],
    ) -> CommitResult:
        error = CommitError.model_validate(
            {"code": code, "message": message, "suggestion": suggestion, **files}
        )
        return CommitResult(
            status=status,
            changeset_id=self.changeset.changeset_id,
            base_ref=self.changeset.base_ref,
            error=error,
        )


def summary_of(changes: Changes, before: Entries) -> ChangeSummary:
    """Sort changes by what they do to files."""
    kinds: dict[str, list[str]] = {"changed": [], "added": [], "deleted": []}
    for path, entry in sorted(changes.items()):
        kind = "deleted" if entry is None else "changed" if path in before else "added"
        kinds[kind].append(shown(path))
    return ChangeSummary(**{f"files_{kind}": tuple(paths) for kind, paths in kinds.items()})


def shown(path: str) -> str:
    """Return a path that JSON can hold: bytes that are not UTF-8 are escaped."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")
