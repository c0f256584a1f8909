"""Sandboxes by bubblewrap: what programs in them see of the machine, and whether they work here.

A program in a sandbox sees the system's directories, Python and the bundle, all read-only; a writable
workdir; an empty home and ``/tmp``; and only its own processes. A strict sandbox has no network.
"""

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.contract.errors import ConfigError

#: the limit of the trial run
TRIAL_SECONDS = 10.0

_INSTALL = "Install it: apt-get install bubblewrap, dnf install bubblewrap, or apk add bubblewrap."
_ALLOW = (
    "Allow user namespaces: sysctl kernel.unprivileged_userns_clone=1 or user.max_user_namespaces; on Ubuntu "
    "an AppArmor profile for bwrap; in a container a seccomp profile that allows them, and an unmasked /proc."
)
_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/nix/store")
#: the parts of /etc for libraries, names, time and certificates; others may contain secrets
_ETC = (
    *("alternatives", "ca-certificates", "group", "host.conf", "hosts", "ld.so.cache", "ld.so.conf"),
    *("ld.so.conf.d", "localtime", "mime.types", "nsswitch.conf", "passwd", "pki/ca-trust", "pki/tls/certs"),
    *("protocols", "resolv.conf", "services", "ssl/cert.pem", "ssl/certs", "ssl/openssl.cnf", "terminfo"),
)
#: The first program in a sandbox. It sets the call's own variables: those that the dynamic linker or a shell
#: reads must reach neither bubblewrap nor this check.
_ENTER = """\
import os, signal, sys
place, expected, variables, *argv = sys.argv[1:]
found = os.stat(place)
if expected and expected != f"{found.st_dev}:{found.st_ino}":
    print("another directory has taken the place of", place, file=sys.stderr)
    sys.exit(126)
environment = dict(os.environb)
if variables:
    with open(int(variables), "rb") as file:
        environment.update(pair.split(b"=", 1) for pair in file.read().split(b"\\0")[:-1])
for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
    signal.signal(ignored_by_python, signal.SIG_DFL)
try:
    os.execvpe(argv[0], argv, environment)
except OSError as error:
    print(f"{argv[0]}: {error.strerror}", file=sys.stderr)
    sys.exit(127)
"""
_ALONE = (
    *("--die-with-parent", "--unshare-user", "--unshare-pid", "--unshare-ipc", "--unshare-uts"),
    *("--unshare-cgroup-try", "--cap-drop", "ALL"),
)


