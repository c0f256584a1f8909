"""Git: the command, the repository that a bundle is in, its remote, and the branch that is committed to.

Nothing in a repository or in a bundle runs code by way of git. Hooks, file system monitors and replacements
are off. The repository is always named, never looked for in a directory that an agent can write. Attributes
and their filters play no part: files go in and out as blobs (``hash-object``, ``cat-file``), never through
``git add`` or ``git checkout``.
"""

import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from goondan_tasks.errors import GoondanError

#: limits of a command on this machine, and of a fetch or push
LOCAL_SECONDS = 60.0
REMOTE_SECONDS = 120.0

#: what git inherits: where its programs are, its user's credentials, and the way to the network
_PASSED_ON = (
    "PATH",
    "HOME",
    "XDG_CONFIG_HOME",
    "SSH_AUTH_SOCK",
    "GIT_SSH_COMMAND",
    "GIT_SSL_CAINFO",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    *(name for proxy in ("http_proxy", "https_proxy", "no_proxy") for name in (proxy, proxy.upper())),
)
_SETTINGS = (
    "core.hooksPath=/dev/null",
    "core.fsmonitor=false",
    "core.protectHFS=true",
    "core.protectNTFS=true",
    "core.quotePath=false",
    "diff.external=",
    "gc.auto=0",
    "maintenance.auto=false",
    "merge.conflictStyle=merge",
    "merge.directoryRenames=false",
    "protocol.ext.allow=never",
    "submodule.recurse=false",
)
#: the first version with ``git merge-tree --write-tree``
_MERGE_TREE_SINCE = (2, 38)
_OPTIONS = ("--no-pager", "--no-optional-locks", "--no-replace-objects")

FILE, PROGRAM, LINK, SUBMODULE = "100644", "100755", "120000", "160000"
#: refs that keep fetched commits from being collected as garbage
_FETCHED = "refs/goondan/fetched/"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class GitError(GoondanError):
    """The git command failed."""

    code = "GIT_ERROR"
    suggestion = "Read git's message; put the repository in order, and try again."
    documents_every_code = True


class Overtaken(Exception):  # noqa: N818 - says what happened, and is handled by trying again
    """Another commit got there first."""


@dataclass(frozen=True, slots=True)
class Git:
    """The command, run on one repository."""

    #: the repository's own directory; without one, git looks for it from ``folder`` upwards
    directory: Path | None = None
    #: where commands are run
    folder: Path = Path("/")
    work_tree: Path | None = None
    index: Path | None = None
    #: additional environment variables, such as a commit's author
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *arguments: str,
        stdin: bytes | int = b"",
        accepted: Sequence[int] = (0,),
        seconds: float = LOCAL_SECONDS,
    ) -> bytes:
        """Run one command and return what it printed.

        Raises:
            GitError: its exit status is not ``accepted``, it took too long, or git is not installed.
        """
        return self.status(*arguments, stdin=stdin, accepted=accepted, seconds=seconds)[1]

    def status(
        self,
        *arguments: str,
        stdin: bytes | int = b"",
        accepted: Sequence[int] = (0,),
        seconds: float = LOCAL_SECONDS,
    ) -> tuple[int, bytes]:
        """Run one command and return its exit status and what it printed; raises as :meth:`run` does."""
        name = arguments[0]
        with self.start(*arguments, stdin=subprocess.PIPE if isinstance(stdin, bytes) else stdin) as process:
            try:
                given = stdin if isinstance(stdin, bytes) else None
                printed, complaint = process.communicate(given, timeout=seconds)
            except subprocess.TimeoutExpired as error:
                raise GitError(f"git {name} did not end within {seconds:g} s.") from error
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)  # with what it started
        if process.returncode not in accepted:
            raise GitError(f"git {name}: {_reason(complaint, process.returncode)}")
        return process.returncode, printed

    def start(self, *arguments: str, stdin: int) -> "subprocess.Popen[bytes]":
        """Start one command in a session of its own.

        Raises:
            GitError: git is not installed, or the folder does not exist.
        """
        try:
            return subprocess.Popen(
                self._command(arguments),
                cwd=self.folder,
                env=self._environment(),
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            if not self.folder.is_dir():
                raise GitError(f"The folder {self.folder} is not there.") from error
            message = "There is no git command on this machine."
            raise GitError(message, suggestion="Install git, or put it on PATH.") from error
        except OSError as error:
            raise GitError(f"git cannot be started: {error}") from error

    def _command(self, arguments: Sequence[str]) -> list[str]:
        places = {"--git-dir": self.directory, "--work-tree": self.work_tree}
        named = [f"{option}={place}" for option, place in places.items() if place is not None]
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        return ["git", *named, *_OPTIONS, *settings, *arguments]

    def _environment(self) -> dict[str, str]:
        ours = os.environ  # noqa: TID251 - a fetch or push needs its user's keys and proxies
        passed_on = {name: ours[name] for name in _PASSED_ON if name in ours}
        index = {"GIT_INDEX_FILE": str(self.index)} if self.index else {}
        fixed = {"LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0", "GIT_ATTR_NOSYSTEM": "1"}
        return {**passed_on, **fixed, **index, **self.environment}


def require_merge_tree(git: Git) -> None:
    """Raise GitError if git is too old for ``git merge-tree --write-tree``."""
    printed = git.run("version").decode().strip()
    found = re.search(r"(\d+)\.(\d+)", printed)
    if found is None or tuple(map(int, found.groups())) < _MERGE_TREE_SINCE:
        since = ".".join(map(str, _MERGE_TREE_SINCE))
        raise GitError(f"Changesets need git {since} or newer; this is {printed}.", suggestion="Upgrade git.")


def _reason(complaint: bytes, status: int) -> str:
    lines = [line for line in complaint.decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "!", "remote:"))] or lines
    return " ".join(told)[:1000] or f"exit status {status}"


