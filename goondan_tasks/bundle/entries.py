"""The files that resources name: where they must be, and whether they can be imported (003 §13; DESIGN §6).

Entries are imported in child processes with limits: a working directory of their own, a time limit per file,
and a process group that is killed afterwards and when this process ends. One child imports one file after the
other, as a worker does, and another one continues where it ends. The check of a bundle gives them no
environment of ours and caps what they print or write; the trial of what a worker is about to import has its
environment.
"""

import contextlib
import math
import os
import re
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from pydantic import ValidationError

from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.bundle.inventory import Declaration, Inventory, declare, read_inventory, read_text
from goondan_tasks.bundle.resources import AUTO
from goondan_tasks.entry import IMPORT_HINT, EntryKind, ProbeRecord
from goondan_tasks.wording import FieldPath, hint

ENTRY: FieldPath = ("spec", "entry")
EXPORTS: FieldPath = ("spec", "exports")
#: an entry without this text has no typed functions that could complete the exports in YAML
_DECORATOR = re.compile(rb"^[ \t]*@([\w.]+\.)?tool\b", re.M)
#: what a file may take to be imported: as long as in a worker, or running revisions could not be changed
FILE_SECONDS = 60.0
#: what the interpreter may take to start on a busy machine
START_SECONDS = 60.0
MAX_RECORD = 1_048_576
#: bytes that importing may print or write to a file when a bundle is checked
MAX_WRITTEN = 1_048_576

_LANGUAGES = {
    ".sh": "a shell script",
    ".rb": "Ruby",
    ".go": "Go",
    ".rs": "Rust",
    **dict.fromkeys((".ts", ".tsx"), "TypeScript"),
    **dict.fromkeys((".js", ".mjs", ".cjs"), "JavaScript"),
}
#: what an interpreter may load beside an entry, by suffix and by name
_LOADABLE = {".py", ".pyc", ".pyd", ".so", ".dylib", ".jsx", ".mts", ".cts", ".node", ".wasm", *_LANGUAGES}
_LOADER_FILES = {"package.json", "tsconfig.json", "jsconfig.json", "bunfig.toml"}
_KINDS: Mapping[str, EntryKind] = {"Tool": "tool", "Agent": "agent", "Extension": "extension"}
_PROBE = (sys.executable, "-P", "-X", "utf8", "-m", "goondan_tasks.entry")
_TOO_LATE = "all entry files of the bundle together take too long to import"


def is_code(path: str) -> bool:
    """Return whether a file, by its name, may be run or imported as code, or decides what is."""
    name = PurePosixPath(path.lower())
    return name.suffix in _LOADABLE or name.name in _LOADER_FILES


def entry_path_findings(declaration: Declaration, root: Path, *, is_run: bool = True) -> Iterator[Finding]:
    """Yield the errors in ``spec.entry``, without opening the file.

    An entry that is not run may be in any language.
    """
    entry = declaration.value(ENTRY)
    if not isinstance(entry, str) or not entry:
        return
    error = entry_error(entry, root) if is_run else _path_error("entry", entry, root)
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
    """Return the resolved entry file, or ``None`` if ``spec.entry`` does not lead to one."""
    entry = declaration.value(ENTRY)
    if not isinstance(entry, str) or not entry or entry_error(entry, root):
        return None
    return (root / entry).resolve()


def entry_error(entry: str, root: Path) -> FieldError | None:
    """Say why ``entry`` does not lead to a Python file inside ``root``; ``None`` if it does."""
    language = _LANGUAGES.get(PurePosixPath(entry).suffix.lower())
    if language and not _place_error("entry", entry):
        return FieldError(
            f"the entry '{entry}' is {language}; entries are written in Python",
            "Rewrite it as a .py file with 'handlers' (Tool), 'handle' (Agent) or 'register' (Extension).",
        )
    error = _path_error("entry", entry, root)
    if error is None and (root / entry).resolve().suffix != ".py":
        return FieldError(f"the entry '{entry}' is not a Python file", "Name a .py file.")
    return error


