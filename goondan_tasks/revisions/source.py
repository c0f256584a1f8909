"""Where the revisions of one bundle come from: its git repository, else its folder as it stands."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from goondan_tasks.errors import BundleRevisionUnavailableError
from goondan_tasks.revisions.bundle_ref import BundleRef
from goondan_tasks.revisions.content import content_files, content_ref
from goondan_tasks.revisions.folder import Folder
from goondan_tasks.revisions.git import GitError
from goondan_tasks.revisions.remote import Remote
from goondan_tasks.revisions.repository import LINK, PROGRAM, Entry, Repository


class SourceFile(NamedTuple):
    """A file of a revision; of a link, ``data`` is where it leads."""

    path: str
    data: bytes
    is_executable: bool
    is_link: bool


@dataclass(frozen=True, slots=True)
class RevisionSource:
    """The revisions of the bundle at ``bundle``, a directory or a file."""

    bundle: Path
    repository: Repository | None = None
    remote: Remote | None = None

    @classmethod
    def of(cls, bundle: Path, remote: str | None = None) -> "RevisionSource":
        """Look for the repository of a bundle.

        Raises:
            GitError: there is one, and git cannot use it.
        """
        bundle = bundle.resolve()
        repository = Repository.find(_folder(bundle))
        if repository is None:
            return cls(bundle)
        return cls(bundle, repository, Remote(repository, remote) if remote else None)

    @property
    def folder(self) -> Path:
        """The bundle's folder."""
        return _folder(self.bundle)

    @property
    def inside(self) -> str:
        """The bundle from its folder: a file's name, or ``.``."""
        return "." if self.bundle.is_dir() else self.bundle.name

    def current(self) -> BundleRef:
        """Return the ref of the bundle as it stands on disk now.

        With uncommitted changes, or outside of git, that is the digest of its content.

        Raises:
            BundleRevisionUnavailableError: it cannot be read.
            GitError: git cannot tell.
        """
        repository = self.repository
        commit = repository.commit_of("HEAD") if repository else None
        if repository and commit and repository.entries(commit) and not repository.has_changes():
            return BundleRef("git", commit)
        return content_ref(self.folder)

    def files(self, ref: BundleRef) -> Iterator[SourceFile]:
        """Yield the files of a revision, fetched from the remote if they are not here.

        Those of a ``sha256:`` ref are the present ones: whether they still have that digest is to be seen.

        Raises:
            BundleRevisionUnavailableError: it cannot be got.
        """
        return self._committed(ref) if ref.scheme == "git" else self._present()

    def tree_files(self, tree: str) -> Iterator[SourceFile]:
        """Yield the files of a commit or tree that is here, of a bundle that is in git.

        Raises:
            BundleRevisionUnavailableError: the bundle is not in it.
            GitError: it cannot be read.
        """
        repository = self._require_repository()
        entries = [(path, entry) for path, entry in repository.entries(tree).items() if _has_blob(entry)]
        if not entries:
            raise BundleRevisionUnavailableError(f"The bundle is not in {tree}.")
        contents = repository.blobs(entry.blob for _, entry in entries)
        for (path, entry), data in zip(entries, contents, strict=True):
            yield SourceFile(path, data, entry.mode == PROGRAM, entry.mode == LINK)

    def _require_repository(self) -> Repository:
        if self.repository is None:
            raise BundleRevisionUnavailableError(f"The bundle {self.bundle} is in no git repository.")
        return self.repository

    def _committed(self, ref: BundleRef) -> Iterator[SourceFile]:
        repository = self._require_repository()
        try:
            self._fetch_missing(repository, ref)
            yield from self.tree_files(ref.digest)
        except GitError as error:
            raise BundleRevisionUnavailableError(f"The revision {ref} cannot be had: {error}") from error

    def _fetch_missing(self, repository: Repository, ref: BundleRef) -> None:
        if repository.commit_of(ref.digest):
            return
        if self.remote is None:
            raise BundleRevisionUnavailableError(f"The revision {ref} is not on this machine.")
        try:
            self.remote.fetch(ref.digest)
        except GitError:  # not every server gives single commits
            self.remote.fetch_branches()
        if repository.commit_of(ref.digest) is None:
            raise BundleRevisionUnavailableError(f"The remote {self.remote.name} has no revision {ref}.")

    def _present(self) -> Iterator[SourceFile]:
        folder = Folder(self.folder)
        try:
            for found in content_files(self.folder):
                if found.kind == "link":
                    yield SourceFile(found.path, folder.link_target(found.path), False, True)
                    continue
                with folder.reading(found.path) as file:
                    yield SourceFile(found.path, file.read(), found.is_executable, False)
        except OSError as error:
            raise BundleRevisionUnavailableError(f"The bundle cannot be read: {error}") from error


def write_revision(files: Iterable[SourceFile], folder: Folder) -> None:
    """Write the files of a revision into an empty folder; raises :class:`OSError` if they cannot be."""
    for file in files:
        folder.write(file.path, file.data, is_executable=file.is_executable, is_link=file.is_link)


def _has_blob(entry: Entry) -> bool:
    return entry.is_file or entry.mode == LINK


def _folder(bundle: Path) -> Path:
    return bundle if bundle.is_dir() else bundle.parent
