"""Where the files that resources name must stand: inside the bundle (003 §13; DESIGN §6)."""

import contextlib
import math
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath

from pydantic import ValidationError

from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.bundle.inventory import Declaration, Inventory, read_text
from goondan_tasks.entry import IMPORT_HINT
from goondan_tasks.entry_probe import EntryKind, ProbeRecord
from goondan_tasks.json_values import FieldPath
from goondan_tasks.spelling import hint

ENTRY: FieldPath = ("spec", "entry")

_LANGUAGES = {
    ".ts": "TypeScript",
    ".tsx": "TypeScript",
    ".js": "JavaScript",
    ".mjs": "JavaScript",
    ".cjs": "JavaScript",
    ".sh": "a shell script",
    ".rb": "Ruby",
    ".go": "Go",
    ".rs": "Rust",
}
#: what an interpreter may load beside an entry, by suffix and by name
_LOADABLE = {".py", ".pyc", ".pyd", ".so", ".dylib", ".jsx", ".mts", ".cts", ".node", ".wasm", *_LANGUAGES}
_LOADER_FILES = {"package.json", "tsconfig.json", "jsconfig.json", "bunfig.toml"}


def is_code(path: str) -> bool:
    """Say whether a file, by its name, may be run or imported as code, or says what is."""
    name = PurePosixPath(path.lower())
    return name.suffix in _LOADABLE or name.name in _LOADER_FILES


def entry_path_findings(declaration: Declaration, root: Path, *, is_run: bool = True) -> Iterator[Finding]:
    """Yield what is wrong with ``spec.entry``, without opening the file.

    One that is not run here may be in any language.
    """
    entry = declaration.value(ENTRY)
    if not isinstance(entry, str) or not entry:
        return
    error = entry_error(entry, root) if is_run else _path_error("entry", entry, root)
    if error is not None:
        yield declaration.finding(ENTRY, error)


def text_file_findings(declaration: Declaration, path: FieldPath, root: Path) -> Iterator[Finding]:
    """Yield what is wrong with the text file that the field at ``path`` names."""
    name = declaration.value(path)
    if not isinstance(name, str):
        return
    error = _path_error(str(path[-1]), name, root)
    faults = [] if error else read_text(root / name)[1]
    if faults:
        error = FieldError(
            f"{faults[0].error.message}: '{name[:200]}'", faults[0].error.suggestion, faults[0].error.code
        )
    if error is not None:
        yield declaration.finding(path, error)


def entry_file(declaration: Declaration, root: Path) -> Path | None:
    """Return the resolved entry file, or ``None`` if ``spec.entry`` does not lead to one."""
    entry = declaration.value(ENTRY)
    if not isinstance(entry, str) or not entry or entry_error(entry, root):
        return None
    return (root / entry).resolve()


def entry_error(entry: str, root: Path) -> FieldError | None:
    """Say why ``entry`` does not lead to a Python file inside ``root``; ``None`` if it does."""
    misplaced = _place_error("entry", entry)
    if misplaced is not None:
        return misplaced
    language = _LANGUAGES.get(PurePosixPath(entry).suffix.lower())
    if language:
        return FieldError(
            f"the entry '{entry}' is {language}; entries are written in Python",
            "Rewrite it as a .py file with 'handlers' (Tool), 'handle' (Agent) or 'register' (Extension).",
        )
    error = _path_error("entry", entry, root)
    if error is None and (root / entry).resolve().suffix != ".py":
        return FieldError(f"the entry '{entry}' is no Python file", "Name a .py file.")
    return error


def _path_error(field: str, name: str, root: Path) -> FieldError | None:
    """Say why the path in ``field`` does not lead to a file inside ``root``; ``None`` if it does."""
    return _place_error(field, name) or _file_error(field, name, root)


def _place_error(field: str, name: str) -> FieldError | None:
    if "\0" in name or PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive:
        return _misplaced(f"the {field} {name!r} is no relative path")
    if ".." in PurePosixPath(name).parts:
        return _misplaced(f"the {field} '{name}' leads out of the bundle")
    return None


