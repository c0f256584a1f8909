"""Entry files, loaded in the same way by workers and by ``goondan validate``.

A tool's entry is a Python file with functions below ``@tool``, or with ``handlers``, a mapping from export
names to functions (003 §5.2). An agent's entry has ``handle(ctx, event)``, an extension's
``register(api)``. An entry is loaded as a package of its own, so ``from . import sibling`` works. This
module is outside the bundle's package, because the child process of an isolated tool loads entries and
nothing else of a bundle.

``python -m goondan_tasks.authoring.entry FD LIFE MAX_WRITTEN RUNTIME`` is the child process that imports
entry files for a check. It reads one line from stdin, ``[[KIND, FILE], …]`` as JSON, and writes one
:class:`ProbeRecord` per line to the file descriptor FD: one when it is ready, then one per file. An
uncaught exception ends the child after its record, and the parent starts another for the remaining files.
When the parent dies, the pipe LIFE closes, and the child ends with everything it has started. RUNTIME is
``GOONDAN_JAVASCRIPT``, or empty.
"""

import contextlib
import errno
import functools
import hashlib
import importlib.machinery
import importlib.util
import json
import linecache
import logging
import os
import resource
import signal
import sys
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import CodeType, MappingProxyType, ModuleType, TracebackType
from typing import Any, Literal, NamedTuple, TextIO
from urllib.parse import quote_from_bytes, unquote_to_bytes
from weakref import WeakValueDictionary

from pydantic import BaseModel

from goondan_tasks.authoring.agent_api import AgentHandler
from goondan_tasks.authoring.connector_api import Connect
from goondan_tasks.authoring.tool_api import ToolHandler
from goondan_tasks.authoring.typed_tools import ToolDefinitionError, signature, typed_tool
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.failure import missing_package, named_error
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.machine.javascript import INSTALL, find_runtime, is_javascript, missing_runtime

_HANDLERS_HINT = "Write @tool before a function, or handlers = {'<export>': <function>, …}, at the top level."
_HANDLE_HINT = "Define `def handle(ctx, event)`, plain or async, at the top level of the file."
_REGISTER_HINT = "Define `def register(api)` or `def register(api, config)` at the top level of the file."
_CONNECT_HINT = "Define `async def connect(ctx)` at the top level of the file."
_SYNTAX_HINT = "Correct the file's Python syntax."
#: the suggestion for a file that cannot be imported
IMPORT_HINT = "Keep the top of the file to imports and definitions; work and environment belong in handlers."
#: the limit of the paths of all files that an import reads, in characters
MAX_PATHS = 500_000
#: of the names of entries' modules; the package finds the file of such a name
PACKAGE = "goondan_tasks.authoring.entry_modules"
PREFIX = f"{PACKAGE}."

_lock = threading.Lock()
#: by module name, the lock held during its import, while the module is incomplete
_importing = WeakValueDictionary[str, threading.Lock]()
_holders_lock = threading.Lock()
#: the number of :class:`EntryModules` by folder
_holders: Counter[Path] = Counter()


class EntryError(ConfigError):
    """The entry file cannot be used; ``line`` is the place of the error, or 1."""

    def __init__(self, path: Path, message: str, suggestion: str, *, line: int = 1) -> None:
        super().__init__(f"{path}:{line}: {message}", suggestion=suggestion)
        self.path = path
        self.line = line
        self.reason = message


def import_entry(path: Path) -> ModuleType:
    """Import an entry file, or wait for another thread that does. An unchanged file runs once.

    Exceptions of the file's own code are not caught; see :func:`import_failure`.

    Raises:
        EntryError: the file is missing, or is not Python.
    """
    path = path.resolve()
    try:
        source = path.read_bytes()
    except OSError as error:
        message = f"the file cannot be read: {error.strerror}"
        raise EntryError(path, message, "Check the path and its permissions.") from error
    name = _module_name(path, source)
    with _lock:
        importing = _importing.setdefault(name, threading.Lock())
    with importing:
        return sys.modules.get(name) or _run(name, _EntryLoader(name, path, source))


def _module_name(path: Path, source: bytes) -> str:
    """Return the name of an entry's module: its path without dots, and a digest of what it contains."""
    escaped = quote_from_bytes(os.fsencode(path)).replace(".", "%2E")
    return f"{PREFIX}{escaped}@{hashlib.sha256(source).hexdigest()[:16]}"


