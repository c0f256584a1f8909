"""The check of a changed bundle, and of the limits of an agent's changeset.

Validation sees exactly the files that the commit would have. An agent's changeset passes three checks:

- Files (``unnamed_files``): does the policy allow each file as the kind that the loader takes it for? A text
  becomes code when a resource names it as its entry, in whatever folder it is.
- Resources (``displaced_resources``): does a resource replace a built-in one, or reach, through a selector's
  labels, Agents that the policy does not allow to change?
- Permissions (``changed_permissions``), unless the Swarm says ``allowPolicyChanges: true``. These are the
  Swarms and their ``policy``; OAuthApps; Models; all fields of Agents and Tools except their behaviour
  (``_BEHAVIOUR``), so that a limit added to the format later is protected from the start; the way an export
  is run, its approval and its tokens. The comparison is of the meaning of resources, with overrides and
  defaults applied, not of their text or place. A function is also identified by its entry file and export:
  it keeps its rules under another name.
"""

import contextlib
import itertools
import math
import os
import posixpath
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Any

from goondan_tasks.bundle import BoundTool, Bundle, Finding
from goondan_tasks.bundle.binding import REQUIRED_TOOLS_GUARD, Scope, bound_exports
from goondan_tasks.bundle.bundle import inspect_resources
from goondan_tasks.bundle.entries import ENTRY, typed_entries
from goondan_tasks.bundle.fields import RATE_PERIODS_MS
from goondan_tasks.bundle.findings import ConfigCode
from goondan_tasks.bundle.inventory import bundle_files, is_document_name
from goondan_tasks.bundle.resources import AgentResource, RunPolicy, ToolResource
from goondan_tasks.bundle.workspaces import changed_workspace
from goondan_tasks.changesets.policy import ChangesetRules, is_text
from goondan_tasks.revisions.checkouts import Folder
from goondan_tasks.revisions.git import LINK, Changes, Repository

#: limit of the imports of all entry files; longer than that of one, so that an entry that hangs is named
IMPORT_SECONDS = 90.0


@dataclass(frozen=True, slots=True)
class Layout:
    """The kinds of the files of one revision, by path. A link has the kind of its target."""

    #: files that declare resources, or could, as a link of such a name; and every link on the way to them
    documents: frozenset[str]
    #: files that may be run, imported or read as settings: entries, and all but texts and images; and every
    #: link on the way to them
    code: frozenset[str]
    #: the entry files of the bundle's resources, as written and as resolved, without the links between: a
    #: pattern that matches an entry allows code
    entries: frozenset[str]
    #: links to a directory, to nothing, or out of the bundle
    odd_links: frozenset[str]

    @classmethod
    def of(cls, folder: Path, path: Path, scope: Scope, bundle: Bundle | None) -> "Layout":
        """Read the layout of ``folder``, a resolved path; the bundle is ``path`` in it. Raises OSError."""
        found = list(Folder(folder).found())
        links = [item.path for item in found if item.mode == LINK]
        entries = [folder / entry for entry in _entries(scope, bundle)]
        code = [folder / item.path for item in found if not is_text(item.path)]
        ends = {link: Path(os.path.realpath(folder / link)) for link in links}
        odd = (link for link, end in ends.items() if not (end.is_file() and end.is_relative_to(folder)))
        documents = _with_links({*bundle_files(folder), *bundle_files(path)}, folder)
        return cls(
            documents=documents | {link for link in links if is_document_name(link)},
            code=_with_links([*code, *entries], folder),
            entries=_inside_of(folder, _both_ends(entries)),
            odd_links=frozenset(odd),
        )


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of validating one revision; paths start from the bundle's folder."""

    #: ``None`` if it has errors
    bundle: Bundle | None
    findings: list[Finding]
    #: the declaring file of each resource, by ``Kind/name``
    files: Mapping[str, str]
    layout: Layout
    #: its resources, and those of the built-in package
    scope: Scope
    #: the exports of both, without the Agents' overrides
    exports: tuple[BoundTool, ...] = ()
    #: whether ``@tool`` functions declare exports, which only importing their files tells
    is_typed: bool = False

    @property
    def errors(self) -> list[Finding]:
        """The findings that make it invalid."""
        return [finding for finding in self.findings if finding.level == "error"]