class Entry(NamedTuple):
    """One path of a tree: its mode, and the id of its blob."""

    mode: str
    blob: str

    @property
    def is_file(self) -> bool:
        """Whether it is an ordinary file, executable or not."""
        return self.mode in {FILE, PROGRAM}


Entries = Mapping[str, Entry]
#: new entries by path; ``None`` removes one
Changes = Mapping[str, Entry | None]


def changes_between(before: Entries, after: Entries) -> dict[str, Entry | None]:
    """Return the changes that lead from one set of entries to another."""
    return {path: after.get(path) for path in before.keys() | after if before.get(path) != after.get(path)}


class Author(NamedTuple):
    """The author of a commit. Git's own configuration is not used: a worker's user often has none."""

    name: str
    email: str

    @classmethod
    def of(cls, agent: str | None) -> "Author":
        """Return an agent's name, or this program's, with an address that cannot exist (RFC 6761 §6.4)."""
        name = agent or "goondan"
        return cls(name, f"{name}@goondan.invalid")


@dataclass(frozen=True, slots=True)
class Repository:
    """A repository and the bundle's folder in it, from which paths start. All methods raise GitError."""

    git: Git
    #: shared by all worktrees of the repository
    common_directory: Path
    work_tree: Path
    #: the bundle's folder from the root of the repository: empty, or ending in ``/``
    prefix: str
    #: ``sha1`` or ``sha256``
    algorithm: str

    @classmethod
    def find(cls, folder: Path) -> "Repository | None":
        """Return the repository that ``folder`` is in, if there is one.

        Raises:
            GitError: git is not installed, or does not trust the repository's owner.
        """
        folder = folder.resolve()
        if not any((parent / ".git").exists() for parent in (folder, *folder.parents)):
            return None
        wanted = ("--absolute-git-dir", "--git-common-dir", "--show-toplevel", "--show-prefix")
        printed = Git(folder=folder).run("rev-parse", *wanted, "--show-object-format")
        directory, common, top, prefix, algorithm = os.fsdecode(printed).split("\n")[:5]
        git = Git(directory=Path(directory), folder=Path(top))
        return cls(git, (folder / common).resolve(), Path(top), prefix, algorithm)

    @property
    def inside(self) -> tuple[str, ...]:
        """The arguments that limit a command to the bundle's folder."""
        return ("--", f":(top,literal){self.prefix}") if self.prefix else ()

    def branch(self) -> str:
        """Return the full name of the branch that is checked out."""
        status, name = self.git.status("symbolic-ref", "--quiet", "HEAD", accepted=(0, 1))
        if status:
            raise GitError(
                f"No branch is checked out in {self.work_tree} (its HEAD is detached).",
                suggestion="Check out the branch that the changes are to go to.",
            )
        return name.decode().strip()

    def tip(self) -> str:
        """Return the last commit of that branch."""
        branch = self.branch()
        commit = self.commit_of(branch)
        if commit is None:
            message = f"The branch {branch.removeprefix('refs/heads/')} has no commit."
            raise GitError(message, suggestion="Commit the bundle first.")
        return commit

    def commit_of(self, name: str) -> str | None:
        """Return the id of the commit that ``name`` (an id, a ref, ``HEAD~1``) means, if there is one."""
        return self._object_of(f"{name}^{{commit}}")

    def is_ancestor(self, older: str, newer: str) -> bool:
        """Return whether ``older`` is in the history of ``newer``."""
        status, _ = self.git.status("merge-base", "--is-ancestor", older, newer, accepted=(0, 1))
        return status == 0

    def entries(self, commit: str) -> dict[str, Entry]:
        """Return the files of the bundle in a commit or tree; none if the folder is not in it."""
        tree = self._object_of(f"{commit}:{self.prefix.rstrip('/')}")
        if tree is None:
            return {}
        listed = self.git.run("ls-tree", "-r", "-z", "--full-tree", tree)
        return {
            os.fsdecode(path): Entry(*about.decode().split()[::2])
            for about, _, path in (line.partition(b"\t") for line in listed.split(b"\0") if line)
        }

    def has_changes(self) -> bool:
        """Return whether files of the bundle, ignored ones aside, differ from the commit checked out."""
        options = ("--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=all")
        return bool(self.git.run("status", *options, *self.inside))

    def blob(self, blob: str) -> bytes:
        """Return the content of a blob."""
        return self.git.run("cat-file", "blob", blob)

    def size(self, blob: str) -> int:
        """Return the size of a blob in bytes."""
        return int(self.git.run("cat-file", "-s", blob))

    def blobs(self, blobs: Iterable[str]) -> Iterator[bytes]:
        """Yield the contents of many blobs in order, one at a time."""
        with self.git.start("cat-file", "--batch", stdin=subprocess.PIPE) as process:
            if process.stdin is None or process.stdout is None:
                raise GitError("git cat-file has no pipes.")
            try:
                for blob in blobs:
                    process.stdin.write(f"{blob}\n".encode())
                    process.stdin.flush()
                    about = process.stdout.readline().split()
                    if len(about) != 3:
                        raise GitError(f"The repository lacks the blob {blob}.")
                    data = process.stdout.read(int(about[2]) + 1)
                    yield data[:-1]
            finally:
                process.kill()

    def write_blob(self, content: bytes | BinaryIO) -> str:
        """Store a blob exactly as it is, and return its id."""
        stdin = content if isinstance(content, bytes) else content.fileno()
        return self.git.run("hash-object", "-w", "--no-filters", "--stdin", stdin=stdin).decode().strip()

    def tree_with(self, commit: str | None, changes: Changes) -> str:
        """Store the tree of a commit, or an empty one, with changes of the bundle's files; return its id."""
        gone = Entry("0", "0" * (64 if self.algorithm == "sha256" else 40))
        # removals first: a directory may take the place of a file
        ordered = sorted(changes.items(), key=lambda change: change[1] is not None)
        lines = [_index_line(self.prefix + path, entry or gone) for path, entry in ordered]
        with tempfile.TemporaryDirectory(prefix="goondan-index-") as folder:
            git = replace(self.git, index=Path(folder, "index"))
            git.run("read-tree", commit or "--empty")
            git.run("update-index", "-z", "--index-info", stdin=b"".join(lines))
            return git.run("write-tree").decode().strip()

    def commit(self, tree: str, parent: str | None, message: str, author: Author) -> str:
        """Store a commit and return its id; no branch moves."""
        roles = {
            f"GIT_{role}_{field.upper()}": value
            for role in ("AUTHOR", "COMMITTER")
            for field, value in author._asdict().items()
        }
        parents = ("-p", parent) if parent else ()
        text = message.encode("utf-8", "backslashreplace")
        git = replace(self.git, environment=roles)
        return git.run("commit-tree", tree, *parents, stdin=text).decode().strip()

    def set_ref(self, name: str, commit: str, *, expected: str) -> None:
        """Let a ref point to a commit, provided that it points to ``expected`` (empty: that it is new)."""
        self.git.run("update-ref", "-m", "goondan", name, commit, expected or "0" * len(commit))

    def delete_ref(self, name: str) -> None:
        """Delete a ref, if it exists."""
        self.git.run("update-ref", "-d", name)

    def check_out(self, old: str, new: str, *, dry_run: bool = False) -> None:
        """Bring the files of the worktree from one commit to another, as a fast-forward does.

        Uncommitted changes in files that both commits share are kept.

        Raises:
            GitError: uncommitted changes are in the way; nothing has been changed.
        """
        git = replace(self.git, work_tree=self.work_tree)
        git.run("update-index", "-q", "--refresh", accepted=(0, 1, 128))
        try:
            git.run("read-tree", "-m", "-u", *(["-n"] if dry_run else []), old, new)
        except GitError as error:
            raise GitError(
                f"The files in {self.work_tree} cannot follow: {error}",
                suggestion="Commit, stash or discard the changes there, and commit the changeset again.",
            ) from error

    def _object_of(self, name: str) -> str | None:
        wanted = ("rev-parse", "--verify", "--quiet", "--end-of-options", name)
        status, printed = self.git.status(*wanted, accepted=(0, 1, 128))
        # git before 2.30 repeats --end-of-options
        return None if status else printed.decode().split()[-1]