@functools.cache
def fault() -> tuple[str, str] | None:
    """Return why sandboxes do not work here and what to do; ``None`` if they work. The result is cached."""
    program = shutil.which("bwrap")
    if program is None:
        return "bubblewrap (bwrap) is not installed", _INSTALL
    trial = [program, *_ALONE, "--unshare-net", *_system(), "--", "true"]
    try:
        done = subprocess.run(trial, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{program} does not work: {error}", _ALLOW
    if done.returncode:
        return f"{program} does not work: {done.stderr.strip()[:300]}", _ALLOW
    return None


def require() -> None:
    """Raise a ConfigError if sandboxes do not work here."""
    found = fault()
    if found is not None:
        raise ConfigError(f"There is no sandbox on this machine: {found[0]}.", suggestion=found[1])


@dataclass(frozen=True, slots=True)
class Sandbox:
    """A sandbox for the programs of one bundle and one instance."""

    workdir: Path
    bundle: Path | None = None
    #: hidden, except for the workdir in it
    state_root: Path | None = None
    is_strict: bool = False
    #: the device and inode of the workdir; nothing is run if another directory has taken its place
    identity: tuple[int, int] | None = None

    def command(
        self,
        argv: Sequence[str],
        cwd: Path,
        home: str | None,
        *,
        programs: Sequence[Path] = (),
        variables: int | None = None,
    ) -> list[str]:
        """Return the command that runs ``argv`` in the sandbox; the directory ``home`` is empty there.

        ``programs`` are files that are visible, wherever they are. ``variables`` is an inherited descriptor
        with variables for ``argv`` alone, as :func:`encoded_variables` returns them.

        Raises:
            ConfigError: sandboxes do not work here.
        """
        require()
        network = ["--unshare-net"] if self.is_strict else []
        mounts = [word for *_, words in sorted(self._mounts(home, programs)) for word in words]
        program = shutil.which("bwrap") or "bwrap"
        entered = ["--unsetenv", "TMPDIR", "--chdir", str(cwd), "--", *self._entered(argv, variables)]
        return [program, *_ALONE, *network, *_system(), *mounts, *entered]

    def _entered(self, argv: Sequence[str], variables: int | None) -> Sequence[str]:
        """Return a command that runs ``argv`` if the workdir in the sandbox is the right one.

        bubblewrap mounts it by its path, in which another instance's programs may change links meanwhile.
        """
        if self.identity is None and variables is None:
            return argv
        expected = "" if self.identity is None else ":".join(map(str, self.identity))
        given = "" if variables is None else str(variables)
        return [sys.executable, "-I", "-S", "-c", _ENTER, str(self.workdir), expected, given, *argv]

    def _mounts(self, home: str | None, programs: Sequence[Path]) -> Iterator[tuple[int, bool, list[str]]]:
        # sorted by depth, since a later mount hides earlier ones below it; the bundle may be the home
        readable = [*_python(), *programs, *([self.bundle.resolve()] if self.bundle else [])]
        for path in self._hidden(Path(home or "/"), readable):
            yield len(path.parts), False, ["--tmpfs", str(path)]
        for path in readable:
            yield len(path.parts), True, ["--ro-bind", str(path), str(path)]
        yield len(self.workdir.parts), True, ["--bind", str(self.workdir), str(self.workdir)]

    def _hidden(self, home: Path, readable: Sequence[Path]) -> set[Path]:
        """Return the directories that are empty: the home, and what else a readable one would show."""
        places = {place for path in (home, self.state_root) if path for place in (path, path.resolve())}
        shown = {place for place in places if any(place.is_relative_to(one) for one in readable)}
        return {path for path in (home, *shown) if path.is_absolute() and path.parent != path}


def encoded_variables(variables: Mapping[str, str]) -> bytes:
    """Return variables as :meth:`Sandbox.command` expects them.

    Raises:
        ValueError: a name has ``=``, or a NUL or a lone surrogate is in a name or a value.
    """
    pairs = [(os.fsencode(name), os.fsencode(value)) for name, value in variables.items()]
    if any(b"=" in name or b"\0" in name + value for name, value in pairs):
        raise ValueError("illegal environment variable")
    return b"".join(name + b"=" + value + b"\0" for name, value in pairs)


def _system() -> Iterator[str]:
    yield from ("--tmpfs", str(Path("/", "tmp")), "--proc", "/proc", "--dev", "/dev")
    for path in map(Path, _SYSTEM):
        if path.is_symlink():
            yield from ("--symlink", str(path.readlink()), str(path))
        elif path.is_dir():
            yield from ("--ro-bind", str(path), str(path))
    for name in _ETC:
        yield from ("--ro-bind-try", f"/etc/{name}", f"/etc/{name}")


def _python() -> set[Path]:
    """Return the paths of this Python, its libraries and this project outside the system's directories."""
    libraries = [path for path in sys.path if Path(path).name in {"site-packages", "dist-packages"}]
    project = Path(__file__).resolve().parents[2]
    parts = [project / name for name in ("broker_config", "goondan_start.py", "goondan_tasks", "workers")]
    places = {*map(Path, (sys.prefix, sys.base_prefix, *libraries)), *parts}
    link = Path(sys.executable)
    while link.is_symlink():  # a virtual environment's Python may be a link to another one
        link = Path(os.path.normpath(link.parent / link.readlink()))
        if not any(link.is_relative_to(place) for place in places):
            places.add(link)
    return {
        path
        for path in places
        if path.exists() and path.parent != path and not any(path.is_relative_to(one) for one in _SYSTEM)
    }