@dataclass(frozen=True, slots=True)
class BundleCheck:
    """Validates revisions of one bundle, in a temporary directory."""

    repository: Repository
    #: the bundle from its folder: a file's name, or ``.``
    inside: str = "."
    #: the name of the Swarm whose policy counts, if one is chosen
    swarm: str | None = None

    def check(self, tree: str, *, import_entries: bool = True) -> Checked:
        """Validate the bundle of a tree; entry files are imported in child processes with limits.

        Without ``import_entries`` none of its code is run, and declarations of ``@tool`` functions are
        missing.

        Raises:
            GitError, OSError: its files cannot be read or written.
        """
        with tempfile.TemporaryDirectory(prefix="goondan-check-") as name:
            folder = Path(name).resolve()
            self.repository.write_files(tree, folder)
            path = folder / self.inside
            bundle, found, scope = inspect_resources(
                path,
                import_entries=import_entries,
                import_typed=import_entries,
                import_seconds=IMPORT_SECONDS,
            )
            findings = [_without(folder, finding) for finding in found]
            declared = scope.own.declarations if bundle else ()
            files = {it.label: _inside(it.document.file, folder) for it in declared}
            layout = Layout.of(folder, path, scope, bundle)
            exports = tuple(_exports(scope)) if bundle else ()
            is_typed = bool(typed_entries(scope.own))
            return Checked(bundle, findings, files, layout, scope, exports, is_typed)

    def errors(self, after: Checked, before: Checked) -> list[Finding]:
        """Return the reasons why a revision cannot replace another one."""
        if after.bundle is None or before.bundle is None:
            return after.errors
        reason = changed_workspace(before.bundle, after.bundle, self.swarm)
        return [*after.errors, *([_moved(after, reason)] if reason else [])]


def _moved(after: Checked, reason: str) -> Finding:
    package = after.bundle.package if after.bundle else None
    label = f"Package/{package.name}" if package else ""
    return Finding(
        level="error",
        code=ConfigCode.SCHEMA_INVALID.value,
        message=reason,
        file=after.files.get(label) or next(iter(after.files.values()), "."),
        line=1,
        path="metadata.name",
        resource=label,
        suggestion=(
            "Keep the names of the Package and the Swarm; to change them a person commits with git, "
            "and restarts all workers."
        ),
    )


def _without(folder: Path, finding: Finding) -> Finding:
    # the temporary folder will be gone
    def inside(text: str) -> str:
        return text.replace(f"{folder}/", "").replace(f"{folder}", "the changeset's directory")

    return replace(
        finding,
        message=inside(finding.message),
        file=inside(finding.file),
        suggestion=inside(finding.suggestion),
    )


def _inside(file: str, folder: Path) -> str:
    path = Path(file)
    return str(path.relative_to(folder)) if path.is_relative_to(folder) else file


def _entries(scope: Scope, bundle: Bundle | None) -> Iterator[str | Path]:
    # as the resources and the Agents' overrides write them
    for declaration in scope.own.declarations:
        entry = declaration.value(ENTRY)
        if isinstance(entry, str) and entry and "\0" not in entry:
            yield posixpath.normpath(entry)
    if bundle is None:
        return
    for agent in bundle.agents:
        yield from (tool.entry_path for tool in bundle.bound_tools(agent).values())
        yield from (extension.entry_path for extension in bundle.bound_extensions(agent))


def _exports(scope: Scope) -> Iterator[BoundTool]:
    for package in filter(None, (scope.base, scope.own)):
        for declaration in package.of_kind("Tool"):
            if isinstance(declaration.resource, ToolResource):
                yield from bound_exports(declaration.resource, package.root)


def _both_ends(paths: Iterable[Path]) -> set[Path]:
    # the paths, and the targets of links in them; unlike Path.resolve, realpath accepts circular links
    return {end for path in paths for end in (path, Path(os.path.realpath(path)))}


def _with_links(paths: Iterable[Path], folder: Path) -> frozenset[str]:
    """Return both ends of paths, and every link between, directories included, that are inside ``folder``."""
    found = _both_ends(paths)
    pending, seen = list(found), set[Path]()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        pending.append(path.parent)
        place = Path(os.path.realpath(path.parent), path.name)
        with contextlib.suppress(OSError):  # it is not a link
            pending.append(place.parent / place.readlink())
            found.add(place)
    return _inside_of(folder, found)


