"""The files that resources name: where they must be, and whether they can be imported (003 §13; DESIGN §6).

Entries are imported in child processes with their own working directory, a time limit per file, and a process
group that is killed afterwards or when this process ends. A child imports one file after the other, as a
worker does; if it ends early, another one continues. The check of a bundle passes no environment to them and
limits what they print or write; the trial before a worker's own import passes the worker's environment.
"""

import contextlib
import itertools
import json
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Literal, Self

from pydantic import ValidationError

from broker_config.settings import Settings, SettingsError
from goondan_tasks.authoring.entry import IMPORT_HINT, Entry, EntryKind, ProbeRecord
from goondan_tasks.bundle.export_cache import ExportCache
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.bundle.inventory import Declaration, Inventory, declare, read_inventory, read_text
from goondan_tasks.bundle.resources import AUTO
from goondan_tasks.contract.wording import FieldPath, hint
from goondan_tasks.machine import javascript

ENTRY: FieldPath = ("spec", "entry")
EXPORTS: FieldPath = ("spec", "exports")
#: an entry without a match has no typed functions, which could complete the exports in YAML
_DECORATOR = re.compile(rb"^[ \t]*@([\w.]+\.)?tool\b", re.M)
#: how long the import of a file may take; the same as in a worker, so that running revisions can be changed
FILE_SECONDS = 60.0
#: how long the interpreter may take to start on a busy machine
START_SECONDS = 60.0
MAX_RECORD = 1_048_576
#: bytes that an import may print or write to a file when a bundle is checked
MAX_WRITTEN = 1_048_576

_LANGUAGES = {
    ".sh": "a shell script",
    ".rb": "Ruby",
    ".go": "Go",
    ".rs": "Rust",
    ".tsx": "TypeScript with JSX",
    ".jsx": "JavaScript with JSX",
}
_KINDS: Mapping[str, EntryKind] = {"Tool": "tool", "Agent": "agent", "Extension": "extension"}
_PROBE = (sys.executable, "-P", "-X", "utf8", "-m", "goondan_tasks.authoring.entry")
_TOO_LATE = "all entry files of the bundle together take too long to import"


def entry_path_findings(declaration: Declaration, root: Path) -> Iterator[Finding]:
    """Yield the errors in ``spec.entry``, without opening the file."""
    entry = declaration.value(ENTRY)
    if not isinstance(entry, str) or not entry:
        return
    error = entry_error(entry, root)
    if error is None and declaration.kind == "Agent" and javascript.is_javascript(entry):
        error = FieldError(
            f"the entry '{entry}' is TypeScript or JavaScript, but entries of Agents are Python",
            "Write a .py file with `async def handle(ctx, event)`; only Tools and Extensions may be either.",
        )
    if error is not None:
        yield declaration.finding(ENTRY, error)


def text_file_findings(declaration: Declaration, path: FieldPath, root: Path) -> Iterator[Finding]:
    """Yield the errors in the text file that the field at ``path`` names."""
    name = declaration.value(path)
    if not isinstance(name, str):
        return
    error = _path_error(str(path[-1]), name, root)
    faults = [] if error else read_text(root / name)[1]
    if faults:
        found = faults[0].error
        error = FieldError(f"{found.message}: '{name[:200]}'", found.suggestion, found.code)
    if error is not None:
        yield declaration.finding(path, error)


def entry_file(declaration: Declaration, root: Path) -> Path | None:
    """Return the resolved entry file; ``None`` if ``spec.entry`` does not lead to one."""
    entry = declaration.value(ENTRY)
    if not isinstance(entry, str) or not entry or entry_error(entry, root):
        return None
    return entry_path(entry, root)


def entry_error(entry: str, root: Path) -> FieldError | None:
    """Return why ``entry`` does not lead to code inside ``root`` that can run; ``None`` if it does."""
    language = _LANGUAGES.get(PurePosixPath(entry).suffix.lower())
    if language and not _place_error("entry", entry):
        return FieldError(
            f"the entry '{entry}' is {language}; entries are Python, TypeScript or JavaScript",
            "Rewrite it as a .py, .ts or .js file with 'handlers' (Tool) or 'register' (Extension).",
        )
    error = _path_error("entry", javascript.source_name(entry, root), root)
    if error is not None:
        return error
    file = entry_path(entry, root)
    if file.suffix != ".py" and not javascript.is_javascript(file):
        return FieldError(f"the entry '{entry}' is not code that can be run", "Name a .py, .ts or .js file.")
    return None


def entry_path(entry: str, root: Path) -> Path:
    """Return the file that an entry names, links resolved."""
    return (root / javascript.source_name(entry, root)).resolve()


