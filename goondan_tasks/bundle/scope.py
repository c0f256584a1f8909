"""Where references lead: this bundle first, then the built-in package ``@goondan/base``."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.bundle.base_package import BASE_PACKAGE
from goondan_tasks.bundle.declarations import Declaration
from goondan_tasks.bundle.findings import ConfigCode, FieldError
from goondan_tasks.bundle.inventory import Inventory, read_inventory
from goondan_tasks.bundle.refs import Ref, Selector, Use
from goondan_tasks.spelling import hint


@dataclass(frozen=True, slots=True)
class Scope:
    """A bundle and the built-in package, which is read when something leads there."""

    own: Inventory
    base_root: Path | None

    @property
    def base(self) -> Inventory | None:
        """The built-in package."""
        return _built_in(self.base_root) if self.base_root else None

    def resolve(self, ref: Ref, kind: str) -> Declaration:
        """Return what ``ref`` means, where a resource of ``kind`` is wanted.

        Raises:
            FieldError: it means another kind, or nothing.
        """
        if ref.kind != kind:
            message = f"'{ref}' leads to another kind than {kind}"
            raise FieldError(message, f"Write '{kind}/<name>'.", ConfigCode.INVALID_REF)
        for inventory in self._packages(ref.package):
            found = inventory.find(ref.kind, ref.name)
            if found is not None:
                return found
        raise self._not_found(ref)

    def select(self, selector: Selector, kind: str) -> list[Declaration]:
        """Return what ``selector`` matches, in order of declaration.

        A name that this bundle does not have is looked up in the built-in package; labels alone
        select from this bundle.

        Raises:
            FieldError: it wants another kind, or matches nothing.
        """
        if selector.kind not in (None, kind):
            message = f"the selector wants another kind than {kind}"
            raise FieldError(message, f"Write 'kind: {kind}'.", ConfigCode.INVALID_REF)
        matching = [item for item in self._candidates(selector, kind) if _has_labels(item, selector)]
        if not matching:
            message = f"the selector matches no {kind} ({selector})"
            raise FieldError(message, "Correct its name or matchLabels.", ConfigCode.REF_NOT_FOUND)
        return matching

    def targets(self, use: Use, kind: str) -> list[Declaration]:
        """Return what an item of ``tools`` or ``extensions`` means.

        Raises:
            FieldError: it means another kind, or nothing.
        """
        if isinstance(use.target, Ref):
            return [self.resolve(use.target, kind)]
        return self.select(use.target, kind)

    def root_of(self, declaration: Declaration) -> Path:
        """Return the folder that the paths in a declaration start from."""
        own = self.own.find(declaration.kind, declaration.name) is declaration
        return self.own.root if own or self.base is None else self.base.root

    def _candidates(self, selector: Selector, kind: str) -> list[Declaration]:
        if selector.name is None:
            return self.own.of_kind(kind)
        return [self.resolve(Ref(kind, selector.name), kind)]

    def _packages(self, package: str | None) -> Iterator[Inventory]:
        own_names = {declaration.name for declaration in self.own.of_kind("Package")}
        if package is None or package in own_names:
            yield self.own
        if package in (None, BASE_PACKAGE):
            yield from filter(None, [self.base])
        elif package not in own_names:
            raise FieldError(
                f"the package '{package}' is not installed",
                f"Only {BASE_PACKAGE} is built in; copy the resource into this bundle.",
                ConfigCode.PACKAGE_NOT_INSTALLED,
            )

    def _not_found(self, ref: Ref) -> FieldError:
        packages = self._packages(ref.package)
        names = [declaration.name for package in packages for declaration in package.of_kind(ref.kind)]
        suggestion = hint(ref.name, names, f"Declare the {ref.kind} first.")
        return FieldError(f"there is no '{ref}'", suggestion, ConfigCode.REF_NOT_FOUND)


def _has_labels(declaration: Declaration, selector: Selector) -> bool:
    labels = declaration.value(("metadata", "labels"))
    return selector.match_labels.items() <= (labels.items() if isinstance(labels, dict) else set())


@functools.lru_cache(maxsize=8)
def _built_in(root: Path) -> Inventory:
    """Read the built-in package once in a process; it ships with the code and does not change."""
    return read_inventory(root)[0]