def _inside_of(folder: Path, paths: Iterable[Path]) -> frozenset[str]:
    return frozenset(str(path.relative_to(folder)) for path in paths if path.is_relative_to(folder))


_NO_DOCUMENT = "it declares resources, and no pattern for it in the policy ends in .yaml or .yml"
_NO_CODE = "it may be code or settings, and no pattern for it in the policy ends in its suffix or is its name"
_NO_ENTRY = "it would become an entry, and no pattern for it in the policy names code"
_NO_LINK = "it is a link to a directory, or to nothing, and no pattern for it in the policy names code"
_KINDS = ("Tool", "Extension")


def unnamed_files(before: Checked, after: Checked, changes: Changes, rules: ChangesetRules) -> dict[str, str]:
    """Return the changed files that the policy does not allow as the kind that they are, with the reasons."""
    refused: dict[str, str] = {}
    old, new = before.layout, after.layout
    for path in changes:
        if path in old.documents | new.documents and not rules.allow_document(path):
            refused[path] = _NO_DOCUMENT
        elif rules.allow_code(path, old.entries):
            continue
        elif path in old.code | new.code:
            refused[path] = _NO_CODE
        elif path in old.odd_links:
            refused[path] = _NO_LINK
    # a link also becomes odd when its target changes
    for path in new.odd_links - old.odd_links:
        if not rules.allow_code(path, old.entries):
            refused.setdefault(path, _NO_LINK)
    for path in new.entries - old.entries:
        if not rules.allow_code(path, old.entries):
            refused.setdefault(path, _NO_ENTRY)
    return refused


def displaced_resources(before: Checked, after: Checked, rules: ChangesetRules) -> dict[str, str]:
    """Return the files whose resources replace others, or reach protected Agents, with the reasons."""
    if before.bundle is None or after.bundle is None:
        return {}
    files = {**before.files, **after.files}
    reasons = dict(_displaced_built_ins(before, after))
    old, new = before.bundle.all_tools(), after.bundle.all_tools()
    for name in old.keys() & new:  # older Tools name their exports as they like
        if old[name].tool.name != new[name].tool.name:
            reasons[f"Tool/{new[name].tool.name}"] = f"its {name} takes the place of another Tool's"
    for agent in before.bundle.agents.keys() & after.bundle.agents.keys():
        label = f"Agent/{agent}"
        if not rules.allow_document(before.files[label]):
            had, has = _used(before.bundle, agent), _used(after.bundle, agent)
            reasons |= dict.fromkeys(has - had, f"{label}, which it may not change, would use it")
            reasons |= dict.fromkeys(had - has, f"{label}, which it may not change, would lose it")
    return {files.get(label, label): f"{label}: {reason}" for label, reason in reasons.items()}


def _displaced_built_ins(before: Checked, after: Checked) -> Iterator[tuple[str, str]]:
    base = after.scope.base
    if base is None:
        return
    for kind in _KINDS:
        names = {declaration.name for declaration in base.of_kind(kind)}
        old, new = ({one.name for one in checked.scope.own.of_kind(kind)} for checked in (before, after))
        yield from (
            (f"{kind}/{name}", "it takes the place of the built-in one") for name in (new - old) & names
        )
        yield from ((f"{kind}/{name}", "the built-in one takes its place") for name in (old - new) & names)


def _used(bundle: Bundle, agent: str) -> set[str]:
    tools = {f"Tool/{bound.tool.name}" for bound in bundle.bound_tools(agent).values()}
    return tools | {f"Extension/{bound.name}" for bound in bundle.bound_extensions(agent)}


#: the fields that say what an Agent or a Tool does, in contrast to what it may do
_BEHAVIOUR = {
    "Agent": {"configuration", "prompts", "prompt", "tools", "extensions", "entry", "hooks"},
    "Tool": {"entry", "exports", "error_message_limit"},
}
_EXPORT_BEHAVIOUR = {"name", "description", "parameters"}


