"""What protects, and no agent's changeset changes unless the Swarm says ``allowPolicyChanges: true``.

That is: which Swarms there are, and the whole ``policy`` of each; of Agents and Tools all but what they do
(``_DEEDS``), so that a limit that is added to the format later is protected from its first day; how an export
is run, its approval and its tokens; OAuthApps. What resources mean is compared, overrides and defaults
applied, and never their text or their place. A function is known by its entry file and export, too: it keeps
its rules under another name.
"""

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from goondan_tasks.bundle import BoundTool, Bundle
from goondan_tasks.bundle.binding import REQUIRED_TOOLS_GUARD
from goondan_tasks.bundle.fields import RATE_PERIODS_MS
from goondan_tasks.bundle.resources import AgentResource, RunPolicy, ToolResource
from goondan_tasks.changesets.check import Checked

#: what an Agent or a Tool does, in contrast to what it may do
_DEEDS = {
    "Agent": {"configuration", "prompts", "prompt", "tools", "extensions", "entry", "hooks"},
    "Tool": {"entry", "exports", "error_message_limit"},
}
_EXPORT_DEEDS = {"name", "description", "parameters"}


def changed_permissions(before: Checked, after: Checked, agent: str, *, swarm: str | None) -> tuple[str, ...]:
    """Return the resources, as ``Kind/name``, in which a change by an agent changes what protects.

    A new Agent may not be allowed other files than the one that makes it.

    Raises:
        ConfigError: one of the bundles has no such Swarm.
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
            {field: value for field, value in resource.spec if field not in _DEEDS[resource.kind]},
        )
        for name, resource in resources.items()
    }


def _guards(bundle: Bundle) -> dict[str, Any]:
    """Return the config of the guard of required tools for each Agent; ``None`` for one without."""
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
    """One export, as it is declared or as an Agent has it."""

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
        rules = {field: value for field, value in export if field not in _EXPORT_DEEDS and value}
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
        """Return the functions that are declared with an entry file and a handler."""
        return [function for function in self.declared.values() if function.code == code]

    def all_bound(self) -> Iterator[_Function]:
        """Yield what each Agent has."""
        return itertools.chain.from_iterable(functions.values() for functions in self.bound.values())

    def bound_with(self, code: tuple[str, str], name: tuple[str, str] | None) -> list[_Function]:
        """Return what any Agent has with an entry file and a handler, or under a name."""
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
    """Say whether a function has the rules of the one of its name, and those of the code that it runs."""
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
    """Say whether an Agent has a function as it had it.

    Where a function or its code is new to the Agent, the strictest rules count: of its Tool, and of every
    Agent that had it. So the overrides of one Agent are not evaded by another Agent, or under another name.
    """
    same = before.bound.get(agent, {}).get(function.name)
    declared = after.declared.get(function.name)
    follows_tool = same in (None, before.declared.get(function.name))
    if same is not None and same.code == function.code:
        # of one that is as declared, the check of its Tool tells
        return function.rules == same.rules or (follows_tool and function == declared)
    models = before.bound_with(function.code, None if same else function.name)
    if follows_tool and declared is not None and declared.code == function.code:
        models.append(declared)
    elif same is not None:
        models += [same, *before.with_code(function.code)]
    else:
        return False
    fields = function.rules.keys() | {field for model in models for field in model.rules}
    return all(function.rules.get(field) == _strictest(field, models) for field in fields)


def _strictest(field: str, models: Iterable[_Function]) -> Any:
    return min((model.rules.get(field) for model in models), key=lambda value: _laxness(field, value))


def _laxness(field: str, value: Any) -> float:
    """Return how much a rule allows, in comparison with other values of the same one."""
    match field, value:
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
