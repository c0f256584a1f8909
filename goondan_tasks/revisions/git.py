"""The ``git`` command, run so that nothing in a repository or in a bundle runs code by it.

Hooks, file system monitors and replacements are off; the repository is always named, never looked for in
a directory that an agent can write; attributes and their filters play no part, because files go in and out
as blobs (``hash-object``, ``cat-file``) and never through ``git add`` or ``git checkout``.
"""

import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from goondan_tasks.errors import GoondanError

#: what a command on this machine may take
LOCAL_SECONDS = 60.0
#: what a fetch or a push may take
REMOTE_SECONDS = 120.0

#: where git finds its programs, its user's credentials and the way to the network; and nothing else
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
    "protocol.ext.allow=never",
    "submodule.recurse=false",
)
_OPTIONS = ("--no-pager", "--no-optional-locks", "--no-replace-objects")


class GitError(GoondanError):
    """The git command failed."""

    code = "GIT_ERROR"
    suggestion = "Read git's message; put the repository in order, and try again."


@dataclass(frozen=True, slots=True)
class Git:
    """The command, run on one repository."""

    #: the repository's own directory; without one it is looked for from ``folder`` on
    directory: Path | None = None
    #: where commands are run
    folder: Path = Path("/")
    work_tree: Path | None = None
    index: Path | None = None
    #: more of its environment, such as whose commits these are
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
            GitError: it ended with a status that is not ``accepted``, took too long, or there is no git.
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
                _kill(process)
        if process.returncode not in accepted:
            raise GitError(f"git {name}: {_reason(complaint, process.returncode)}")
        return process.returncode, printed

    def start(self, *arguments: str, stdin: int) -> "subprocess.Popen[bytes]":
        """Start one command, in a session of its own.

        Raises:
            GitError: there is no git, or the folder is gone.
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


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a command that still runs, with what it started."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)


def _reason(complaint: bytes, status: int) -> str:
    lines = [line for line in complaint.decode("utf-8", "replace").splitlines() if line.strip()]
    told = [line for line in lines if line.startswith(("fatal:", "error:", "!", "remote:"))] or lines
    return " ".join(told)[:1000] or f"exit status {status}"
