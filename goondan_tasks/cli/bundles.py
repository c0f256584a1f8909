"""Commands for bundles on disk: ``init``, ``validate``, ``schema`` and ``migrate``."""

import codecs
import errno
import functools
import importlib.util
import itertools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
import yaml
from rich.text import Text

from broker_config.settings import Settings
from goondan_tasks.bundle import Bundle, Finding
from goondan_tasks.bundle.binding import bound_exports
from goondan_tasks.bundle.bundle import inspect_resources
from goondan_tasks.bundle.entries import has_auto_exports
from goondan_tasks.bundle.inventory import Inventory, name_error, read_inventory
from goondan_tasks.bundle.json_schema import bundle_schema
from goondan_tasks.bundle.models import PROVIDER_PACKAGES
from goondan_tasks.bundle.requirements import needs_of, requirement_text, unmet
from goondan_tasks.bundle.resources import ToolExport, ToolResource
from goondan_tasks.cli.options import BundleArgument, Install, argument, flag, option, this_bundle
from goondan_tasks.cli.output import (
    CONFIGURATION,
    Output,
    local_time,
)
from goondan_tasks.contract.errors import PACKAGE_NOT_INSTALLED, ConfigError
from goondan_tasks.contract.messages import JsonObject, iso_time, wall_clock
from goondan_tasks.contract.wording import counted, on_one_line, printable
from goondan_tasks.instances.earlier import earlier_workspace
from goondan_tasks.machine import javascript
from goondan_tasks.migration import migrate_bundle

#: a directive such as ``%YAML 1.2``, after comments
_DIRECTIVE_FIRST = re.compile(r"(?:[ \t]*(?:#[^\r\n]*)?[\r\n])*%")
_STYLES = {"error": "bold red", "warning": "bold yellow"}
#: ``-P``: no module is imported from the current directory
_PIP = (sys.executable, "-P", "-m", "pip")


class FindingFormat(StrEnum):
    """The form of findings; ``github`` is that of annotations in a workflow."""

    TEXT = "text"
    JSON = "json"
    GITHUB = "github"


def validate(
    bundle: BundleArgument = None,
    strict: Annotated[bool, flag("Treat warnings as errors.", "--strict")] = False,
    form: Annotated[FindingFormat | None, flag("The form of the findings.", "--format")] = None,
    install: Install = False,
    as_json: Annotated[bool, flag("The same as --format json.", "--json")] = False,
) -> None:
    """Check a bundle, its references and its entry files; print all findings.

    The exit code is 3 if there is an error (with --strict also for a warning), otherwise 0.
    """
    if as_json and form not in {None, FindingFormat.JSON}:
        raise typer.BadParameter("--json goes only with --format json.")
    settings = Settings.load()
    path = _bundle_of(bundle)
    output = Output(as_json or form is FindingFormat.JSON)
    if install:
        install_requirements(path, output)
    checked, findings, scope = inspect_resources(path)
    is_valid = not any(finding.level == "error" or strict for finding in findings)
    exports = dict(_auto_exports(scope.own))
    if output.as_json:
        wire = [
            {"name": name, "description": export.description, "parameters": export.parameters}
            for name, export in exports.items()
        ]
        document = {"valid": is_valid, "findings": [finding.to_wire() for finding in findings]}
        due = {name: [iso_time(slot) for slot in slots] for name, slots in _next_slots(checked)}
        more = {"autoExports": wire, "schedules": due}
        output.document(document | {name: value for name, value in more.items() if value})
    else:
        for name, export in exports.items() if form is not FindingFormat.GITHUB else ():
            output.note(_signature(name, export))
        for finding in findings:
            output.print(_annotation(finding) if form is FindingFormat.GITHUB else finding_text(finding))
        output.note(f"{path}: {counts(findings)}")
        for name, slots in _next_slots(checked):
            times = ", ".join(local_time(slot, "%Y-%m-%d %H:%M:%S %Z") for slot in slots) or "never"
            output.note(f"Schedule/{name}: next due {times}")
        if checked is not None:
            output.note(_workspace_text(checked, settings))
    if not is_valid:
        raise typer.Exit(CONFIGURATION)


def _next_slots(bundle: Bundle | None) -> Iterator[tuple[str, list[int]]]:
    """Yield the next three slots of each Schedule, in ms, by this machine's clock."""
    for name, resource in bundle.schedules.items() if bundle is not None else ():
        yield name, list(itertools.islice(resource.record("").timing.after(wall_clock()), 3))


def _workspace_text(bundle: Bundle, settings: Settings) -> str:
    """Name the bundle's workspace, and until that is used also the one of earlier versions."""
    text = f"workspace: {bundle.workspace_name(settings.workspace, settings.swarm)}"
    earlier = earlier_workspace(bundle, settings)
    return text if earlier is None or earlier.is_past else f"{text}\n{earlier.message}\n{earlier.remedy}"


