"""Where an entry file must stand: inside the bundle, and be Python (003 §13; DESIGN §6)."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.findings import ConfigCode, FieldError, Finding
from goondan_tasks.json_values import Path as FieldPath

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


def entry_path_findings(declaration: Declaration, root: Path) -> Iterator[Finding]:
    """Yield what is wrong with ``spec.entry``, without opening the file."""
    entry = declaration.value(ENTRY)
    if not isinstance(entry, str) or not entry:
        return
    error = entry_error(entry, root)
    if error is not None:
        yield declaration.finding(ENTRY, error)


def entry_file(declaration: Declaration, root: Path) -> Path | None:
    """Return the resolved entry file, or ``None`` if ``spec.entry`` does not lead to one."""
    entry = declaration.value(ENTRY)
    if not isinstance(entry, str) or not entry or entry_error(entry, root):
        return None
    return (root / entry).resolve()


def entry_error(entry: str, root: Path) -> FieldError | None:
    """Say why ``entry`` does not lead to a Python file inside ``root``; ``None`` if it does."""
    if "\0" in entry or PurePosixPath(entry).is_absolute() or PureWindowsPath(entry).drive:
        return _misplaced(f"the entry {entry!r} is no relative path")
    if ".." in PurePosixPath(entry).parts:
        return _misplaced(f"the entry '{entry}' leads out of the bundle")
    language = _LANGUAGES.get(PurePosixPath(entry).suffix.lower())
    if language:
        return FieldError(
            f"the entry '{entry}' is {language}; entries are written in Python",
            "Rewrite it as a .py file with 'handlers' (Tool), 'handle' (Agent) or 'register' (Extension).",
        )
    return _file_error(entry, root)


def _file_error(entry: str, root: Path) -> FieldError | None:
    try:
        file = (root / entry).resolve(strict=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "a circle of links"
        return FieldError(
            f"the entry '{entry[:200]}' cannot be found ({reason})",
            f"Create it, or correct the path; it starts from {root}.",
            ConfigCode.ENTRY_NOT_FOUND,
        )
    if not file.is_relative_to(root):
        return _misplaced(f"the entry '{entry}' is a link that leads out of the bundle")
    if not file.is_file():
        return FieldError(
            f"the entry '{entry}' is no file", "Name the Python file itself.", ConfigCode.ENTRY_NOT_FOUND
        )
    if file.suffix != ".py":
        return FieldError(f"the entry '{entry}' is no Python file", "Name a .py file.")
    return None


def _misplaced(message: str) -> FieldError:
    suggestion = "Write a path inside the bundle, such as ./tools/bash/handlers.py."
    return FieldError(message, suggestion, ConfigCode.ENTRY_NOT_FOUND)
