"""The git remote that machines share revisions by (``GOONDAN_BUNDLE_REMOTE``)."""

import os
import re
from collections.abc import Collection
from dataclasses import dataclass

from goondan_tasks.revisions.git import REMOTE_SECONDS, GitError
from goondan_tasks.revisions.repository import Repository

#: what has been fetched, kept from being collected as garbage
_FETCHED = "refs/goondan/fetched/"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class Overtaken(Exception):  # noqa: N818 - says what happened, and is handled by trying again
    """Somebody else's commit got there first."""


@dataclass(frozen=True, slots=True)
class Remote:
    """One remote of a repository, by its name or URL."""

    repository: Repository
    name: str

    def commit_of(self, ref: str) -> str | None:
        """Return the commit that a ref (its full name) has there, fetched; ``None`` if there is none.

        Raises:
            GitError: the remote cannot be reached.
        """
        commit = self._listed(ref)
        if commit is not None and self.repository.commit_of(commit) is None:
            self.fetch(ref)
        return commit

    def fetch(self, wanted: str) -> None:
        """Fetch a ref, or a commit by its id.

        Raises:
            GitError: the remote does not have it, does not give it, or cannot be reached.
        """
        kept = f"{_FETCHED}{wanted.removeprefix('refs/')}"
        self._run("fetch", "--quiet", "--no-tags", "--", self.name, f"+{wanted}:{kept}")

    def fetch_branches(self) -> None:
        """Fetch all branches; raises as :meth:`fetch` does."""
        refspec = f"+refs/heads/*:{_FETCHED}heads/*"
        self._run("fetch", "--quiet", "--no-tags", "--", self.name, refspec)

    def mirror(self, refs: str) -> None:
        """Make the refs here that begin with ``refs`` the same as there; raises as :meth:`fetch` does."""
        self._run("fetch", "--quiet", "--no-tags", "--prune", "--", self.name, f"+{refs}*:{refs}*")

    def push(self, commit: str, ref: str, *, force: bool = False) -> None:
        """Let a ref there point to a commit, which must have its present one in its history, or to be forced.

        Raises:
            Overtaken: it does not have it.
            GitError: the remote refuses it, or cannot be reached.
        """
        refspec = f"{'+' if force else ''}{commit}:{ref}"
        status, printed = self.repository.git.status(
            "push", "--porcelain", "--no-verify", "--", self.name, refspec,
            accepted=(0, 1), seconds=REMOTE_SECONDS,
        )  # fmt: skip
        refused = [line for line in printed.decode("utf-8", "replace").splitlines() if line.startswith("!")]
        if any("[rejected]" in line for line in refused):
            raise Overtaken
        if status:
            reason = " ".join(refused[0].split()[1:]) if refused else "exit status 1"
            raise GitError(f"git push to {self.name}: {reason}")

    def delete(self, ref: str) -> None:
        """Delete a ref there; nothing if there is none.

        Raises:
            GitError: the remote cannot be reached, or refuses it.
        """
        if self._listed(ref):
            self._run("push", "--quiet", "--no-verify", "--", self.name, f":{ref}")

    def _listed(self, ref: str) -> str | None:
        """Return what a ref there points to; git lists others too, whose names end like its."""
        lines = self._run("ls-remote", "--", self.name, ref).splitlines()
        named = (line.split(b"\t") for line in lines)
        return next((commit.decode() for commit, name in named if os.fsdecode(name) == ref), None)

    def _run(self, *arguments: str) -> bytes:
        return self.repository.git.run(*arguments, seconds=REMOTE_SECONDS)


def forget_fetched(repository: Repository, *, kept: Collection[str]) -> None:
    """Delete the refs of commits that were fetched by their ids, but for those in ``kept``.

    The commits themselves stay for as long as git lets what nobody refers to. Raises :class:`GitError`.
    """
    listed = repository.git.run("for-each-ref", "--format=%(refname)", _FETCHED).decode("utf-8", "replace")
    for name in listed.split():
        if _COMMIT.fullmatch(name.removeprefix(_FETCHED)) and name.removeprefix(_FETCHED) not in kept:
            repository.delete_ref(name)