def _auto_exports(inventory: Inventory) -> Iterator[tuple[str, ToolExport]]:
    """Yield by full name the exports that entries declare, as models see them."""
    for tool in inventory.of_kind("Tool"):
        if has_auto_exports(tool) and isinstance(tool.resource, ToolResource):
            for bound in bound_exports(tool.resource, inventory.root):
                yield bound.name, bound.export


def _signature(name: str, export: ToolExport) -> str:
    """Write an export in one line, such as ``notes__find(word: string, limit?: integer)  Finds notes``."""
    parameters = export.parameters or {}
    required = parameters.get("required", ())
    arguments = ", ".join(
        f"{argument}{'' if argument in required else '?'}: {_type(schema)}"
        for argument, schema in parameters.get("properties", {}).items()
    )
    summary = (export.description or "").partition("\n")[0]
    return printable(f"{name}({arguments})  {summary}".rstrip())


def _type(schema: Any) -> str:
    """Write the type of a JSON Schema in a few words."""
    if values := schema.get("enum", [schema["const"]] if "const" in schema else []):
        return " | ".join(json.dumps(value, ensure_ascii=False) for value in values)
    if "anyOf" in schema:
        return " | ".join(map(_type, schema["anyOf"]))
    if "$ref" in schema:
        return str(schema["$ref"]).rpartition("/")[2]
    if schema.get("type") == "array" and schema.get("items"):
        return f"{_type(schema['items'])}[]"
    return str(schema.get("type", "any"))


def schema(as_json: Annotated[bool, flag("No effect: the output is always JSON.", "--json")] = False) -> None:
    """Print the JSON Schema of a bundle's YAML, for editors.

    It covers the fields of all kinds and their types; `goondan validate` finds other errors.
    """
    Output(as_json=True).document(bundle_schema())


def migrate(
    bundle: BundleArgument = None,
    write: Annotated[bool, flag("Rewrite the files in place.", "--write")] = False,
    as_json: Annotated[bool, flag("Print the files and findings as one JSON document.", "--json")] = False,
) -> None:
    """Rewrite a bundle's older resources for the current format; comments and order stay.

    Without --write the whole bundle is printed as one file. Resources that cannot be rewritten are reported
    and left as they are; the exit code is then 3, otherwise 0. Python files are never changed.
    """
    path = _bundle_of(bundle)
    migration = migrate_bundle(path)
    if write:
        _replace_files({file: migration.files[file] for file in migration.changed})
    output = Output(as_json)
    if as_json:
        files = [
            {"file": str(file), "changed": file in migration.changed, "text": text}
            for file, text in migration.files.items()
        ]
        findings = [finding.to_wire() for finding in migration.findings]
        output.document({"written": write, "files": files, "findings": findings})
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


def install_requirements(bundle: Path, output: Output) -> None:
    """Install the packages of a bundle's ``spec.requirements`` into this Python, unless all are installed.

    pip gets the whole list, to find versions that fit together. Its output goes to stderr.

    Raises:
        ConfigError: there is no pip, or it fails.
    """
    needed = [need.requirement for need in needs_of(read_inventory(bundle)[0])]
    missing = [requirement_text(one) for one in needed if unmet(one)]
    if not missing:
        return output.note(f"{bundle}: every requirement is met" if needed else f"{bundle}: no requirements")
    names = ", ".join(missing)
    output.note(f"Installing {names} into {sys.prefix}")
    failed = functools.partial(ConfigError, code=PACKAGE_NOT_INSTALLED)
    if importlib.util.find_spec("pip") is None:
        hint = f"Install them in another way, or install pip: {sys.executable} -m ensurepip"
        raise failed(f"There is no pip in {sys.prefix} to install {names}.", suggestion=hint)
    command = [*_PIP, "install", "--disable-pip-version-check", *map(str, needed)]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        for line in pip.stdout or ():
            output.note(line.rstrip())
    if pip.returncode:
        raise failed(
            f"pip could not install {names}: it exited with status {pip.returncode}.",
            suggestion="See its output above; correct spec.requirements, or this Python's environment.",
        )
    return importlib.invalidate_caches()


def _bundle_of(given: Path | None) -> Path:
    return given or Settings.load().bundle or this_bundle()


def finding_text(finding: Finding) -> Text:
    """Write a finding as compilers do: place, level, code and message, and below it the suggestion."""
    text = Text(printable(f"{finding.file}:{finding.line}: "))
    text.append(finding.level, style=_STYLES[finding.level])
    text.append(printable(f" {finding.code} {finding.subject_and_message}"))
    text.append(printable(f"\n    {finding.suggestion}"), style="dim")
    return text


