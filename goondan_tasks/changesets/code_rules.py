"""What resources and code an agent's changeset brings that its policy does not name.

A file is judged as what the loader takes it for, not by its folder: a text becomes code when a resource names
it as its entry, and a resource reaches Agents that stand elsewhere when it has the name of a built-in one or
the labels of a selector.
"""

from collections.abc import Iterator

from goondan_tasks.bundle import Bundle
from goondan_tasks.changesets.check import Checked
from goondan_tasks.changesets.policy import ChangesetRules
from goondan_tasks.revisions.repository import Changes

_NO_DOCUMENT = "it declares resources, and no pattern for it in the policy ends in .yaml or .yml"
_NO_CODE = "it is code, and no pattern for it in the policy ends in .py or stands for an entry of the bundle"
_NO_ENTRY = "it would become an entry, and no pattern for it in the policy names code"
_NO_LINK = "it is a link to a directory, or to nothing, and no pattern for it in the policy names code"
_KINDS = ("Tool", "Extension")


def unnamed_files(before: Checked, after: Checked, changes: Changes, rules: ChangesetRules) -> dict[str, str]:
    """Return the changed files that are more than the policy names them as, and why."""
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
    # a link becomes odd by a change of what it leads to, too
    for path in new.odd_links - old.odd_links:
        if not rules.allow_code(path, old.entries):
            refused.setdefault(path, _NO_LINK)
    for path in new.entries - old.entries:
        if not rules.allow_code(path, old.entries):
            refused.setdefault(path, _NO_ENTRY)
    return refused


def displaced_resources(before: Checked, after: Checked, rules: ChangesetRules) -> dict[str, str]:
    """Return the files whose resources take another's place, or come to Agents that may not be changed."""
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