def _file_error(field: str, name: str, root: Path) -> FieldError | None:
    try:
        file = (root / name).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a circle of links"
        return FieldError(
            f"the {field} '{name[:200]}' cannot be found ({reason})",
            f"Create it, or correct the path; it starts from {root}.",
            ConfigCode.ENTRY_NOT_FOUND,
        )
    if not file.is_relative_to(root):
        return _misplaced(f"the {field} '{name}' is a link that leads out of the bundle")
    if not file.is_file():
        return FieldError(
            f"the {field} '{name}' is no file", "Name the file itself.", ConfigCode.ENTRY_NOT_FOUND
        )
    return None


def _misplaced(message: str) -> FieldError:
    suggestion = "Write a path from the bundle's folder to a file inside it, such as ./tools/bash.py."
    return FieldError(message, suggestion, ConfigCode.ENTRY_NOT_FOUND)


#: what a file may take to be imported: as long as in a worker, or what runs could not be changed
FILE_SECONDS = 60.0
#: what the interpreter may take to start on a busy machine
START_SECONDS = 60.0
MAX_RECORD = 1_048_576
#: bytes that importing may print or write to a file, where a bundle is checked
MAX_WRITTEN = 1_048_576
_PROBE = (sys.executable, "-P", "-X", "utf8", "-m", "goondan_tasks.entry_probe")
_TOO_LATE = "the bundle's entry files take too long to be imported, all together"


def import_entries(
    files: Sequence[Path],
    *,
    kind: EntryKind = "tool",
    seconds: float = FILE_SECONDS,
    deadline: float = math.inf,
) -> list[ProbeRecord]:
    """Import each file in a child process and return a record for each, in order.

    ``deadline``, by time.monotonic, is that of all of them.
    """
    records = list(_records(files, kind, seconds, deadline))
    return records + [ProbeRecord(problem=_TOO_LATE)] * (len(files) - len(records))


def fatal_import(files: Sequence[Path], *, seconds: float = FILE_SECONDS) -> tuple[Path, str] | None:
    """Import files as this process would; return the first that ends it, or does not end, and how.

    What a file raises is no such thing. Those behind the first are not imported.

    Raises:
        OSError: no process can be started.
    """
    records = _records(files, "any", seconds, math.inf, as_here=True)
    with contextlib.closing(records):
        for file, record in zip(files, records, strict=True):
            if record.is_fatal:
                return file, str(record.problem)
    return None


def _records(
    files: Sequence[Path], kind: EntryKind, seconds: float, deadline: float, *, as_here: bool = False
) -> Generator[ProbeRecord]:
    done = 0
    while done < len(files) and time.monotonic() < deadline:
        with _child(files[done:], kind, as_here=as_here) as (process, pipe):
            for record in _Watch(process, pipe, seconds, deadline).records(len(files) - done):
                done += 1
                yield record


@contextlib.contextmanager
def _child(
    files: Sequence[Path], kind: EntryKind, *, as_here: bool
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a child on ``files``; at the end kill its process group."""
    with contextlib.ExitStack() as opened:
        folder = opened.enter_context(tempfile.TemporaryDirectory())
        printed = None if as_here else opened.enter_context(tempfile.TemporaryFile())
        (reader, writer), (life, lifeline) = os.pipe(), os.pipe()
        opened.callback(os.close, reader)
        opened.callback(os.close, lifeline)
        limits = [str(writer), str(life), "0" if as_here else str(MAX_WRITTEN)]
        theirs = opened.enter_context(contextlib.ExitStack())
        theirs.callback(os.close, writer)
        theirs.callback(os.close, life)
        process = subprocess.Popen(
            [*_PROBE, *limits, kind, *map(str, files)],
            cwd=folder,
            env=_environment(as_here=as_here),
            stdin=subprocess.DEVNULL,
            stdout=printed or subprocess.DEVNULL,
            stderr=subprocess.STDOUT,
            pass_fds=[writer, life],
            start_new_session=True,
        )
        theirs.close()
        try:
            yield process, reader
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _environment(*, as_here: bool) -> dict[str, str]:
    """Return what Python needs to find the same modules as here, and nothing else but what is here."""
    path = os.pathsep.join(str(Path(entry or ".").resolve()) for entry in sys.path)
    here = os.environ if as_here else {}  # noqa: TID251 - what a worker imports may read any of it
    return {
        **here,
        "PATH": os.pathsep.join(os.get_exec_path()),
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
    }


@dataclass(slots=True)
class _Watch:
    """Reads what a child reports, with an eye on the clock."""

    process: subprocess.Popen[bytes]
    pipe: int
    seconds: float
    last: float = math.inf
    _problem: str | None = None

    def records(self, wanted: int) -> Iterator[ProbeRecord]:
        """Yield the records of the child's first files; the last one may say how the child ended."""
        lines = self._lines()
        # the first line says that the child is ready
        is_ready = next(lines, None) is not None
        for _ in range(wanted):
            line = next(lines, None)
            if line is None:
                yield ProbeRecord(problem=self._problem or self._ending(), is_fatal=is_ready)
                return
            record = _parsed(line)
            yield record
            if record.is_last:
                return

    def _lines(self) -> Iterator[bytes]:
        deadline = time.monotonic() + START_SECONDS
        rest = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self.pipe, selectors.EVENT_READ)
            while selector.select(max(0.0, min(deadline, self.last) - time.monotonic())):
                chunk = os.read(self.pipe, 65_536)
                if not chunk or len(rest) > MAX_RECORD:
                    return
                *lines, rest = (rest + chunk).split(b"\n")
                for line in lines:
                    deadline = time.monotonic() + self.seconds
                    yield line
        is_last = self.last < deadline
        self._problem = _TOO_LATE if is_last else f"importing the file does not end within {self.seconds:g} s"

    def _ending(self) -> str:
        try:
            status = self.process.wait(timeout=1)
        except subprocess.TimeoutExpired:
            return "importing the file cuts the connection of the check"
        if status < 0:
            return f"importing the file ends the process by {signal.Signals(-status).name}"
        return f"importing the file ends the process with exit status {status}"