def changed_permissions(before: Checked, after: Checked, agent: str, *, swarm: str | None) -> tuple[str, ...]:
    """Return the resources, as ``Kind/name``, in which an agent changes permissions or limits.

    A new Agent may not be allowed other files than the one that makes it. Raises ConfigError if one of the
    bundles has no such Swarm.
    """
    if before.bundle is None or after.bundle is None:
        return ()
    labels = (
        *_changed_settings(before.bundle, after.bundle),
        *_unlike_their_maker(before.bundle, after.bundle, agent),
        *_changed_functions(_Functions.of(before, swarm), _Functions.of(after, swarm)),
    )
    return tuple(dict.fromkeys(labels))


def _changed_settings(before: Bundle, after: Bundle) -> Iterator[str]:
    whole = [
        ("Swarm", _each(before.swarms, "policy"), _each(after.swarms, "policy")),
        ("OAuthApp", before.oauth_apps, after.oauth_apps),
        # a Model decides to which server a key is sent
        ("Model", before.models, after.models),
    ]
    for kind, old, new in whole:
        yield from (f"{kind}/{name}" for name in sorted(old.keys() | new) if old.get(name) != new.get(name))
    shared = [
        ("Agent", _rules(before.agents), _rules(after.agents)),
        ("Tool", _rules(before.tools), _rules(after.tools)),
        ("Agent", _guards(before), _guards(after)),
    ]
    for kind, old, new in shared:
        yield from (f"{kind}/{name}" for name in sorted(old.keys() & new) if old[name] != new[name])


def _each(resources: Mapping[str, Any], field: str) -> dict[str, Any]:
    return {name: getattr(resource.spec, field) for name, resource in resources.items()}


def _rules(resources: Mapping[str, AgentResource] | Mapping[str, ToolResource]) -> dict[str, Any]:
    return {
        name: (
            resource.is_v1,
            {field: value for field, value in resource.spec if field not in _BEHAVIOUR[resource.kind]},
        )
        for name, resource in resources.items()
    }


def _guards(bundle: Bundle) -> dict[str, Any]:
    # the config of each Agent's guard of required tools
    return {
        agent: next(
            (one.config for one in bundle.bound_extensions(agent) if one.name == REQUIRED_TOOLS_GUARD), None
        )
        for agent in bundle.agents
    }


def _unlike_their_maker(before: Bundle, after: Bundle, agent: str) -> Iterator[str]:
    own = before.agents[agent].spec.changesets if agent in before.agents else None
    for name in sorted(after.agents.keys() - before.agents):
        if own is not None and after.agents[name].spec.changesets != own:
            yield f"Agent/{name}"


@dataclass(frozen=True, slots=True)
class _Function:
    """One export, as declared or as bound to an Agent."""

    #: the names of its Tool and of its own
    name: tuple[str, str]
    #: the entry file, and the name of the handler in it
    code: tuple[str, str]
    #: how it is run
    rules: Mapping[str, Any]
    waits_for_approval: bool

    @classmethod
    def of(cls, bound: BoundTool, checked: Checked, approval: Iterable[str]) -> "_Function":
        root, entry, export = checked.scope.own.root, bound.entry_path, bound.export
        file = entry.relative_to(root) if entry.is_relative_to(root) else entry
        rules = {field: value for field, value in export if field not in _EXPORT_BEHAVIOUR and value}
        asks = bool(export.requires_approval) or any(fnmatchcase(bound.name, glob) for glob in approval)
        return cls(
            name=(bound.tool.name, export.name),
            code=(str(file), export.name),
            rules=rules | {"asks": asks, "is_v1": bound.is_v1},
            waits_for_approval=asks,
        )


