"""One attempt to commit a changeset: read, judge, merge, check, commit (000 §12.4).

What is committed differs from the branch's tip only in files that were found in the changeset's directory
and that its rules allow: whatever an agent did to the directory, nothing else gets in.
"""

import contextlib
from dataclasses import dataclass

from goondan_tasks.changesets.changeset import Changeset, OpenChangesets
from goondan_tasks.changesets.check import BundleCheck, Checked
from goondan_tasks.changesets.code_rules import displaced_resources, unnamed_files
from goondan_tasks.changesets.content_merge import ContentMerge
from goondan_tasks.changesets.merge import Merge, merge, parents
from goondan_tasks.changesets.party import Party
from goondan_tasks.changesets.permissions import changed_permissions
from goondan_tasks.changesets.results import ChangeSummary, CommitError, CommitResult, CommitStatus
from goondan_tasks.changesets.working_files import Proposal, WorkingFiles, theirs_suffix
from goondan_tasks.messages import JsonObject
from goondan_tasks.revisions.branch import Branch
from goondan_tasks.revisions.bundle_ref import BundleRef
from goondan_tasks.revisions.git import GitError
from goondan_tasks.revisions.repository import Author, Changes, Entries, Repository

#: findings of a broken bundle that are told
MAX_FINDINGS = 50
#: what a commit's message says of the changeset it came from
TRAILER = "Goondan-Changeset"