def _index_line(path: str, entry: Entry) -> bytes:
    return f"{entry.mode} {entry.blob}\t".encode() + os.fsencode(path) + b"\0"


@dataclass(frozen=True, slots=True)
class Remote:
    """The git remote by which machines share revisions (``GOONDAN_BUNDLE_REMOTE``): its name or URL.

    All methods raise GitError if the remote cannot be reached, or refuses.
    """

    repository: Repository
    name: str

    def commit_of(self, ref: str) -> str | None:
        """Return the commit of a ref (its full name) in the remote, fetched; ``None`` if there is none."""
        commit = self._listed(ref)
        if commit is not None and self.repository.commit_of(commit) is None:
            self.fetch(ref)
        return commit

    def fetch(self, wanted: str) -> None:
        """Fetch a ref, or a commit by its id."""
        self._fetch(f"+{wanted}:{_FETCHED}{wanted.removeprefix('refs/')}")

    def fetch_branches(self) -> None:
        """Fetch all branches."""
        self._fetch(f"+refs/heads/*:{_FETCHED}heads/*")

    def mirror(self, refs: str) -> None:
        """Make the local refs that begin with ``refs`` equal to the remote's."""
        self._fetch("--prune", f"+{refs}*:{refs}*")

    def push(self, commit: str, ref: str, *, force: bool = False) -> None:
        """Let a ref of the remote point to a commit: a descendant of its present one, unless ``force``.

        Raises:
            Overtaken: it is not a descendant.
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
        """Delete a ref of the remote, if it exists."""
        if self._listed(ref):
            self._run("push", "--quiet", "--no-verify", "--", self.name, f":{ref}")

    def _listed(self, ref: str) -> str | None:
        # git lists every ref whose name ends like this one
        lines = self._run("ls-remote", "--", self.name, ref).splitlines()
        named = (line.split(b"\t") for line in lines)
        return next((commit.decode() for commit, name in named if os.fsdecode(name) == ref), None)

    def _fetch(self, *refspec: str) -> None:
        *options, refs = refspec
        self._run("fetch", "--quiet", "--no-tags", *options, "--", self.name, refs)

    def _run(self, *arguments: str) -> bytes:
        return self.repository.git.run(*arguments, seconds=REMOTE_SECONDS)


def forget_fetched(repository: Repository, *, kept: Collection[str]) -> None:
    """Delete the refs of commits that were fetched by their ids, except for those in ``kept``.

    Git collects the commits later, as it does any unreferenced object. Raises :class:`GitError`.
    """
    listed = repository.git.run("for-each-ref", "--format=%(refname)", _FETCHED).decode("utf-8", "replace")
    for name in listed.split():
        commit = name.removeprefix(_FETCHED)
        if _COMMIT.fullmatch(commit) and commit not in kept:
            repository.delete_ref(name)


@dataclass(frozen=True, slots=True)
class Branch:
    """The branch that is checked out, and the branch of the same name in the remote, if there is a remote."""

    repository: Repository
    remote: Remote | None = None

    def tip(self) -> str:
        """Return its last commit, after a fast-forward to what others have pushed.

        Raises:
            GitError: the branch has no commit, the remote cannot be reached, or the two have diverged.
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
        """Move from ``old`` to ``new``: in the remote, in the files of the checkout, then the branch here.

        After a crash in between, the next call completes the move.

        Raises:
            Overtaken: the branch is no longer at ``old``.
            GitError: the remote refuses, or uncommitted changes are in the way.
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