def counts(findings: Sequence[Finding]) -> str:
    if not findings:
        return "no findings"
    errors = sum(finding.level == "error" for finding in findings)
    return f"{counted(errors, 'error')}, {counted(len(findings) - errors, 'warning')}"


def _annotation(finding: Finding) -> str:
    """Write a workflow command of GitHub, with its own escapes for ``%``, line ends, ``:`` and ``,``."""

    def data(text: str) -> str:
        return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")

    file, code = (data(text).replace(":", "%3A").replace(",", "%2C") for text in (finding.file, finding.code))
    message = data(f"{finding.subject_and_message}. {finding.suggestion}")
    return f"::{finding.level} file={file},line={finding.line},title={code}::{message}"


def one_text(files: Mapping[Path, str]) -> str:
    """Join the files of a bundle, each after its name; a single file stays as it is."""
    if len(files) == 1:
        return next(iter(files.values()))
    parts: list[str] = []
    for file, text in files.items():
        # a directive must follow an end mark, which must follow a document, if only an empty one
        border = "---\n...\n" if _DIRECTIVE_FIRST.match(text) else "---\n"
        line_end = "" if text.endswith(("\n", "\r")) else "\n"
        parts.append(f"{border if parts else ''}# {on_one_line(str(file))}\n{text}{line_end}")
    return "".join(parts)


def _replace_files(texts: Mapping[Path, str]) -> None:
    """Write all files or none; each keeps its mode and byte order mark, and links stay.

    Raises:
        ConfigError: one of them cannot be written; the others are restored.
    """
    leftovers: set[Path] = set()
    prepared: list[tuple[Path, Path, Path, Path]] = []
    try:
        for file, text in texts.items():
            with _refusal(file):
                target = file.resolve()
                # root can write any file, but the mode counts for root too
                if not target.stat().st_mode & 0o222 or not os.access(target, os.W_OK):
                    raise PermissionError(errno.EACCES, "it is read-only")
                old = target.read_bytes()
                mark = codecs.BOM_UTF8 if old.startswith(codecs.BOM_UTF8) else b""
                new = _written_beside(target, mark + text.encode(), leftovers)
                prepared.append((file, target, new, _written_beside(target, old, leftovers)))
        with ExitStack() as undo:
            for file, target, new, kept in prepared:
                with _refusal(file):
                    new.replace(target)
                undo.callback(_put_back, file, target, kept, leftovers)
            undo.pop_all()
    finally:
        for path in leftovers:
            path.unlink(missing_ok=True)


def _written_beside(target: Path, data: bytes, leftovers: set[Path]) -> Path:
    descriptor, name = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    os.close(descriptor)
    path = Path(name)
    leftovers.add(path)
    path.write_bytes(data)
    shutil.copymode(target, path)
    return path


def _put_back(file: Path, target: Path, kept: Path, leftovers: set[Path]) -> None:
    try:
        kept.replace(target)
    except OSError as error:
        leftovers.discard(kept)
        raise ConfigError(
            f"{file} was rewritten, but another file cannot be, and it cannot be restored: {_reason(error)}.",
            suggestion=f"Its old text is in {kept}; move that back by hand.",
        ) from error


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


_STARTER = Path(__file__).parent / "starter"
#: stands for the bundle's name in the files of :data:`_STARTER`
_NAME = "my-swarm"
#: stands for the spec of the model of ``--model``, in this file
_MODEL_SPEC, _MODEL_FILE = "{ provider: openai, model: gpt-5 }", "assistant.yaml"
_SCHEMA_FILE = ".goondan/schema.json"
#: the types for TypeScript, and where ``tsconfig.json`` says that they are
_TYPES, _TYPES_FOLDER = javascript.STARTED_IN / "types", ".goondan/types"
#: tells editors where the schema of a document is
_EDITOR_LINE = f"# yaml-language-server: $schema={_SCHEMA_FILE}\n"


class _Kind(NamedTuple):
    """A kind of bundle: the folders of its files, and what to type next."""

    folders: tuple[str, ...]
    #: typed while ``goondan dev`` runs
    call: str
    #: typed before it
    needs: tuple[str, ...] = ()


_KINDS: Mapping[str, _Kind] = {
    "tool": _Kind(("tool",), """goondan call writer text__uppercase '{"text": "hello"}'"""),
    "typescript": _Kind(("typescript",), """goondan call writer text__uppercase '{"text": "hello"}'"""),
    "agent": _Kind(("tool", "agent"), "goondan request editor 'hello agents'"),
    "model": _Kind(("tool", "model"), "goondan chat assistant", ("pip install 'goondan-workers[models]'",)),
    "mcp": _Kind(
        ("mcp",),
        """goondan call clerk time__get_current_time '{"timezone": "Asia/Seoul"}'""",
        ("pip install 'goondan-workers[mcp]' mcp-server-time",),
    ),
}


