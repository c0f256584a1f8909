"""The connectors of ``@goondan/base``: ``connectors show`` and ``connectors copy``."""

import ast
from collections.abc import Mapping
from operator import itemgetter
from pathlib import Path
from typing import Annotated

from goondan_tasks.cli.bundles import write_new
from goondan_tasks.cli.options import argument
from goondan_tasks.cli.output import Columns, Output, listing
from goondan_tasks.cli.session import AsJson, Session, chosen_bundle, takes_session
from goondan_tasks.connectors.connections import built_in
from goondan_tasks.contract.errors import ConfigError
from goondan_tasks.contract.messages import JsonObject
from goondan_tasks.contract.wording import closest, printable

_COLUMNS: Columns[JsonObject] = {"connector": itemgetter("name"), "about": itemgetter("about")}


def show(
    name: Annotated[str | None, argument("[NAME]", "The connector; default: a list of all.")] = None,
    as_json: AsJson = False,
) -> None:
    """Show which connectors are built in, or the declaration and the code of one."""
    output, known = Output(as_json), built_in()
    if name is None:
        rows: list[JsonObject] = [{"name": one, "about": _about(code)} for one, (_, code) in known.items()]
        output.write(listing(rows, _COLUMNS, wire=dict, none="No connectors are built in."))
        return
    texts = {str(file): file.read_text(encoding="utf-8") for file in _files(known, name)}
    output.give({"files": texts}, "\n".join(f"# {file}\n{text}" for file, text in texts.items()))


@takes_session
def copy(session: Session, name: Annotated[str, argument("NAME", "The connector.")]) -> None:
    """Copy a built-in connector into the bundle, where it takes its place. No file is overwritten."""
    bundle = chosen_bundle(session.settings)
    folder = (bundle if bundle.is_dir() else bundle.parent) / "connectors"
    texts = {folder / file.name: file.read_text(encoding="utf-8") for file in _files(built_in(), name)}
    write_new(texts)
    files = [str(file) for file in texts]
    session.output.give({"files": files}, "\n".join(f"wrote {printable(file)}" for file in files))


def _files(known: Mapping[str, tuple[Path, Path]], name: str) -> tuple[Path, Path]:
    if name in known:
        return known[name]
    meant = closest(name, known)
    guess = f"Did you mean {meant!r}? " if meant else ""
    raise ConfigError(
        f"There is no built-in connector {name!r}.", suggestion=f"{guess}They are: {', '.join(known)}."
    )


def _about(file: Path) -> str:
    """Return the first sentence of a file's docstring."""
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".").replace("``", "")