def _parsed(line: bytes) -> ProbeRecord:
    try:
        return ProbeRecord.model_validate_json(line)
    except ValidationError:
        return ProbeRecord(problem="importing the file disturbs the check", is_last=True)


_KINDS: Mapping[str, EntryKind] = {"Tool": "tool", "Agent": "agent", "Extension": "extension"}


def entry_findings(inventory: Inventory, *, seconds: float | None = None) -> list[Finding]:
    """Import the entry of every Tool, Agent and Extension that has one, in child processes.

    The handlers of a Tool are compared with its exports. What is not imported after ``seconds`` has failed.
    """
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    return [found for kind in _KINDS for found in _kind_findings(kind, inventory, deadline)]


def _kind_findings(kind: str, inventory: Inventory, deadline: float) -> Iterator[Finding]:
    declarations = [
        (declaration, file)
        for declaration in inventory.of_kind(kind)
        if (file := entry_file(declaration, inventory.root))
    ]
    files = list(dict.fromkeys(file for _, file in declarations))
    records = dict(zip(files, import_entries(files, kind=_KINDS[kind], deadline=deadline), strict=True))
    for declaration, file in declarations:
        record = records[file]
        if record.problem is not None:
            yield _problem(declaration, record, inventory.folder)
        elif kind == "Tool":
            yield from _handler_findings(declaration, record)


def _handler_findings(tool: Declaration, record: ProbeRecord) -> Iterator[Finding]:
    exports = {name: path for path, name in _export_names(tool)}
    for name, path in exports.items():
        if name not in record.handlers:
            yield tool.finding(path, _missing(name, record.handlers))
    for name in record.handlers:
        if name not in exports:
            error = FieldError(
                f"the handler '{name[:80]}' has no export", "Export it, or remove the handler."
            )
            yield tool.finding(("spec", "exports"), error, "warning")


def _export_names(tool: Declaration) -> Iterator[tuple[tuple[str | int, ...], str]]:
    for path, _ in tool.items(("spec", "exports")):
        name = tool.value((*path, "name"))
        if isinstance(name, str):
            yield (*path, "name"), name


def _missing(name: str, handlers: tuple[str, ...]) -> FieldError:
    suggestion = f"Add it to 'handlers'. {hint(name, handlers, '')}".strip()
    return FieldError(f"the entry has no handler '{name[:80]}'", suggestion)


def _problem(declaration: Declaration, record: ProbeRecord, folder: Path) -> Finding:
    """Place a problem in the entry file itself."""
    return Finding(
        level="error",
        code=ConfigCode.SCHEMA_INVALID.value,
        message=str(record.problem),
        file=os.path.normpath(folder / str(declaration.value(ENTRY))),
        line=record.line,
        path="spec.entry",
        resource=declaration.label,
        suggestion=record.suggestion or IMPORT_HINT,
    )