def init(
    directory: Annotated[Path, argument("DIR", "The directory to write to; created if missing.")] = Path(),
    tool: Annotated[bool, flag("Write an agent with a typed tool; the default.", "--tool")] = False,
    typescript: Annotated[bool, flag("Write an agent with a tool in TypeScript.", "--typescript")] = False,
    agent: Annotated[bool, flag("Also write agents that act by themselves.", "--agent")] = False,
    model: Annotated[
        str | None,
        option("MODEL", "Also write an agent that thinks with this model: PROVIDER:MODEL, or URL#MODEL."),
    ] = None,
    mcp: Annotated[bool, flag("Write an agent with the tools of an MCP server.", "--mcp")] = False,
    name: Annotated[str | None, option("NAME", "The bundle's name. Default: the directory's.")] = None,
    install: Install = False,
    as_json: Annotated[bool, flag("Print one JSON document on stdout.", "--json")] = False,
) -> None:
    """Write a small bundle that runs, with a test. Existing files are never overwritten."""
    flags = {"tool": tool, "typescript": typescript, "agent": agent, "model": model is not None, "mcp": mcp}
    chosen = [kind for kind, is_chosen in flags.items() if is_chosen]
    if len(chosen) > 1:
        raise typer.BadParameter("choose only one of --tool, --typescript, --agent, --model and --mcp.")
    kind = _KINDS[chosen[0] if chosen else "tool"]
    texts = _texts(kind, _derived_name(directory) if name is None else _checked_name(name))
    spec = {} if model is None else model_spec(model)
    if spec:
        written = yaml.safe_dump(spec, default_flow_style=True, sort_keys=False, width=1_000)
        texts[_MODEL_FILE] = texts[_MODEL_FILE].replace(_MODEL_SPEC, written.strip())
    files = [directory / path for path in texts]
    write_new(dict(zip(files, texts.values(), strict=True)))
    place = shlex.quote(str(directory))
    dev, test = f"goondan dev {place}", f"python -m pytest {place}"
    text = "\n".join(f"wrote {printable(str(file))}" for file in files)
    needs = [*kind.needs, *_key_step(spec)]
    first = "\n".join(f"  {step}" for step in (*needs, dev))
    note = (
        f"Next:\n{first}\n"
        f"In another terminal, after the export line that dev prints:\n  {kind.call}\nThe test:\n  {test}"
    )
    steps = [*needs, dev, kind.call, test]
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


def _key_step(spec: JsonObject) -> list[str]:
    """Return the command that sets the key of a model's provider, if its variable is known."""
    package = PROVIDER_PACKAGES.get(spec.get("provider", ""))
    return [] if package is None or "baseUrl" in spec else [f"export {package.upper()}_API_KEY=…"]


def model_spec(model: str) -> JsonObject:
    """Return the spec of the Model that an option names.

    Raises:
        ConfigError: it is neither PROVIDER:MODEL nor a URL, or the server does not list its models.
    """
    if not model.startswith(("http://", "https://")):
        provider, _, name = model.partition(":")
        if not name:
            raise ConfigError(
                f"{model!r} is not a model.",
                suggestion="Write openai:gpt-5, or a server's URL, as in http://127.0.0.1:8000/v1#NAME.",
            )
        return {"provider": provider, "model": name}
    url, _, name = model.partition("#")
    if not name:
        import http.client  # only here: they take 20 ms
        import urllib.request

        try:
            with urllib.request.urlopen(f"{url}/models", timeout=10) as answer:  # noqa: S310 - http, see above
                name = json.load(answer)["data"][0]["id"]
        except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
            raise ConfigError(
                f"{url} does not list its models: {error}", suggestion=f"Name one: {url}#NAME."
            ) from error
    return {"provider": "openai-chat", "model": name, "baseUrl": url, "apiKey": {"value": "none"}}


def _derived_name(directory: Path) -> str:
    made = re.sub(r"[^a-z0-9._-]+", "-", Path(os.path.abspath(directory)).name.lower()).strip("._-")  # noqa: PTH100
    if name_error("Package", made) is not None:
        raise typer.BadParameter(f"{str(directory)!r} gives no valid name; choose one with --name.")
    return made


def _checked_name(name: str) -> str:
    if error := name_error("Package", name):
        raise typer.BadParameter(f"{error.message}. {error.suggestion}")
    return name


def write_new(texts: Mapping[Path, str]) -> None:
    """Write all files or none.

    Raises:
        ConfigError: one cannot be written.
        typer.BadParameter: one exists already.
    """
    try:
        if present := [str(file) for file in texts if os.path.lexists(file)]:
            raise typer.BadParameter(f"{', '.join(present)} exists already; nothing was written.")
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
