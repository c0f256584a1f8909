"""An open changeset, and an attempt to commit it: read, judge, merge, check, commit (000 §12.4).

``refs/goondan/changesets/<id>`` points to an empty commit on top of the base, whose message says who opened
the changeset, why and where. The ref protects the base from garbage collection, and reaches other machines
through the remote. There is no other record of a changeset.

An agent may put anything into the directory. So git never looks for a repository in it, nothing is run, and
no link is followed; the proposed files are read one by one, by their raw content. The directory has the
layout of the repository, so that its ``.gitignore`` files keep their meaning, but contains only the bundle's
folder. A commit differs from the branch's tip only in files that were found there and that the rules allow:
nothing else that an agent does to the directory gets in.
"""

import contextlib
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from goondan_tasks.authoring.changesets_api import (
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
from goondan_tasks.changesets.policy import Principal
from goondan_tasks.changesets.working_files import Proposal, WorkingFiles, theirs_suffix
from goondan_tasks.contract.errors import BundleRevisionUnavailableError
from goondan_tasks.contract.messages import WireModel
from goondan_tasks.revisions.checkouts import BundleRef
from goondan_tasks.revisions.git import (
    FILE,
    Branch,
    Changes,
    Entries,
    Entry,
    GitError,
    Remote,
    Repository,
    changes_between,
)

_REFS = "refs/goondan/changesets/"
_ID = re.compile(r"cs-\d{1,15}-[0-9a-f]{8}")
#: findings of an invalid bundle that are reported
MAX_FINDINGS = 50
#: the trailer of a commit's message that names its changeset
TRAILER = "Goondan-Changeset"


class Changeset(WireModel):
    """A proposed change of the bundle, as ``goondan changeset list --json`` prints it."""

    changeset_id: str
    #: the revision that it changes
    base_ref: str
    #: its directory: the root of the repository, with only the bundle's folder in it
    workdir: Path
    opened_at: str
    reason: str = ""
    agent_name: str | None = None
    instance_key: str | None = None

    @property
    def base(self) -> str:
        return BundleRef.parse(self.base_ref).digest

    def rebased(self, commit: str) -> Self:
        return self.model_copy(update={"base_ref": str(BundleRef("git", commit))})


def new_changeset_id(milliseconds: float) -> str:
    """Make an id: the time, and eight random hex digits."""
    return f"cs-{milliseconds:.0f}-{secrets.token_hex(4)}"


@dataclass(frozen=True, slots=True)
class OpenChangesets:
    """The open changesets of a repository, or of its remote if there is one. All methods raise GitError."""

    repository: Repository
    remote: Remote | None = None

    @property
    def branch(self) -> Branch:
        return Branch(self.repository, self.remote)

    def find(self, changeset_id: str) -> Changeset | None:
        """Return an open changeset, or ``None``."""
        if _ID.fullmatch(changeset_id) is None:
            return None
        return next((item for item in self.all() if item.changeset_id == changeset_id), None)

    def all(self) -> list[Changeset]:
        """Return all of them, the oldest first."""
        if self.remote is not None:
            self.remote.mirror(_REFS)
        form = "%(refname:lstrip=3)%00%(parent)%00%(contents:body)%00"
        listed = self.repository.git.run("for-each-ref", f"--format={form}", _REFS).decode("utf-8", "replace")
        fields = listed.replace("\0\n", "\0").split("\0")[:-1]
        parsed = [_parsed(*fields[at : at + 3]) for at in range(0, len(fields), 3)]
        return [changeset for changeset in parsed if changeset is not None]

    def save(self, changeset: Changeset) -> None:
        repository = self.repository
        message = f"Open a changeset\n\n{changeset.model_dump_json(by_alias=True)}\n"
        commit = repository.commit(
            f"{changeset.base}^{{tree}}", changeset.base, message, changeset.agent_name
        )
        ref = _REFS + changeset.changeset_id
        repository.set_ref(ref, commit, expected=repository.commit_of(ref) or "")
        if self.remote is not None:
            self.remote.push(commit, ref, force=True)

    def delete(self, changeset: Changeset) -> None:
        ref = _REFS + changeset.changeset_id
        if self.remote is not None:
            self.remote.delete(ref)
        self.repository.git.run("update-ref", "-d", ref)


def _parsed(changeset_id: str, base: str, body: str) -> Changeset | None:
    """Read a ref; ``None`` if it is not one of ours, because others may write to the remote too."""
    if _ID.fullmatch(changeset_id) is None:
        return None
    try:
        read = Changeset.model_validate_json(body)
        # whatever the message says, a directory with another name is never removed
        place = {"changeset_id": changeset_id, "workdir": read.workdir.with_name(changeset_id)}
        return read.model_copy(update={**place, "base_ref": str(BundleRef.parse(f"git:{base}"))})
    except (ValueError, BundleRevisionUnavailableError):
        return None


@dataclass(frozen=True, slots=True)
class Draft:
    """The prepared commit of a changeset, and its answer."""

    answer: CommitResult
    #: the commit to which the branch moves
    commit: str | None = None
    #: after a conflict: the present tree of the directory, and the one with the changes of both sides
    trees: tuple[str, str] | None = None
    #: whether it is proposed to the workers, even if it changes nothing
    is_news: bool = False

    @property
    def is_refused(self) -> bool:
        """Whether there is nothing to do but to return the answer."""
        return self.answer.status != "ok" and self.trees is None


@dataclass(frozen=True, slots=True)
class Committing:
    """The commit of one changeset by a principal."""

    open_changesets: OpenChangesets
    check: BundleCheck
    changeset: Changeset
    principal: Principal
    #: the commit on top of which it goes, and the result of validating that
    tip: str
    before: Checked

    def draft(self, message: str) -> Draft:
        """Read, judge, merge and check the changeset; of git's data, only objects are added.

        Raises:
            GitError, ChangesetError, OSError: it failed.
        """
        repository = self.open_changesets.repository
        base = repository.bundle_tree(self.changeset.base)
        entries = repository.entries(base)
        proposal = self._files.proposal(entries)
        ours = repository.tree_with(base, proposal.changes) if proposal.changes else base
        refusal = self._judge(proposal, ours)
        if refusal is not None:
            return Draft(refusal)
        if base is None or ours is None or ours == base:
            return Draft(self._ok(self.changeset.base, ChangeSummary()))
        theirs = repository.bundle_tree(self.tip) or repository.tree_with(None, {})
        merged, conflicts = repository.merge(base, ours, theirs, label=self.changeset.changeset_id)
        if conflicts:
            return self._conflict_draft(ours, theirs, merged, conflicts)
        before = repository.entries(theirs)
        changes = changes_between(before, repository.entries(merged))
        if not changes:
            # an earlier attempt made the commit, and its process died right after that
            return Draft(self._ok(self.tip, ChangeSummary()), is_news=True)
        refusal = self._check(merged, theirs, changes)
        if refusal is not None:
            return Draft(refusal)
        text = f"{message}\n\n{TRAILER}: {self.changeset.changeset_id}\n"
        tree = repository.with_bundle(self.tip, merged)
        commit = repository.commit(tree, self.tip, text, self.principal.agent)
        return Draft(self._ok(commit, summary_of(changes, before)), commit, is_news=True)

    def _conflict_draft(self, ours: str, theirs: str, merged: str, paths: Iterable[str]) -> Draft:
        """Draft the answer to a conflict; where no lines can be marked, theirs is added beside ours."""
        repository, changes = self.open_changesets.repository, dict[str, Entry | None]()
        mine, there = repository.entries(ours), repository.entries(theirs)
        marked = set(repository.containing(merged, self._mark))
        names = set()
        for path in paths:
            name = path.removesuffix(f"~{self.changeset.changeset_id}").removesuffix("~branch")
            names.add(name)
            if path != name:
                changes[path] = None
            if path not in marked:
                changes[name] = mine.get(name)
                changes[name + self._beside] = there.get(name) or Entry(FILE, repository.write_blob(b""))
        return Draft(self._conflict(sorted(names)), trees=(ours, repository.tree_with(merged, changes)))

    def _check(self, tree: str, theirs: str, changes: Changes) -> CommitResult | None:
        """Return why the changed bundle cannot replace ``theirs``; ``None`` if it can."""
        is_bound, rules = self.principal.is_bound, self.principal.rules
        after = self.check.check(tree, import_entries=not is_bound)
        refused = unnamed_files(self.before, after, changes, rules) if is_bound else {}
        if refused:
            return self._violation(refused)
        errors = self.check.errors(after, self.before)
        if is_bound and not errors:
            refused = self._overreach(self.before, after)
            if refused:
                return self._violation(refused)
            # code that the policy refuses is never run, not even for a check
            whole = self.check.check(tree)
            errors = self.check.errors(whole, self.before)
            if not errors and (whole.is_typed or self.before.is_typed):
                # the run policies of @tool functions are known only after the import
                refused = self._overreach(self.check.check(theirs), whole)
                if refused:
                    return self._violation(refused)
        if not errors:
            return None
        findings = [error.to_wire() for error in errors]
        listed = "; ".join(f"{item['file']}:{item['line']}: {item['message']}" for item in findings[:5])
        return self._refused(
            "BUNDLE_INVALID",
            f"The changed bundle has {len(findings)} error(s): {listed}",
            "Correct them in the changeset's directory, and commit it again.",
            findings=tuple(findings[:MAX_FINDINGS]),
        )

    def _overreach(self, before: Checked, after: Checked) -> dict[str, str]:
        """Return the files that change resources or permissions beyond the agent's rules, and why."""
        refused = displaced_resources(before, after, self.principal.rules)
        if self.principal.rules.allows_policy_changes or self.principal.agent is None:
            return refused
        labels = changed_permissions(before, after, self.principal.agent, swarm=self.check.swarm)
        files = {**before.files, **after.files}
        return refused | {
            files.get(label, label): f"{label}: what limits or protects it is not for agents to change "
            "(policy.changesets.allowPolicyChanges)"
            for label in labels
        }

    def finish(self, draft: Draft) -> CommitResult:
        """Carry a draft out, under the lock.

        Raises:
            Overtaken: another commit was faster.
            GitError, OSError: it failed.
        """
        if draft.trees is not None:
            self._files.bring(*draft.trees)
            self.open_changesets.save(self.changeset.rebased(self.tip))
        if draft.commit is not None:
            self.open_changesets.branch.advance(self.tip, draft.commit)
        return draft.answer

    def remove(self) -> None:
        """Remove the changeset once it is committed; if that fails, it can be discarded later."""
        with contextlib.suppress(GitError, OSError):
            self._files.remove()
            self.open_changesets.delete(self.changeset)

    @property
    def _files(self) -> WorkingFiles:
        return WorkingFiles(self.open_changesets.repository, self.changeset.workdir, self.principal.objection)

    @property
    def _beside(self) -> str:
        return theirs_suffix(self.changeset.changeset_id)

    @property
    def _mark(self) -> str:
        return f"<<<<<<< {self.changeset.changeset_id}"

    def _judge(self, proposal: Proposal, ours: str | None) -> CommitResult | None:
        """Refuse files that still have conflict markers, or are not allowed."""
        changes = proposal.changes
        marked = self.open_changesets.repository.containing(ours, self._mark) if ours and changes else []
        beside = (path.removesuffix(self._beside) for path in changes if path.endswith(self._beside))
        undecided = {*changes.keys() & marked, *beside}
        if undecided:
            return self._conflict(sorted(undecided))
        judged = {path: self.principal.objection(path) for path in changes}
        refused = {path: reason for path, reason in judged.items() if reason} | proposal.misfits
        return self._violation(refused) if refused else None

    def _ok(self, commit: str, summary: ChangeSummary) -> CommitResult:
        return CommitResult(
            status="ok",
            changeset_id=self.changeset.changeset_id,
            base_ref=self.changeset.base_ref,
            new_ref=str(BundleRef("git", commit)),
            summary=summary,
        )

    def _violation(self, refused: dict[str, str]) -> CommitResult:
        reasons = "; ".join(f"{path}: {reason}" for path, reason in sorted(refused.items())[:10])
        if not self.principal.rules.is_enabled:
            reasons = "the Swarm does not allow changesets (policy.changesets.enabled)"
        return self._refused(
            "POLICY_VIOLATION",
            f"The changeset changes what it may not: {reasons}",
            "Undo these changes in the changeset's directory, and commit it again.",
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
    """Sort changes into changed, added and deleted files."""
    kinds: dict[str, list[str]] = {"changed": [], "added": [], "deleted": []}
    for path, entry in sorted(changes.items()):
        kind = "deleted" if entry is None else "changed" if path in before else "added"
        kinds[kind].append(shown(path))
    return ChangeSummary(**{f"files_{kind}": tuple(paths) for kind, paths in kinds.items()})


def shown(path: str) -> str:
    """Return a path as JSON can represent it: bytes that are not UTF-8 are escaped."""
    return path.encode("utf-8", "backslashreplace").decode("utf-8")