@dataclass(frozen=True, slots=True)
class _Functions:
    """The functions of one revision, the built-in ones included."""

    tools: Mapping[str, ToolResource]
    #: as their Tools declare them
    declared: Mapping[tuple[str, str], _Function]
    #: as each Agent has them
    bound: Mapping[str, Mapping[tuple[str, str], _Function]]

    @classmethod
    def of(cls, checked: Checked, swarm: str | None) -> "_Functions":
        bundle = checked.bundle
        if bundle is None:
            raise ValueError("a bundle with errors has no functions")
        approval = bundle.swarm(swarm).spec.policy.tool_calls.approval

        def functions(tools: Iterable[BoundTool]) -> dict[tuple[str, str], _Function]:
            found = (_Function.of(bound, checked, approval) for bound in tools)
            return {function.name: function for function in found}

        bound = {agent: functions(bundle.bound_tools(agent).values()) for agent in bundle.agents}
        return cls(bundle.tools, functions(checked.exports), bound)

    def with_code(self, code: tuple[str, str]) -> list[_Function]:
        """Return the functions declared with an entry file and a handler."""
        return [function for function in self.declared.values() if function.code == code]

    def all_bound(self) -> Iterator[_Function]:
        return itertools.chain.from_iterable(functions.values() for functions in self.bound.values())

    def bound_with(self, code: tuple[str, str], name: tuple[str, str] | None) -> list[_Function]:
        """Return the functions of any Agent with an entry file and a handler, or with a name."""
        return [function for function in self.all_bound() if code == function.code or name == function.name]


def _changed_functions(before: _Functions, after: _Functions) -> Iterator[str]:
    for name, function in after.declared.items():
        if not _keeps_rules(function, before.declared.get(name), before):
            yield f"Tool/{name[0]}"
    for name, function in before.declared.items():
        if function.waits_for_approval and name not in after.declared and not after.with_code(function.code):
            yield f"Tool/{name[0]}"
    for agent, functions in after.bound.items():
        if any(not _is_bound_as_before(agent, one, before, after) for one in functions.values()):
            yield f"Agent/{agent}"
    asking = {function.code for function in after.all_bound() if _asks_by_override(function, after)}
    for agent, functions in before.bound.items():
        lost = [functions[name] for name in functions.keys() - after.bound.get(agent, {})]
        if any(_asks_by_override(one, before) and one.code not in asking for one in lost):
            yield f"Agent/{agent}"


def _keeps_rules(function: _Function, same: _Function | None, before: _Functions) -> bool:
    # compare with the function of the same name, and with those of the same code
    if same is not None and same.code == function.code:
        return function.rules == same.rules
    models = [*before.with_code(function.code), *([same] if same else [])]
    if models:
        return all(function.rules == model.rules for model in models)
    tool = before.tools.get(function.name[0])
    if tool is None:
        return True
    defaults = ((field, value) for field in RunPolicy.model_fields if (value := getattr(tool.spec, field)))
    return all(function.rules.get(field) == value for field, value in defaults)


def _is_bound_as_before(agent: str, function: _Function, before: _Functions, after: _Functions) -> bool:
    """Return whether an Agent has a function with the rules that it had.

    If the function or its code is new to the Agent, the strictest rules count: those of its Tool, and of
    every Agent that had it. So another Agent or another name cannot evade the overrides of one Agent.
    """
    same = before.bound.get(agent, {}).get(function.name)
    declared = after.declared.get(function.name)
    follows_tool = same in (None, before.declared.get(function.name))
    if same is not None and same.code == function.code:
        # a function that is as declared is judged as part of its Tool
        return function.rules == same.rules or (follows_tool and function == declared)
    models = before.bound_with(function.code, None if same else function.name)
    if follows_tool and declared is not None and declared.code == function.code:
        models.append(declared)
    elif same is not None:
        models += [same, *before.with_code(function.code)]
    else:
        return False
    fields = function.rules.keys() | {field for model in models for field in model.rules}
    for field in fields:
        strictest = min((model.rules.get(field) for model in models), key=partial(_laxness, field))
        if function.rules.get(field) != strictest:
            return False
    return True


def _laxness(field: str, value: Any) -> float:
    # how much a value allows, compared with other values of the same rule
    match field, value:
        case "env", _:
            return len(value or ())
        case "idempotent" | "retry" | "is_v1", _:
            return getattr(value, "max", float(bool(value)))
        case _, None | False:
            return math.inf
        case "rate_limit", _:
            count, _, unit = value.partition("/")
            return int(count) / RATE_PERIODS_MS[unit]
        case _, int() | float():
            return value
        case _:
            return 0


def _asks_by_override(function: _Function, functions: _Functions) -> bool:
    declared = functions.declared.get(function.name)
    return function.waits_for_approval and not (declared and declared.waits_for_approval)