def _place_error(field: str, name: str) -> FieldError | None:
    if "\0" in name or PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive:
        return _misplaced(f"the {field} {name!r} is not a relative path")
    if ".." in PurePosixPath(name).parts:
        return _misplaced(f"the {field} '{name}' leads out of the bundle")
    return None


def _path_error(field: str, name: str, root: Path) -> FieldError | None:
    """Return why the path in ``field`` does not lead to a file inside ``root``; ``None`` if it does."""
    if error := _place_error(field, name):
        return error
    try:
        file = (root / name).resolve(strict=True)
    except (OSError, RuntimeError) as missing:
        reason = getattr(missing, "strerror", None) or "a loop of links"
        message = f"the {field} '{name[:200]}' cannot be found ({reason})"
        suggestion = f"Create it, or correct the path; it starts from {root}."
        return FieldError(message, suggestion, ConfigCode.ENTRY_NOT_FOUND)
    if not file.is_relative_to(root):
        return _misplaced(f"the {field} '{name}' is a link that leads out of the bundle")
    if not file.is_file():
        message = f"the {field} '{name}' is not a file"
        return FieldError(message, "Name the file itself.", ConfigCode.ENTRY_NOT_FOUND)
    return None


def _misplaced(message: str) -> FieldError:
    suggestion = "Write a path from the bundle's folder to a file inside it, such as ./tools/bash.py."
    return FieldError(message, suggestion, ConfigCode.ENTRY_NOT_FOUND)


#: the records of imported entries
Records = dict[Entry, ProbeRecord]
#: the entries to import when a bundle is read; ``typed``: those whose ``@tool`` functions declare exports
Imports = Literal["none", "typed", "all"]


def read_typed_inventory(
    path: Path,
    records: Records,
    deadline: float = math.inf,
    *,
    imports: Imports = "typed",
    cache: ExportCache | None = None,
) -> tuple[Inventory, list[Finding]]:
    """Read a package, with the exports that the ``@tool`` functions of its Tools declare.

    Entries without a record, in ``records`` or in the ``cache`` for Tools, are imported in a child process
    until ``deadline`` (by time.monotonic), and their records are added. Fields of an export in YAML override
    its function's. With ``imports="none"``, Tools with ``exports: auto`` have no resource, and others only
    what YAML declares.
    """
    inventory, findings = read_inventory(path)
    files = typed_entries(inventory)
    if imports != "none":
        wanted = [Entry("tool", file) for file in files.values()]
        wanted += [entry for _, entry in _entries(inventory)] if imports == "all" else []
        unique = [entry for entry in dict.fromkeys(wanted) if entry not in records]
        read = partial(import_entries, deadline=deadline)
        if cache is None:
            imported = read(unique)
        else:
            # with a cache, only entries of Tools are imported
            tools = [entry.file for entry in unique]
            imported = cache.records(tools, lambda missing: read([Entry("tool", file) for file in missing]))
        records |= zip(unique, imported, strict=True)
    typed: dict[int, Declaration] = {}
    for name, file in files.items():
        tool = inventory.by_name["Tool", name]
        if imports != "none":
            typed[id(tool)], found = _typed(tool, records[Entry("tool", file)], inventory)
            findings += found
        elif has_auto_exports(tool):
            typed[id(tool)] = replace(tool, resource=None)
    if not typed:
        return inventory, findings
    declarations = tuple(typed.get(id(item), item) for item in inventory.declarations)
    by_name = {key: typed.get(id(item), item) for key, item in inventory.by_name.items()}
    return replace(inventory, declarations=declarations, by_name=by_name), findings


def typed_entries(inventory: Inventory) -> dict[str, Path]:
    """Return the entry files whose ``@tool`` functions declare exports, by the name of the Tool."""
    return {
        tool.name: file
        for tool in inventory.of_kind("Tool")
        if not tool.is_v1 and (file := entry_file(tool, inventory.root)) and _is_typed(tool, file)
    }


def has_auto_exports(tool: Declaration) -> bool:
    """Return whether a Tool's YAML says ``exports: auto``, also once they have been read."""
    spec = tool.document.node.parts.get("spec")
    exports = spec and spec.parts.get("exports")
    return exports is not None and exports.data == AUTO and not tool.is_v1


def _is_typed(tool: Declaration, file: Path) -> bool:
    if has_auto_exports(tool):
        return True
    if javascript.is_javascript(file):
        return False
    with contextlib.suppress(OSError):
        return _DECORATOR.search(file.read_bytes()) is not None
    return False