class EntryFinder:
    """Finds entry files by the names of their modules, in processes that the entry's functions start."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Return how to import an entry; ``None`` for other modules.

        Raises:
            ImportError: the file is gone, or it has changed since the name was made.
        """
        package, _, escaped = name.rpartition(".")
        if package != PACKAGE or "@" not in escaped:
            return None
        file = Path(os.fsdecode(unquote_to_bytes(escaped.partition("@")[0])))
        try:
            source = file.read_bytes()
        except OSError as error:
            message = f"{file}, whose function is needed here, cannot be read: {error.strerror}"
            raise ImportError(message, name=name, path=str(file)) from error
        if _module_name(file, source) != name:
            message = f"{file}, whose function is needed here, has changed since it was imported"
            raise ImportError(message, name=name, path=str(file))
        return _spec(name, _EntryLoader(name, file, source))


def handlers_in(module: ModuleType) -> Mapping[str, ToolHandler]:
    """Return the handlers of a tool's entry: its ``handlers``, or else its ``@tool`` functions.

    Raises:
        EntryError: there are none, or they cannot be used.
    """
    functions = _functions(module).items()
    return MappingProxyType(
        {
            name: function if (typed := typed_tool(function)) is None else typed.handler
            for name, function in functions
        }
    )


def typed_exports(module: ModuleType) -> Mapping[str, JsonObject]:
    """Return what the ``@tool`` functions of a tool's entry declare, as items of ``spec.exports``."""
    functions = _functions(module).items()
    typed = ((name, typed_tool(function)) for name, function in functions)
    return {name: {**found.export, "name": name} for name, found in typed if found is not None}


def _functions(module: ModuleType) -> Mapping[str, Any]:
    handlers = getattr(module, "handlers", None)
    if handlers is None:
        handlers = _typed_functions(module) or None
    if handlers is None:
        raise _unusable(module, "the file does not define 'handlers'", _HANDLERS_HINT)
    if not isinstance(handlers, Mapping):
        message = f"'handlers' must be a dict, not {type(handlers).__name__}"
        raise _unusable(module, message, _HANDLERS_HINT)
    for name, handler in handlers.items():
        if not isinstance(name, str) or not callable(handler):
            message = f"handlers[{name!r}] must be a function under the name of its export"
            raise _unusable(module, message, _HANDLERS_HINT)
    return handlers


def _typed_functions(module: ModuleType) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for function in vars(module).values():
        typed = typed_tool(function)
        if typed is not None and found.setdefault(name := typed.export["name"], function) is not function:
            suggestion = "Rename one of the two, or write @tool(name='…')."
            raise _unusable(module, f"two @tool functions have the name '{name}'", suggestion, function)
    return found


def handle_in(module: ModuleType) -> AgentHandler:
    """Return the ``handle`` of an agent's entry.

    Raises:
        EntryError: there is none, or it cannot be used.
    """
    handle = _function(module, "handle", _HANDLE_HINT)
    if not takes(handle, 2):
        raise _unusable(module, "'handle' cannot be called with (ctx, event)", _HANDLE_HINT, handle)
    return handle


def register_in(module: ModuleType) -> Callable[[Any, JsonObject], Any]:
    """Return the ``register`` of an extension's entry, to be called with api and config.

    Raises:
        EntryError: there is none, or it cannot be used.
    """
    register = _function(module, "register", _REGISTER_HINT)
    if takes(register, 2):
        return register
    if takes(register, 1):
        return lambda api, _: register(api)
    message = "'register' cannot be called with (api) or (api, config)"
    raise _unusable(module, message, _REGISTER_HINT, register)


def connect_in(module: ModuleType) -> Connect:
    """Return the ``connect`` of a connector's entry.

    Raises:
        EntryError: there is none, or it cannot be used.
    """
    connect = _function(module, "connect", _CONNECT_HINT)
    if not takes(connect, 1):
        raise _unusable(module, "'connect' cannot be called with (ctx)", _CONNECT_HINT, connect)
    return connect


def function_in(module: ModuleType, name: str, count: int) -> Callable[..., Any]:
    """Return the function of an entry that its resource names, which takes so many arguments.

    Raises:
        EntryError: there is none, or it takes others.
    """
    hint = f"Define `async def {name}(…)` at the top level of the file, or correct the name."
    function = _function(module, name, hint)
    if not takes(function, count):
        raise _unusable(module, f"'{name}' cannot be called with {count} arguments", hint, function)
    return function


def takes(function: Callable[..., Any], count: int) -> bool:
    """Return whether ``function`` takes ``count`` positional arguments; true if it has no signature."""
    try:
        signature(function).bind(*[None] * count)
    except TypeError:
        return False
    except ValueError:
        return True  # written in C
    return True


