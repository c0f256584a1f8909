"""The Python packages that a bundle needs: ``spec.requirements`` of its Tools and its Package (PEP 508).

Checks for people compare them with what is installed here. Loading a bundle does not, because producers do
not run tools.
"""

from collections.abc import Iterator
from importlib import metadata
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement

from goondan_tasks.bundle.findings import ConfigCode, Finding
from goondan_tasks.bundle.inventory import Declaration, Inventory
from goondan_tasks.contract.wording import FieldPath

_REQUIREMENTS: FieldPath = ("spec", "requirements")


class Need(NamedTuple):
    """A requirement, and where it is declared."""

    declaration: Declaration
    path: FieldPath
    requirement: Requirement


def needs_of(inventory: Inventory) -> Iterator[Need]:
    """Yield the requirements that apply to this machine; malformed ones have their own findings."""
    for declaration in (*inventory.of_kind("Package"), *inventory.of_kind("Tool")):
        for path, text in declaration.items(_REQUIREMENTS):
            try:
                requirement = Requirement(text)
            except (InvalidRequirement, TypeError):
                continue
            if _applies(requirement):
                yield Need(declaration, path, requirement)


def requirement_findings(inventory: Inventory) -> Iterator[Finding]:
    for declaration, path, requirement in needs_of(inventory):
        if reason := unmet(requirement):
            message = f"the requirement '{requirement_text(requirement)}' is not met: {reason}"
            suggestion = "Install it with `goondan validate --install` or pip."
            yield declaration.error(path, message, suggestion, ConfigCode.PACKAGE_NOT_INSTALLED)


def unmet(requirement: Requirement) -> str | None:
    """Return why a requirement, with its extras, is not met by what is installed; ``None`` if it is."""
    return _unmet(requirement, set())


def _unmet(requirement: Requirement, seen: set[str]) -> str | None:
    seen.add(str(requirement))
    try:
        found = metadata.distribution(requirement.name)
    except metadata.PackageNotFoundError:
        return f"{requirement.name} is not installed"
    if not requirement.specifier.contains(found.version, prereleases=True):
        return f"{requirement.name} {found.version} is installed"
    for extra in requirement.extras:
        for text in found.requires or ():
            needed = Requirement(text)
            is_of_extra = _applies(needed, extra) and not _applies(needed)
            if is_of_extra and str(needed) not in seen and (reason := _unmet(needed, seen)):
                return reason
    return None


def _applies(requirement: Requirement, extra: str = "") -> bool:
    """Return whether a requirement applies to this Python on this machine."""
    return requirement.marker is None or requirement.marker.evaluate({"extra": extra})


def requirement_text(requirement: Requirement) -> str:
    """Write a requirement without its marker, and without its URL, which may contain a password."""
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"
