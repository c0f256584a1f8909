"""Where the files that resources name must stand: inside the bundle (003 §13; DESIGN §6)."""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.files import read_text
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