def _typed(tool: Declaration, record: ProbeRecord, inventory: Inventory) -> tuple[Declaration, list[Finding]]:
    """Return a Tool with the exports of its entry's functions, and the errors in them."""
    if record.problem is not None:
        return replace(tool, resource=None), [_import_finding(tool, record, inventory)]
    exports: Any = list(record.exports.values())
    if not has_auto_exports(tool):
        exports = tool.value(EXPORTS)
        exports = [_completed(item, record) for item in exports] if isinstance(exports, list) else exports
    elif plain := [name for name in record.handlers if name not in record.exports]:
        suggestion = "Decorate it with @tool, or list the exports in YAML."
        message = f"the handler '{plain[0][:80]}' does not declare its export"
        return replace(tool, resource=None), [tool.error(EXPORTS, message, suggestion)]
    node = tool.document.node
    data = {**node.data, "spec": {**node.data["spec"], "exports": exports}}
    typed, findings = declare(replace(tool.document, node=replace(node, data=data)))
    return typed or tool, findings


def _completed(item: Any, record: ProbeRecord) -> Any:
    if not isinstance(item, dict):
        return item
    given = {field: value for field, value in item.items() if value is not None}
    return {**record.exports.get(str(item.get("name")), {}), **given}


def bundle_entries(path: Path) -> list[Entry]:
    return list(dict.fromkeys(entry for _, entry in _entries(read_inventory(path)[0])))


def _entries(inventory: Inventory) -> Iterator[tuple[Declaration, Entry]]:
    """Yield the entries of all Tools, then of all Agents, then of all Extensions."""
    for declaration in itertools.chain.from_iterable(map(inventory.of_kind, _KINDS)):
        if file := entry_file(declaration, inventory.root):
            yield declaration, Entry(_KINDS[declaration.kind], file)


def entry_findings(inventory: Inventory, records: Records) -> Iterator[Finding]:
    """Yield the errors in the entries; a Tool's handlers are compared with its exports."""
    for declaration, entry in _entries(inventory):
        record = records[entry]
        if record.problem is not None:
            yield _import_finding(declaration, record, inventory)
        elif entry.kind == "tool" and not has_auto_exports(declaration):
            yield from _handler_findings(declaration, record.handlers)


def _import_finding(declaration: Declaration, record: ProbeRecord, inventory: Inventory) -> Finding:
    return Finding(
        level="error",
        code=ConfigCode.SCHEMA_INVALID.value,
        message=str(record.problem),
        file=os.path.normpath(inventory.folder / str(declaration.value(ENTRY))),
        line=record.line,
        path="spec.entry",
        resource=declaration.label,
        suggestion=record.suggestion or IMPORT_HINT,
    )


def _handler_findings(tool: Declaration, handlers: Sequence[str]) -> Iterator[Finding]:
    exports = {name: path for path, name in tool.item_names(EXPORTS)}
    for name, path in exports.items():
        if name not in handlers:
            suggestion = f"Add it to 'handlers'. {hint(name, handlers, '')}".strip()
            yield tool.error(path, f"the entry has no handler '{name[:80]}'", suggestion)
    for name in handlers:
        if name not in exports:
            message = f"the handler '{name[:80]}' has no export"
            yield tool.warning(EXPORTS, message, "Export it, or remove the handler.")


def import_entries(
    entries: Sequence[Entry], *, seconds: float = FILE_SECONDS, deadline: float = math.inf
) -> list[ProbeRecord]:
    """Import each entry in a child process and return a record for each, in order.

    ``deadline``, by time.monotonic, is for all entries together.
    """
    records = list(_records(entries, seconds, deadline, partial(_Child.start, as_here=False)))
    return records + [ProbeRecord(problem=_TOO_LATE)] * (len(entries) - len(records))


def fatal_import(files: Sequence[Path], *, seconds: float = FILE_SECONDS) -> tuple[Path, str] | None:
    """Import files as this process would; return the first that ends the process or hangs, and how.

    An exception does not count. Files after the first such file are not imported.

    Raises:
        OSError: no process can be started.
    """
    entries = [Entry("any", file) for file in files]
    start = partial(_Child.start, as_here=True)
    with contextlib.closing(_records(entries, seconds, math.inf, start)) as records:
        for file, record in zip(files, records, strict=True):
            if record.is_fatal:
                return file, str(record.problem)
    return None


class Prober:
    """Does the same as :func:`import_entries`, with a child that was started ahead, which takes longest."""

    def __init__(self) -> None:
        self._spare: _Child | None = None

    def start_ahead(self) -> None:
        """Start the child for the next check, if there is none."""
        self._spare = self._spare or _Child.start(as_here=False)

    def import_entries(self, entries: Sequence[Entry]) -> list[ProbeRecord]:
        """Import each entry in a child process and return a record for each, in order."""
        return list(_records(entries, FILE_SECONDS, math.inf, self._take))

    def _take(self) -> "_Child":
        spare, self._spare = self._spare, None
        return spare or _Child.start(as_here=False)

    def close(self) -> None:
        """End the child that was started ahead."""
        if self._spare is not None:
            self._take().close()


