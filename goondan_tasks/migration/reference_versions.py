"""Where the references in a resource say the version of what they refer to."""

from collections.abc import Iterator, Mapping

from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.resources import V1_API_VERSION
from goondan_tasks.json_values import Path

_ONE: Mapping[str, tuple[Path, ...]] = {
    "Agent": (("spec", "modelConfig", "modelRef"),),
    "Swarm": (("spec", "entrypoint"), ("spec", "entryAgent")),
    "Connection": (("spec", "connectorRef"), ("spec", "swarmRef")),
}
_LISTS: Mapping[str, tuple[Path, ...]] = {
    "Agent": (("spec", "tools"), ("spec", "extensions")),
    "Swarm": (("spec", "agents"),),
}


def reference_versions(resource: Declaration) -> Iterator[Path]:
    """Yield the places of the older version in references; what looks so in other fields is their own."""
    for path in _references(resource):
        for place in ((*path, "apiVersion"), (*path, "ref", "apiVersion")):
            if resource.value(place) == V1_API_VERSION:
                yield place


def _references(resource: Declaration) -> Iterator[Path]:
    yield from _ONE.get(resource.kind, ())
    for path in _LISTS.get(resource.kind, ()):
        for item, _ in resource.items(path):
            yield item
