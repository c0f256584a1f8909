"""``goondan migrate``: a bundle of the older version of the format, rewritten for today's."""

import codecs
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from broker_config.settings import Settings
from goondan_tasks.cli.bundles import counts, finding_text
from goondan_tasks.cli.options import BundleArgument, this_bundle
from goondan_tasks.cli.output import CONFIGURATION, Output, on_one_line
from goondan_tasks.errors import ConfigError
from goondan_tasks.migration import Migration, migrate_bundle

#: comments, and then a directive such as ``%YAML 1.2``
_DIRECTIVE_FIRST = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?[\r\n])*%")


def migrate(
    bundle: BundleArgument = None,
    write: Annotated[bool, typer.Option("--write", help="Write the files in place.")] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print the files and findings as one JSON document.")
    ] = False,
) -> None:
    """Rewrite a bundle's older resources for today's version of the format; comments and order stay.

    Without --write the whole bundle is printed as one file. Resources that cannot be rewritten stay as they
    are, and are told; then it ends with 3, else with 0. Python files are never changed.
    """
    path = bundle or Settings.load().bundle or this_bundle()
    migration = migrate_bundle(path)
    if write:
        _replace_files({file: migration.files[file] for file in migration.changed})
    output = Output(as_json)
    if as_json:
        output.document(_wire(migration, is_written=write))
    else:
        if not write:
            output.stream([one_text(migration.files).encode()])
        for finding in migration.findings:
            output.note(finding_text(finding))
        done = "written" if write else "to be changed"
        share = f"{len(migration.changed)} of {len(migration.files)} files"
        output.note(f"{path}: {share} {done}, {counts(migration.findings)}")
    if any(finding.level == "error" for finding in migration.findings):
        raise typer.Exit(CONFIGURATION)


def one_text(files: Mapping[Path, str]) -> str:
    """Join the files of a bundle, each behind its name; a text that is alone stays as it is."""
    if len(files) == 1:
        return next(iter(files.values()))
    parts: list[str] = []
    for file, text in files.items():
        # directives stand behind an end, and an end behind a document, be it empty
        border = "---\n...\n" if _DIRECTIVE_FIRST.match(text) else "---\n"
        line_end = "" if text.endswith(("\n", "\r")) else "\n"
        parts.append(f"{border if parts else ''}# {on_one_line(str(file))}\n{text}{line_end}")
    return "".join(parts)


def _wire(migration: Migration, *, is_written: bool) -> dict[str, object]:
    return {
        "written": is_written,
        "files": [
            {"file": str(file), "changed": file in migration.changed, "text": text}
            for file, text in migration.files.items()
        ],
        "findings": [finding.to_wire() for finding in migration.findings],
    }


def _replace_files(texts: Mapping[Path, str]) -> None:
    """Write all files or none, each with the mode and the byte order mark that it has; links stay.

    Raises:
        ConfigError: one of them cannot be written; those that were have their old text again.
    """
    with ExitStack() as leftovers:
        replacements = [_prepared(file, text, leftovers) for file, text in texts.items()]
        with ExitStack() as made:
            for one in replacements:
                with _refusal(one.file):
                    one.new.replace(one.target)
                made.callback(one.take_back)
            made.pop_all()


@dataclass(slots=True)
class _Replacement:
    """A file, and beside it its texts: the new one, and the old one until all are written."""

    #: as the bundle names it
    file: Path
    #: the file itself, if the bundle names a link
    target: Path
    new: Path
    old: Path
    is_stuck: bool = False

    def take_back(self) -> None:
        try:
            self.old.replace(self.target)
        except OSError as error:
            self.is_stuck = True
            raise ConfigError(
                f"{self.file} is rewritten, another file cannot be, and it cannot be put back:"
                f" {_reason(error)}.",
                suggestion=f"Its old text stands in {self.old}; move it back by hand.",
            ) from error

    def drop_old(self) -> None:
        if not self.is_stuck:
            self.old.unlink(missing_ok=True)


def _prepared(file: Path, text: str, leftovers: ExitStack) -> _Replacement:
    with _refusal(file):
        target = file.resolve()
        # root may write any file; what its owner says of this one holds all the same
        if not target.stat().st_mode & 0o222 or not os.access(target, os.W_OK):
            raise PermissionError(errno.EACCES, "it is read-only")
        new = _beside(target)
        leftovers.callback(new.unlink, missing_ok=True)
        one = _Replacement(file, target, new, _beside(target))
        leftovers.callback(one.drop_old)
        before = target.read_bytes()
        mark = codecs.BOM_UTF8 if before.startswith(codecs.BOM_UTF8) else b""
        for path, data in ((one.new, mark + text.encode()), (one.old, before)):
            path.write_bytes(data)
            shutil.copymode(target, path)
    return one


def _beside(target: Path) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(descriptor)
    return Path(name)


@contextmanager
def _refusal(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{file} cannot be written: {_reason(error)}; nothing has been changed.",
            suggestion="Check the permissions of the file and its directory.",
        ) from error


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
