"""The branch that a bundle's revisions are committed to: here, in the checkout, and in the remote."""

from dataclasses import dataclass

from goondan_tasks.revisions.git import GitError
from goondan_tasks.revisions.remote import Overtaken, Remote
from goondan_tasks.revisions.repository import Repository


@dataclass(frozen=True, slots=True)
class Branch:
    """The branch that is checked out, and the branch of that name in the remote, if there is one."""

    repository: Repository
    remote: Remote | None = None

    def tip(self) -> str:
        """Return its commit, after taking over what others have pushed.

        Raises:
            GitError: there is none, the remote cannot be reached, or the two have diverged.
        """
        here = self.repository.tip()
        there = self.remote.commit_of(self.repository.branch()) if self.remote else None
        if there is None or self.repository.is_ancestor(there, here):
            return here
        if not self.repository.is_ancestor(here, there):
            raise GitError(
                f"The branch has commits that {self.remote.name if self.remote else 'it'} does not have, "
                "and the other way round.",
                suggestion="Merge or rebase by hand, and push.",
            )
        self._move(here, there)
        return there

    def advance(self, old: str, new: str) -> None:
        """Let it go on from ``old`` to ``new``: in the remote, in the checkout's files, then here.

        Whoever dies in between leaves what the next one can go on from.

        Raises:
            Overtaken: it is not at ``old`` any more.
            GitError: the remote refuses, or a person's uncommitted changes are in the way.
        """
        self.repository.check_out(old, new, dry_run=True)
        if self.remote is not None:
            self.remote.push(new, self.repository.branch())
        self._move(old, new)

    def _move(self, old: str, new: str) -> None:
        repository, branch = self.repository, self.repository.branch()
        if repository.commit_of(branch) != old:
            raise Overtaken
        repository.check_out(old, new)
        try:
            repository.set_ref(branch, new, expected=old)
        except GitError:
            if repository.commit_of(branch) == old:
                raise
            raise Overtaken from None
