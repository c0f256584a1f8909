"""``goondan init``: a small bundle that runs, with a test."""

import json
import os
import re
import shlex
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from goondan_tasks import javascript
from goondan_tasks.bundle.inventory import name_error
from goondan_tasks.bundle.json_schema import bundle_schema
from goondan_tasks.cli.bundles import install_requirements
from goondan_tasks.cli.options import Install, argument, flag, option
from goondan_tasks.cli.output import Output, printable
from goondan_tasks.errors import ConfigError

_STARTER = Path(__file__).parent / "starter"
#: what the files of :data:`_STARTER` have in place of the bundle's name
_NAME = "my-swarm"
_SCHEMA_FILE = ".goondan/schema.json"
#: of tools and extensions in TypeScript, and where editors find them by the ``tsconfig.json``
_TYPES, _TYPES_FOLDER = Path(javascript.__file__).with_name("node") / "types", ".goondan/types"
#: tells editors where the schema is, of one document
_EDITOR_LINE = f"# yaml-language-server: $schema={_SCHEMA_FILE}\n"


class _Kind(NamedTuple):
    """A bundle to write: the folders of its files, and what to type next."""

    folders: tuple[str, ...]
    #: while ``goondan dev`` runs
    call: str
    #: before it
    needs: tuple[str, ...] = ()


_KINDS: Mapping[str, _Kind] = {
    "tool": _Kind(("tool",), """goondan call writer text__uppercase '{"text": "hello"}'"""),
    "typescript": _Kind(("typescript",), """goondan call writer text__uppercase '{"text": "hello"}'"""),
    "agent": _Kind(("tool", "agent"), "goondan request editor 'hello agents'"),
    "mcp": _Kind(
        ("mcp",),
        """goondan call clerk time__get_current_time '{"timezone": "Asia/Seoul"}'""",
        ("pip install 'goondan-workers[mcp]' mcp-server-time",),
    ),
}


def init(
    directory: Annotated[
        Path, argument("DIR", "The directory to write; created if it does not exist.")
    ] = Path(),
    tool: Annotated[bool, flag("An agent with a typed tool; the default.", "--tool")] = False,
    typescript: Annotated[bool, flag("An agent with a tool in TypeScript.", "--typescript")] = False,
    agent: Annotated[bool, flag("Also agents that act by themselves.", "--agent")] = False,
    mcp: Annotated[bool, flag("An agent with the tools of an MCP server.", "--mcp")] = False,
    name: Annotated[str | None, option("NAME", "The bundle's name; else made from the directory's.")] = None,
    install: Install = False,
    as_json: Annotated[bool, flag("Print one JSON document on stdout.", "--json")] = False,
) -> None:
    """Write a small bundle that runs, and a test of it. Existing files are never overwritten."""
    flags = {"tool": tool, "typescript": typescript, "agent": agent, "mcp": mcp}
    chosen = [kind for kind, is_chosen in flags.items() if is_chosen]
    if len(chosen) > 1:
        raise typer.BadParameter("choose one of --tool, --typescript, --agent and --mcp.")
    kind = _KINDS[chosen[0] if chosen else "tool"]
    texts = _texts(kind, _name_of(directory) if name is None else _usable(name))
    files = [directory / path for path in texts]
    _write(dict(zip(files, texts.values(), strict=True)))
    place = shlex.quote(str(directory))
    dev, test = f"goondan dev {place}", f"python -m pytest {place}"
    text = "\n".join(f"wrote {printable(str(file))}" for file in files)
    first = "\n".join(f"  {step}" for step in (*kind.needs, dev))
    note = (
        f"Next:\n{first}\n"
        f"In another terminal, after the export line that dev prints:\n  {kind.call}\nThe test:\n  {test}"
    )
    steps = [*kind.needs, dev, kind.call, test]
    if install:
        install_requirements(directory, Output(as_json))
    document = {"bundle": str(directory), "files": [str(file) for file in files], "next": steps}
    Output(as_json).give(document, text, note)


def _texts(kind: _Kind, name: str) -> dict[str, str]:
    """Return the content of each file by its path in the bundle."""
    folders = [_STARTER / folder for folder in kind.folders]
    files = [(folder, file) for folder in folders for file in sorted(folder.rglob("*.*"))]
    texts = {
        file.relative_to(folder).as_posix(): file.read_text(encoding="utf-8").replace(_NAME, name)
        for folder, file in files
        if file.suffix in {".py", ".ts", ".yaml", ".json"}
    }
    if "typescript" in kind.folders:
        texts |= {f"{_TYPES_FOLDER}/{file.name}": file.read_text("utf-8") for file in _TYPES.glob("*.d.ts")}
    for path, text in texts.items():
        if path.endswith(".yaml"):
            texts[path] = _EDITOR_LINE + text.replace("---\n", f"---\n{_EDITOR_LINE}")
    return {**texts, _SCHEMA_FILE: json.dumps(bundle_schema()) + "\n"}


def _name_of(directory: Path) -> str:
    """Make a name of a directory's."""
    made = re.sub(r"[^a-z0-9._-]+", "-", Path(os.path.abspath(directory)).name.lower()).strip("._-")  # noqa: PTH100
    if name_error("Package", made) is not None:
        raise typer.BadParameter(f"{str(directory)!r} makes no name for a bundle: choose one with --name.")
    return made


def _usable(name: str) -> str:
    if error := name_error("Package", name):
        raise typer.BadParameter(f"{error.message}. {error.suggestion}")
    return name


def _write(texts: Mapping[Path, str]) -> None:
    """Write all files or none.

    Raises:
        ConfigError: one cannot be written.
        typer.BadParameter: one is there already.
    """
    try:
        if present := [str(file) for file in texts if os.path.lexists(file)]:
            raise typer.BadParameter(f"{', '.join(present)} is there already; nothing has been written.")
        with ExitStack() as undo:
            for file, text in texts.items():
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("x", encoding="utf-8") as new:
                    undo.callback(file.unlink)
                    new.write(text)
            undo.pop_all()
    except OSError as error:
        raise ConfigError(
            f"The bundle cannot be written: {error}.", suggestion="Choose a directory that you may write."
        ) from error