def _records(
    entries: Sequence[Entry], seconds: float, deadline: float, start: Callable[[], "_Child"]
) -> Generator[ProbeRecord]:
    done = 0
    while done < len(entries) and time.monotonic() < deadline:
        with contextlib.closing(start()) as child:
            child.begin(entries[done:])
            lines = _lines(child.pipe, seconds, deadline)
            for record in _child_records(child.process, lines, len(entries) - done):
                done += 1
                yield record


def _child_records(
    process: subprocess.Popen[bytes], lines: Iterator[bytes], wanted: int
) -> Iterator[ProbeRecord]:
    """Yield the records of a child's first files; the last record may say how the child ended."""
    count = -1
    try:
        for count, line in enumerate(lines):
            if count == 0:  # the child is ready
                continue
            try:
                record = ProbeRecord.model_validate_json(line)
            except ValidationError:
                record = ProbeRecord(problem="importing the file interferes with the check", is_last=True)
            yield record
            if record.is_last or count == wanted:
                return
        problem = _ending(process)
    except TimeoutError as error:
        problem = str(error)
    yield ProbeRecord(problem=problem, is_fatal=count >= 0)


def _lines(pipe: int, seconds: float, last: float) -> Iterator[bytes]:
    """Yield the lines that a child writes.

    Raises:
        TimeoutError: the import of one file, or of all files, takes too long.
    """
    deadline = time.monotonic() + START_SECONDS
    rest = b""
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        while selector.select(max(0.0, min(deadline, last) - time.monotonic())):
            chunk = os.read(pipe, 65_536)
            if not chunk or len(rest) > MAX_RECORD:
                return
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                deadline = time.monotonic() + seconds
                yield line
    raise TimeoutError(
        _TOO_LATE if last < deadline else f"importing the file does not end within {seconds:g} s"
    )


def _ending(process: subprocess.Popen[bytes]) -> str:
    try:
        status = process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        return "importing the file cuts the connection to the check"
    if status < 0:
        return f"importing the file ends the process by {signal.Signals(-status).name}"
    return f"importing the file ends the process with exit status {status}"


@dataclass(frozen=True, slots=True)
class _Child:
    """A child process that waits for its entries."""

    process: "subprocess.Popen[bytes]"
    #: the pipe from which its records are read
    pipe: int
    _resources: contextlib.ExitStack

    @classmethod
    def start(cls, *, as_here: bool) -> Self:
        """Start a child, with this process's environment or none of it; raises OSError."""
        # with PYTHONPATH the child finds the same modules as this process
        path = os.pathsep.join(str(Path(entry or ".").resolve()) for entry in sys.path)
        environment = {
            **(os.environ if as_here else {}),  # noqa: TID251 - what a worker imports may read any of it
            "PATH": os.pathsep.join(os.get_exec_path()),
            "PYTHONPATH": path,
            "PYTHONDONTWRITEBYTECODE": "1",
            "LANG": "C.UTF-8",
        }
        with contextlib.ExitStack() as resources, contextlib.ExitStack() as child_ends:
            folder = resources.enter_context(tempfile.TemporaryDirectory())
            printed = None if as_here else resources.enter_context(tempfile.TemporaryFile())
            (reader, writer), (life, lifeline) = os.pipe(), os.pipe()
            for stack, descriptors in ((resources, (reader, lifeline)), (child_ends, (writer, life))):
                for descriptor in descriptors:
                    stack.callback(os.close, descriptor)
            limits = [str(writer), str(life), "0" if as_here else str(MAX_WRITTEN), _javascript()]
            process = subprocess.Popen(
                [*_PROBE, *limits],
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=printed or subprocess.DEVNULL,
                stderr=subprocess.STDOUT,
                pass_fds=[writer, life],
                start_new_session=True,
            )
            return cls(process, reader, resources.pop_all())

    def begin(self, entries: Sequence[Entry]) -> None:
        line = json.dumps([(kind, str(file)) for kind, file in entries])
        assert self.process.stdin is not None  # noqa: S101 - it was requested
        with contextlib.suppress(BrokenPipeError):  # it has ended; reading its records shows that
            self.process.stdin.write(line.encode() + b"\n")
            self.process.stdin.close()

    def close(self) -> None:
        """Kill its process group, and remove its files."""
        with self._resources, self.process, contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def _javascript() -> str:
    """Return the setting ``GOONDAN_JAVASCRIPT``; empty if it is not set or the settings are invalid."""
    with contextlib.suppress(SettingsError):
        return Settings.load().javascript or ""
    return ""