def _function(module: ModuleType, name: str, hint: str) -> Callable[..., Any]:
    function = getattr(module, name, None)
    if function is None:
        raise _unusable(module, f"the file does not define '{name}'", hint)
    if not callable(function):
        raise _unusable(module, f"'{name}' must be a function, not {type(function).__name__}", hint)
    return function  # type: ignore[no-any-return]  # as far as can be seen without calling it


def _unusable(module: ModuleType, message: str, hint: str, function: Any = None) -> EntryError:
    line = getattr(getattr(function, "__code__", None), "co_firstlineno", 1)
    return EntryError(Path(str(module.__file__)), message, hint, line=line)


def import_failure(path: Path, error: BaseException) -> EntryError:
    """Return an exception raised by the import of an entry file as an EntryError with the line."""
    if isinstance(error, ToolDefinitionError) and error.path == path:
        return EntryError(path, error.reason, error.suggestion, line=error.line)
    raised = repr(error) if isinstance(error, SystemExit) else named_error(error)
    message = f"importing the file raises {raised.partition(chr(10))[0][:300]}"
    suggestion = _sibling_hint(path, error) or missing_package(error) or IMPORT_HINT
    return EntryError(path, message, suggestion, line=line_in(path, error.__traceback__))


def _sibling_hint(path: Path, error: BaseException) -> str | None:
    """Say how to import a file beside the entry, if ``error`` is the import of one as a package."""
    name = (getattr(error, "name", None) or "") if isinstance(error, ModuleNotFoundError) else ""
    if not name.isidentifier() or not any((path.parent / file).exists() for file in (name, f"{name}.py")):
        return None
    return f"Write `from . import {name}`: it is a file of the bundle, and not a package."


def line_in(file: Path, trace: TracebackType | None) -> int:
    """Return the line of ``file`` in the innermost frame of a traceback, or 1."""
    line = 1
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == str(file):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line


class _EntryLoader(importlib.machinery.SourceFileLoader):
    """Runs the bytes from which the module's name was made; Python's own cache compares whole seconds."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        """Compile the file before it runs, to tell its syntax errors from those of its imports.

        Raises:
            EntryError: the file is not Python.
        """
        super().__init__(name, str(path))
        try:
            self._code = compile(source, str(path), "exec", dont_inherit=True)
        except SyntaxError as error:
            raise EntryError(path, error.msg, _SYNTAX_HINT, line=error.lineno or 1) from error
        except (ValueError, RecursionError, MemoryError) as error:
            # a NUL byte, or nesting beyond the compiler's stack
            raise EntryError(path, f"the file is not Python: {error}", _SYNTAX_HINT) from error

    def get_code(self, fullname: str) -> CodeType:
        return self._code


def _spec(name: str, loader: _EntryLoader) -> ModuleSpec:
    spec = ModuleSpec(name, loader, origin=loader.path, is_package=True)
    spec.has_location = True
    spec.submodule_search_locations = [str(Path(loader.path).parent)]
    return spec


def _run(name: str, loader: _EntryLoader) -> ModuleType:
    module = importlib.util.module_from_spec(_spec(name, loader))
    # relative imports need their package there
    sys.modules[name] = module
    with contextlib.ExitStack() as undo:
        undo.callback(sys.modules.pop, name, None)
        loader.exec_module(module)
        undo.pop_all()
    return module


class EntryModules:
    """The modules of the entries in one folder, removed when the last object for the folder is closed.

    Python keeps modules for the life of the process, and each revision of a bundle has its own folders, so
    the modules of old revisions would add up. Make an object before the first module is loaded. Only the
    modules of entries and of their relative imports (``from . import sibling``) are removed.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder.resolve()
        self._is_open = True
        with _holders_lock:
            _holders[self._folder] += 1

    def close(self) -> None:
        """Release the modules; none of their code may run any more. Calling this again does nothing."""
        with _holders_lock:
            if not self._is_open:
                return
            self._is_open = False
            _holders[self._folder] -= 1
            if _holders[self._folder] == 0:
                del _holders[self._folder]
                _remove_modules(self._folder)


def _remove_modules(folder: Path) -> None:
    """Remove the modules of a folder from all of Python's registries and caches."""
    inside = f"{folder}{os.sep}"
    entries = {
        name
        for name, module in list(sys.modules.items())
        if name.startswith(PREFIX) and str(getattr(module, "__file__", None)).startswith(inside)
    }
    for names in (sys.modules, logging.Logger.manager.loggerDict):
        for name in list(names):
            if PREFIX + name.removeprefix(PREFIX).partition(".")[0] in entries:
                names.pop(name, None)
    for place in list(sys.path_importer_cache):
        if f"{place}{os.sep}".startswith(inside):
            sys.path_importer_cache.pop(place, None)
    linecache.clearcache()


