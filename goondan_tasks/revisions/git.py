"""Git: the command, the repository that a bundle is in, its remote, and the branch that is committed to.

Nothing in a repository or in a bundle can run code through git. Hooks, file system monitors and replacements
are off. The repository is always named, never searched for from a directory that an agent can write.
Attributes and their filters apply only to the files that are checked out where the bundle is: everything else
uses :meth:`Repository.neutral`.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import BinaryIO, NamedTuple

from goondan_tasks.contract.errors import GoondanError

#: limits of a command on this machine, and of a fetch or push
LOCAL_SECONDS = 60.0
REMOTE_SECONDS = 120.0
#: how long git may take to remove its lock files when it is ended
END_SECONDS = 2.0

#: the variables that git inherits: the paths of programs, the user's credentials, and network settings
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
#: overrides all attributes of the bundle (gitattributes(5))
_NO_ATTRIBUTES = "* !text !eol !filter !ident !working-tree-encoding !merge !conflict-marker-size\n"
_NEUTRAL_CONFIG = """\
[core]
    repositoryformatversion = 1
    bare = true
    autocrlf = false
[extensions]
    objectformat = {}
"""
#: the ids of a tree without files, in SHA-1 and in SHA-256
_EMPTY_TREES = {
    "4b825dc642cb6eb9a060e54bf8d69288fbee4904",
    "6ef19b41225c5369f1c104d45d8d85efa9b057b53b14b4b9b939dd74decc5321",
}


class GitError(GoondanError):
    """The git command failed."""

    code = "GIT_ERROR"
    suggestion = "Read git's message, fix the repository, and try again."
    documents_every_code = True


class Overtaken(Exception):  # noqa: N818 - says what happened, and is handled by trying again
    """Another commit got there first."""


@dataclass(frozen=True, slots=True)
class Git:
    """The command, run on one repository."""

    #: the repository's own directory; without one, git searches from ``folder`` upwards
    directory: Path | None = None
    #: the working directory of commands
    folder: Path = Path("/")
    work_tree: Path | None = None
    #: additional environment variables, such as a commit's author
    environment: Mapping[str, str] = field(default_factory=dict)

    def run(
        self,
        *arguments: str,
        stdin: bytes | int = b"",
        accepted: Sequence[int] = (0,),
        seconds: float = LOCAL_SECONDS,
    ) -> bytes:
        """Run one command and return its output.

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
        """Run one command and return its exit status and output; raises as :meth:`run` does."""
        name, given = arguments[0], stdin if isinstance(stdin, bytes) else None
        try:
            process = subprocess.Popen(
                self._command(arguments),
                cwd=self.folder,
                env=self._environment(),
                stdin=stdin if isinstance(stdin, int) else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            if not self.folder.is_dir():
                raise GitError(f"The folder {self.folder} does not exist.") from error
            message = "There is no git command on this machine."
            raise GitError(message, suggestion="Install git, or put it on PATH.") from error
        except OSError as error:
            raise GitError(f"git cannot be started: {error}") from error
        with process:
            try:
                printed, complaint = process.communicate(given, timeout=seconds)
            except subprocess.TimeoutExpired as error:
                raise GitError(f"git {name} did not end within {seconds:g} s.") from error
            finally:
                if process.poll() is None:
                    _end(process)
        if process.returncode not in accepted:
            raise GitError(f"git {name}: {_reason(complaint, process.returncode)}")
        return process.returncode, printed

    def _command(self, arguments: Sequence[str]) -> list[str]:
        places = {"--git-dir": self.directory, "--work-tree": self.work_tree}
        named = [f"{option}={place}" for option, place in places.items() if place is not None]
        settings = [part for setting in _SETTINGS for part in ("-c", setting)]
        return ["git", *named, *_OPTIONS, *settings, *arguments]

    def _environment(self) -> dict[str, str]:
        ours = os.environ  # noqa: TID251 - a fetch or push needs its user's keys and proxies
        passed_on = {name: ours[name] for name in _PASSED_ON if name in ours}
        fixed = {"LC_ALL": "C.UTF-8", "GIT_TERMINAL_PROMPT": "0", "GIT_ATTR_NOSYSTEM": "1"}
        return {**passed_on, **fixed, **self.environment}


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End git and its child processes; at SIGTERM it removes its lock files."""
    os.killpg(process.pid, signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(END_SECONDS)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


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


Entries = Mapping[str, Entry]
#: new entries by path; ``None`` removes one
Changes = Mapping[str, Entry | None]


def changes_between(before: Entries, after: Entries) -> dict[str, Entry | None]:
    """Return the changes from one set of entries to another."""
    return {path: after.get(path) for path in before.keys() | after if before.get(path) != after.get(path)}


def parents(path: str) -> Iterator[str]:
    """Yield the directories that a path is in, the innermost first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


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

    def bundle_tree(self, commit: str) -> str | None:
        """Return the tree of the bundle in a commit; ``None`` if its folder is not in it, or empty."""
        tree = self._object_of(f"{commit}:{self.prefix.rstrip('/')}")
        return None if tree in _EMPTY_TREES else tree

    def entries(self, tree: str | None) -> dict[str, Entry]:
        """Return the files of a tree; none without one."""
        listed = self.git.run("ls-tree", "-r", "-z", "--full-tree", tree) if tree else b""
        return {
            os.fsdecode(path): Entry(*about.decode().split()[::2])
            for about, _, path in (line.partition(b"\t") for line in listed.split(b"\0") if line)
        }

    def has_changes(self) -> bool:
        """Return whether files of the bundle, ignored ones aside, differ from the commit checked out."""
        options = ("--porcelain", "-z", "--untracked-files=all", "--ignore-submodules=all")
        return bool(self.git.run("status", *options, *self.inside))

    def write_blob(self, content: bytes | BinaryIO) -> str:
        """Store a blob exactly as it is, and return its id."""
        stdin = content if isinstance(content, bytes) else content.fileno()
        return self.git.run("hash-object", "-w", "--no-filters", "--stdin", stdin=stdin).decode().strip()

    @contextlib.contextmanager
    def neutral(self, work_tree: Path | None = None, *, place: Path | None = None) -> Iterator[Git]:
        """Yield git on the objects of this repository, with separate refs, index and settings.

        Attributes do not apply: files of ``work_tree`` are read and written unchanged. The separate files are
        in ``place``, which no agent may write, or else in the temporary directory.
        """
        with tempfile.TemporaryDirectory(prefix="goondan-git-", dir=place) as name:
            own = Path(name)
            # everything that makes a folder a repository, without a process for `git init`
            for folder in ("refs", "info"):
                (own / folder).mkdir()
            for file, text in (
                ("HEAD", "ref: refs/heads/main\n"),
                ("config", _NEUTRAL_CONFIG.format(self.algorithm)),
                ("info/attributes", _NO_ATTRIBUTES),
            ):
                (own / file).write_text(text, encoding="ascii")
            objects = {"GIT_OBJECT_DIRECTORY": str(self.common_directory / "objects")}
            yield Git(own, work_tree or own, work_tree or own, objects)

    def tree_with(self, tree: str | None, changes: Changes) -> str:
        """Store a tree, or an empty one, with changes of its files; return its id."""
        gone = Entry("0", "0" * (64 if self.algorithm == "sha256" else 40))
        # removals first: a directory may replace a file
        ordered = sorted(changes.items(), key=lambda change: change[1] is not None)
        lines = (
            f"{(entry or gone).mode} {(entry or gone).blob}\t".encode() + os.fsencode(path) + b"\0"
            for path, entry in ordered
        )
        with self.neutral() as git:
            git.run("read-tree", tree or "--empty")
            git.run("update-index", "--replace", "-z", "--index-info", stdin=b"".join(lines))
            return git.run("write-tree").decode().strip()

    def with_bundle(self, commit: str, tree: str) -> str:
        """Store the tree of a commit with its bundle replaced by another tree; return its id."""
        if not self.prefix:
            return tree
        with self.neutral() as git:
            git.run("read-tree", commit)
            git.run("rm", "-r", "-f", "--cached", "--quiet", "--ignore-unmatch", *self.inside)
            git.run("read-tree", f"--prefix={self.prefix}", tree)
            return git.run("write-tree").decode().strip()

    def write_files(self, tree: str, folder: Path) -> None:
        """Write the files of a tree into an empty folder."""
        with self.neutral(folder, place=folder.parent) as git:
            git.run("read-tree", "--reset", "-u", tree)

    def containing(self, tree: str, text: str) -> list[str]:
        """Return the files of a tree that contain a text of one line."""
        with self.neutral() as git:
            wanted = ("grep", "-z", "-l", "-a", "-F", "-e", text, tree)
            found = git.status(*wanted, accepted=(0, 1))[1]
        return [name.partition(":")[2] for name in os.fsdecode(found).split("\0") if name]

    def merge(self, base: str, ours: str, theirs: str, *, label: str) -> tuple[str, set[str]]:
        """Merge two trees, line by line; return the merged tree, and the paths of conflicts.

        ``label`` names our side in the conflict markers, ``branch`` the other. If a file conflicts with a
        directory or a link, the merged tree has one side as ``<path>~<label>`` or ``<path>~branch``. Git
        sees only the paths that we change, and those in their way. So no other path changes, even where git
        would take a removal and an addition for a rename.
        """
        if theirs == base:  # the usual case: nothing else was committed meanwhile
            return ours, set()
        sides = [self.entries(tree) for tree in (base, ours, theirs)]
        changed = changes_between(sides[0], sides[1]).keys()
        inside = {parent for path in changed for parent in parents(path)}
        seen = {*changed, *(path for path in sides[2] if path in inside or changed & set(parents(path)))}
        small = [self.tree_with(None, {path: side.get(path) for path in seen}) for side in sides]
        root = self.commit(small[0], None, "merge")
        with self.neutral() as git:
            for name, tree in ((label, small[1]), ("branch", small[2])):
                git.run("update-ref", f"refs/heads/{name}", self.commit(tree, root, "merge"))
            wanted = ("merge-tree", "--write-tree", "-z", "--name-only", "--no-messages", label, "branch")
            tree, *paths = os.fsdecode(git.status(*wanted, accepted=(0, 1))[1]).split("\0")
        merged = self.entries(tree)
        conflicts = {path for path in paths if path}
        return self.tree_with(theirs, {path: merged.get(path) for path in seen | merged.keys()}), conflicts

    def commit(self, tree: str, parent: str | None, message: str, agent: str | None = None) -> str:
        """Store a commit of an agent, or of this program, and return its id; no branch moves.

        The author is not taken from git's configuration, which a worker's user often lacks. The address
        cannot exist (RFC 6761 §6.4).
        """
        name = agent or "goondan"
        who = (("NAME", name), ("EMAIL", f"{name}@goondan.invalid"))
        roles = {f"GIT_{role}_{field}": value for role in ("AUTHOR", "COMMITTER") for field, value in who}
        parents = ("-p", parent) if parent else ()
        text = message.encode("utf-8", "backslashreplace")
        git = replace(self.git, environment=roles)
        return git.run("commit-tree", tree, *parents, stdin=text).decode().strip()

    def set_ref(self, name: str, commit: str, *, expected: str) -> None:
        """Set a ref to a commit, provided that it points to ``expected`` (empty: that it does not exist)."""
        self.git.run("update-ref", "-m", "goondan", name, commit, expected or "0" * len(commit))

    def check_out(self, old: str, new: str, *, dry_run: bool = False) -> None:
        """Bring the files of the worktree from one commit to another, as a fast-forward does.

        Uncommitted changes are kept in files that are the same in both commits.

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


@dataclass(frozen=True, slots=True)
class Remote:
    """The git remote by which machines share revisions (``GOONDAN_BUNDLE_REMOTE``): its name or URL.

    All methods raise GitError if the remote cannot be reached, or refuses.
    """

    repository: Repository
    name: str

    def commit_of(self, ref: str) -> str | None:
        """Fetch and return the commit of a ref (its full name) in the remote; ``None`` if there is none."""
        commit = self._listed(ref)
        if commit is not None and self.repository.commit_of(commit) is None:
            self.fetch(ref)
        return commit

    def fetch(self, *wanted: str) -> None:
        """Fetch refs, or commits by their ids, without creating local refs."""
        options = ("--quiet", "--no-tags", "--no-write-fetch-head", "--refmap=")
        self._run("fetch", *options, "--", self.name, *wanted)

    def fetch_branches(self) -> None:
        """Fetch all branches, without creating local refs."""
        # git refuses a pattern without a place for the refs
        branches = [ref for ref in self._refs("refs/heads/*") if ref.startswith("refs/heads/")]
        if branches:
            self.fetch(*branches)

    def mirror(self, refs: str) -> None:
        """Make the local refs that begin with ``refs`` equal to the remote's."""
        self._run("fetch", "--quiet", "--no-tags", "--prune", "--", self.name, f"+{refs}*:{refs}*")

    def push(self, commit: str, ref: str, *, force: bool = False) -> None:
        """Set a ref of the remote to a commit: a descendant of its present one, unless ``force``.

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
        return self._refs(ref).get(ref)

    def _refs(self, pattern: str) -> dict[str, str]:
        """Return the commits of the remote's refs, by name, whose names end like ``pattern``."""
        lines = self._run("ls-remote", "--", self.name, pattern).splitlines()
        named = (line.split(b"\t") for line in lines)
        return {os.fsdecode(name): commit.decode() for commit, name in named}

    def _run(self, *arguments: str) -> bytes:
        return self.repository.git.run(*arguments, seconds=REMOTE_SECONDS)


@dataclass(frozen=True, slots=True)
class Branch:
    """The branch that is checked out, and the branch of the same name in the remote, if there is a remote."""

    repository: Repository
    remote: Remote | None = None

    def tip(self) -> str:
        """Return its last commit, after a fast-forward to the commits that others have pushed.

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