@dataclass(frozen=True, slots=True)
class Draft:
    """What comes of a changeset if it is committed now: conflicts, or an answer."""

    answer: CommitResult | None = None
    conflicts: Merge | None = None
    #: the commit that the branch is to go on to
    commit: str | None = None
    #: whether the workers are to be told, be the summary empty or not
    is_news: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether nothing is to be done but to say why."""
        return self.answer is not None and self.answer.status != "ok"

    def require_answer(self) -> CommitResult:
        """Return the answer of a draft without conflicts."""
        if self.answer is None:
            raise RuntimeError("a draft without conflicts has an answer")
        return self.answer


@dataclass(frozen=True, slots=True)
class Committing:
    """The commit of one changeset by somebody."""

    repository: Repository
    branch: Branch
    open_changesets: OpenChangesets
    check: BundleCheck
    changeset: Changeset
    party: Party
    #: the commit that it goes on top of, and what validation says of that
    tip: str
    before: Checked

    def draft(self, message: str) -> Draft:
        """Read the changeset, and judge and check it as a change of the tip; git gets objects only.

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
        merged = merge(base, proposal.changes, theirs, self._content)
        if merged.conflicts:
            return Draft(conflicts=merged)
        if not merged.changes:
            # whoever died just behind the commit finds it here when trying again: it is to be told
            return Draft(answer=self._ok(self.tip, ChangeSummary()), is_news=True)
        return self._checked(theirs, merged.changes, message)

    def _checked(self, theirs: Entries, changes: Changes, message: str) -> Draft:
        tree = self.repository.tree_with(self.tip, changes)
        after = self.check.check(tree, import_entries=not self.party.is_bound)
        refused = unnamed_files(self.before, after, changes, self.party.rules) if self.party.is_bound else {}
        if refused:
            return Draft(answer=self._violation(refused))
        errors = self.check.errors(after, self.before)
        if self.party.is_bound and not errors:
            refused = self._overreach(after)
            if refused:
                return Draft(answer=self._violation(refused))
            # what the policy refuses is never run, not even to be checked
            errors = self.check.errors(self.check.check(tree), self.before)
        if errors:
            return Draft(answer=self._invalid([item.to_wire() for item in errors]))
        text = f"{message}\n\n{TRAILER}: {self.changeset.changeset_id}\n"
        commit = self.repository.commit(tree, self.tip, text, Author.of(self.party.agent))
        done = self._ok(commit, summary_of(changes, theirs))
        return Draft(answer=done, commit=commit, is_news=True)

    def _overreach(self, after: Checked) -> dict[str, str]:
        """Return the files in which an agent changes what is beyond it, in whatever files that stands."""
        refused = displaced_resources(self.before, after, self.party.rules)
        if self.party.rules.allows_policy_changes or self.party.agent is None:
            return refused
        labels = changed_permissions(self.before, after, self.party.agent, swarm=self.check.swarm)
        files = {**self.before.files, **after.files}
        return refused | {
            files.get(label, label): f"{label}: what limits or protects it is not for agents to change "
            "(policy.changesets.allowPolicyChanges)"
            for label in labels
        }

    def finish(self, draft: Draft) -> CommitResult:
        """Do what a draft says, while nobody else can commit.

        Raises:
            Overtaken: somebody else was faster.
            GitError, OSError: it failed.
        """
        if draft.conflicts is not None:
            self._bring(draft.conflicts)
            self.open_changesets.save(self.changeset.rebased(self.tip))
            return self._conflict(tuple(draft.conflicts.conflicts))
        if draft.commit is not None:
            self.branch.advance(self.tip, draft.commit)
        return draft.require_answer()

    def remove(self) -> None:
        """Remove the changeset, which is done with; what stays behind can be discarded."""
        with contextlib.suppress(GitError, OSError):
            self._files.remove()
            self.open_changesets.delete(self.changeset)

    @property
    def _files(self) -> WorkingFiles:
        return WorkingFiles(self.repository, self.changeset.workdir, self.party.objection)

    @property
    def _beside(self) -> str:
        return theirs_suffix(self.changeset.changeset_id)

    @property
    def _content(self) -> ContentMerge:
        return ContentMerge(self.repository, self.changeset.changeset_id)

    def _judge(self, proposal: Proposal) -> CommitResult | None:
        """Refuse what is undecided still, or not allowed."""
        undecided = self._undecided(proposal)
        if undecided:
            return self._conflict(undecided)
        judged = {path: self.party.objection(path) for path in proposal.changes}
        refused = {path: reason for path, reason in judged.items() if reason} | proposal.misfits
        return self._violation(refused) if refused else None

    def _undecided(self, proposal: Proposal) -> tuple[str, ...]:
        """Return the files that are as a conflict has left them."""
        beside = [path for path in proposal.changes if path.endswith(self._beside)]
        texts = {path: entry for path, entry in proposal.changes.items() if entry and entry.is_file}
        contents = self.repository.blobs(entry.blob for entry in texts.values())
        marked = [path for path, data in zip(texts, contents, strict=True) if self._content.is_marked(data)]
        return tuple(sorted({*marked, *(path.removesuffix(self._beside) for path in beside)}))

    def _bring(self, merged: Merge) -> None:
        """Put the others' changes into the directory, and mark where they meet ours."""
        base, theirs = (self.repository.entries(commit) for commit in (self.changeset.base, self.tip))
        for path in base.keys() - theirs.keys() - merged.conflicts.keys():
            self._files.take_away(path)
        ours = merged.changes.keys() | merged.conflicts.keys()
        # where one side has a directory and the other a file, the directory stays as it is
        blocked = {parent for path in merged.conflicts for parent in parents(path)}
        news = {
            path: entry
            for path, entry in theirs.items()
            if base.get(path) != entry and path not in ours | blocked and ours.isdisjoint(parents(path))
        }
        marked = {path: entry for path, entry in merged.conflicts.items() if entry}
        clean = {path: entry for path, entry in merged.changes.items() if entry}
        self._files.put(news | marked | clean)
        for path in merged.conflicts.keys() - marked.keys():
            other = theirs.get(path)
            data = self.repository.blob(other.blob) if other else b""
            self._files.write(path + self._beside, data)

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
        if not self.party.rules.is_enabled:
            told = "the Swarm does not allow changesets (policy.changesets.enabled)"
        error = CommitError(
            code="POLICY_VIOLATION",
            message=f"The changeset changes what it may not: {told}",
            suggestion="Take these changes back in the changeset's directory, and commit it again.",
            violated_files=tuple(map(shown, sorted(refused))),
        )
        return self._refused("rejected", error)

    def _invalid(self, findings: list[JsonObject]) -> CommitResult:
        told = "; ".join(f"{item['file']}:{item['line']}: {item['message']}" for item in findings[:5])
        error = CommitError(
            code="BUNDLE_INVALID",
            message=f"The changed bundle has {len(findings)} error(s): {told}",
            suggestion="Correct them in the changeset's directory, and commit it again.",
            findings=tuple(findings[:MAX_FINDINGS]),
        )
        return self._refused("rejected", error)

    def _conflict(self, paths: tuple[str, ...]) -> CommitResult:
        error = CommitError(
            code="MERGE_CONFLICT",
            message=f"Others have changed the same files: {', '.join(map(shown, paths[:10]))}",
            suggestion=(
                "Their changes are in the changeset's directory now. Edit what stands between '<<<<<<<' and "
                f"'>>>>>>>'; of a file with '{self._beside}' beside it keep what is right, and remove that. "
                "Then commit the changeset again."
            ),
            conflicting_files=tuple(map(shown, paths)),
        )
        return self._refused("conflict", error)

    def _refused(self, status: CommitStatus, error: CommitError) -> CommitResult:
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
    """Write a path that is no UTF-8 with escapes: results are JSON."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")