#: entries with ``handlers``, ``handle`` or ``register``; ``any`` is only imported
EntryKind = Literal["tool", "agent", "extension", "any"]

_READERS: Mapping[str, Callable[[ModuleType], Any]] = {
    "tool": handlers_in,
    "agent": handle_in,
    "extension": register_in,
    "any": lambda _: (),
}


class Entry(NamedTuple):
    """An entry file and its kind of resource."""

    kind: EntryKind
    file: Path


class ProbeRecord(BaseModel):
    """The outcome for one file: the names of its handlers, or a problem."""

    handlers: tuple[str, ...] = ()
    #: what typed handlers declare, by name
    exports: dict[str, JsonObject] = {}
    problem: str | None = None
    line: int = 1
    suggestion: str | None = None
    #: whether the process ends with this record
    is_last: bool = False
    #: whether importing the file would end a worker, or hang
    is_fatal: bool = False
    #: for a tool's file: the files read by its import and by earlier ones; empty if there are too many
    files: tuple[str, ...] = ()


def main(arguments: Sequence[str]) -> None:
    descriptor, life, max_written, runtime = arguments
    # processes started by a file must not keep the pipes open
    os.set_inheritable(int(descriptor), False)
    os.set_inheritable(int(life), False)
    threading.Thread(target=_end_with, args=[int(life)], daemon=True).start()
    if max_written != "0":
        # this also limits printed output, which goes to a file
        resource.setrlimit(resource.RLIMIT_FSIZE, (int(max_written), int(max_written)))
    records = os.fdopen(int(descriptor), "w", encoding="utf-8", errors="backslashreplace", buffering=1)
    _write(records, ProbeRecord())
    opened = _opened_files()
    entries: list[tuple[EntryKind, str]] = json.loads(sys.stdin.readline() or "[]")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for kind, file in entries:
        sys.excepthook = functools.partial(_report_uncaught, records, file)
        if is_javascript(file):
            _write(records, _inspected(kind, Path(file), runtime or None))
            continue
        try:
            module = import_entry(Path(file))
            found = _READERS[kind](module)
            is_tool = kind == "tool"
            exports = dict(typed_exports(module)) if is_tool else {}
            handlers, read = (tuple(found), _files_read(opened)) if is_tool else ((), ())
            _write(records, ProbeRecord(handlers=handlers, exports=exports, files=read))
        except EntryError as error:
            _write(records, _problem(error))
        except SystemExit as error:
            _write(records, _problem(import_failure(Path(file), error)))


def _inspected(kind: EntryKind, file: Path, wanted: str | None) -> ProbeRecord:
    """Inspect a TypeScript or JavaScript file, which another process imports."""
    runtime = find_runtime(wanted)
    if runtime is None:
        return ProbeRecord(problem=missing_runtime(wanted), suggestion=INSTALL)
    try:
        found = runtime.inspect(kind, file)
    except ValueError:
        found = None
    if found is None:
        return ProbeRecord(problem="importing the file ends the process", suggestion=IMPORT_HINT)
    return ProbeRecord.model_validate(found)


def _opened_files() -> set[str]:
    """Return a set that collects the absolute paths of files opened from now on."""
    opened: set[str] = set()

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str):
            opened.add(os.path.abspath(arguments[0]))  # noqa: PTH100 - links are not followed

    sys.addaudithook(note)
    return opened


def _files_read(opened: set[str]) -> tuple[str, ...]:
    """Return the files of all modules and all opened files, without compiled ones and those of the kernel."""
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    others = (
        file for file in opened if not file.endswith(".pyc") and not file.startswith(("/proc/", "/sys/"))
    )
    files = tuple(sorted({*filter(None, modules), *others}))
    text = "".join(files)
    return files if len(text) <= MAX_PATHS and text.isprintable() else ()  # as bytes that are not UTF-8


def _end_with(life: int) -> None:
    """End this process and its group when the other end of the pipe is closed."""
    os.read(life, 1)
    os.killpg(0, signal.SIGKILL)


def _problem(error: EntryError, *, is_last: bool = False) -> ProbeRecord:
    return ProbeRecord(problem=error.reason, line=error.line, suggestion=error.suggestion, is_last=is_last)


def _report_uncaught(
    records: TextIO, file: str, kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    failure = import_failure(Path(file), error.with_traceback(trace))
    if isinstance(error, OSError) and error.errno == errno.EFBIG:
        limit, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
        failure.reason = f"importing the file prints or writes more than {limit} bytes"
    _write(records, _problem(failure, is_last=True))


def _write(records: TextIO, record: ProbeRecord) -> None:
    records.write(record.model_dump_json() + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