def _place_error(field: str, name: str) -> FieldError | None:
    if "\0" in name or PurePosixPath(name).is_absolute() or PureWindowsPath(name).drive:
        return _misplaced(f"the {field} {name!r} is not a relative path")
    if ".." in PurePosixPath(name).parts:
        return _misplaced(f"the {field} '{name}' leads out of the bundle")
    return None


def _path_error(field: str, name: str, root: Path) -> FieldError | None:
    """Say why the path in ``field`` does not lead to a file inside ``root``; ``None`` if it does."""
    if error := _place_error(field, name):
        return error
    try:
        file = (root / name).resolve(strict=True)
    except (OSError, RuntimeError) as missing:
        reason = getattr(missing, "strerror", None) or "a circle of links"
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


def read_typed_inventory(
    path: Path, deadline: float = math.inf, *, imports: bool = True
) -> tuple[Inventory, list[Finding], Mapping[Path, ProbeRecord]]:
    """Read a package, with the exports that the ``@tool`` functions of its Tools declare.

    Only entries that are needed for that are imported, in a child process, until ``deadline`` by
    time.monotonic; their records are returned too. What YAML says of an export counts before its function.
    Unless it ``imports``, Tools with ``exports: auto`` have no resource, and others what YAML says.
    """
    inventory, findings = read_inventory(path)
    files = typed_entries(inventory)
    unique = list(dict.fromkeys(files.values())) if imports else []
    records = dict(zip(unique, import_entries(unique, deadline=deadline), strict=True))
    typed: dict[int, Declaration] = {}
    for name, file in files.items():
        tool = inventory.by_name["Tool", name]
        if imports:
            typed[id(tool)], found = _typed(tool, records[file], inventory)
            findings += found
        elif has_auto_exports(tool):
            typed[id(tool)] = replace(tool, resource=None)
    if not typed:
        return inventory, findings, records
    declarations = tuple(typed.get(id(item), item) for item in inventory.declarations)
    by_name = {key: typed.get(id(item), item) for key, item in inventory.by_name.items()}
    return replace(inventory, declarations=declarations, by_name=by_name), findings, records


def typed_entries(inventory: Inventory) -> dict[str, Path]:
    """Return the entry files whose ``@tool`` functions declare exports, by the name of their Tool."""
    return {
        tool.name: file
        for tool in inventory.of_kind("Tool")
        if not tool.is_v1 and (file := entry_file(tool, inventory.root)) and _is_typed(tool, file)
    }


def has_auto_exports(tool: Declaration) -> bool:
    """Return whether YAML leaves a Tool's exports to its entry, those it has by now included."""
    spec = tool.document.node.parts.get("spec")
    exports = spec and spec.parts.get("exports")
    return exports is not None and exports.data == AUTO and not tool.is_v1


def _is_typed(tool: Declaration, file: Path) -> bool:
    if has_auto_exports(tool):
        return True
    with contextlib.suppress(OSError):
        return _DECORATOR.search(file.read_bytes()) is not None
    return False


def _typed(tool: Declaration, record: ProbeRecord, inventory: Inventory) -> tuple[Declaration, list[Finding]]:
    """Return a Tool with the exports of its entry's functions, and what is wrong with them."""
    if record.problem is not None:
        return replace(tool, resource=None), [_import_finding(tool, record, inventory)]
    exports: Any = list(record.exports.values())
    if not has_auto_exports(tool):
        exports = tool.value(EXPORTS)
        exports = [_completed(item, record) for item in exports] if isinstance(exports, list) else exports
    elif plain := [name for name in record.handlers if name not in record.exports]:
        suggestion = "Write @tool before it, or list the exports in YAML."
        message = f"nothing declares the export of the handler '{plain[0][:80]}'"
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


def entry_findings(
    inventory: Inventory, *, known: Mapping[Path, ProbeRecord] | None = None, deadline: float = math.inf
) -> list[Finding]:
    """Import the entry of every Tool, Agent and Extension that has one, in child processes.

    The handlers of a Tool are compared with its exports. Files of Tools that are ``known`` are not imported
    again, nor reported. What is not imported until ``deadline``, by time.monotonic, has failed.
    """
    return [found for kind in _KINDS for found in _kind_findings(kind, inventory, known or {}, deadline)]


def _kind_findings(
    kind: str, inventory: Inventory, known: Mapping[Path, ProbeRecord], deadline: float
) -> Iterator[Finding]:
    files = {
        declaration.name: file
        for declaration in inventory.of_kind(kind)
        if (file := entry_file(declaration, inventory.root))
    }
    records = dict(known) if kind == "Tool" else {}
    unique = [file for file in dict.fromkeys(files.values()) if file not in records]
    records |= zip(unique, import_entries(unique, kind=_KINDS[kind], deadline=deadline), strict=True)
    for declaration in inventory.of_kind(kind):
        record = records[files[declaration.name]] if declaration.name in files else ProbeRecord()
        if record.problem is not None:
            yield _import_finding(declaration, record, inventory)
        elif kind == "Tool" and declaration.name in files and not has_auto_exports(declaration):
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
    files: Sequence[Path],
    *,
    kind: EntryKind = "tool",
    seconds: float = FILE_SECONDS,
    deadline: float = math.inf,
) -> list[ProbeRecord]:
    """Import each file in a child process and return a record for each, in order.

    ``deadline``, by time.monotonic, is for all files together.
    """
    records = list(_records(files, kind, seconds, deadline))
    return records + [ProbeRecord(problem=_TOO_LATE)] * (len(files) - len(records))


def fatal_import(files: Sequence[Path], *, seconds: float = FILE_SECONDS) -> tuple[Path, str] | None:
    """Import files as this process would; return the first that ends it, or does not end, and how.

    An exception does not count as that. Files after the first such file are not imported.

    Raises:
        OSError: no process can be started.
    """
    with contextlib.closing(_records(files, "any", seconds, math.inf, as_here=True)) as records:
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
            for record in _child_records(process, _lines(pipe, seconds, deadline), len(files) - done):
                done += 1
                yield record


def _child_records(
    process: subprocess.Popen[bytes], lines: Iterator[bytes], wanted: int
) -> Iterator[ProbeRecord]:
    """Yield the records of a child's first files; the last one may say how the child ended."""
    count = -1
    try:
        for count, line in enumerate(lines):
            if count == 0:  # says that the child is ready
                continue
            try:
                record = ProbeRecord.model_validate_json(line)
            except ValidationError:
                record = ProbeRecord(problem="importing the file disturbs the check", is_last=True)
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
        TimeoutError: importing a file, or all files, takes too long.
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
        return "importing the file cuts the connection of the check"
    if status < 0:
        return f"importing the file ends the process by {signal.Signals(-status).name}"
    return f"importing the file ends the process with exit status {status}"


@contextlib.contextmanager
def _child(
    files: Sequence[Path], kind: EntryKind, *, as_here: bool
) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Start a child on ``files``; at the end kill its process group."""
    # Python needs this to find the same modules as here; nothing else is passed on but what is asked for
    path = os.pathsep.join(str(Path(entry or ".").resolve()) for entry in sys.path)
    environment = {
        **(os.environ if as_here else {}),  # noqa: TID251 - what a worker imports may read any of it
        "PATH": os.pathsep.join(os.get_exec_path()),
        "PYTHONPATH": path,
        "PYTHONDONTWRITEBYTECODE": "1",
        "LANG": "C.UTF-8",
    }
    with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
        folder = ours.enter_context(tempfile.TemporaryDirectory())
        printed = None if as_here else ours.enter_context(tempfile.TemporaryFile())
        (reader, writer), (life, lifeline) = os.pipe(), os.pipe()
        for stack, descriptor in ((ours, reader), (ours, lifeline), (theirs, writer), (theirs, life)):
            stack.callback(os.close, descriptor)
        limits = [str(writer), str(life), "0" if as_here else str(MAX_WRITTEN)]
        process = subprocess.Popen(
            [*_PROBE, *limits, kind, *map(str, files)],
            cwd=folder,
            env=environment,
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
