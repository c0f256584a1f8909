"""Which files a changeset may change: those that the Swarm and the Agent both allow.

A pattern that allows a folder of texts shall not let code in, so two kinds of files must also be named as
what they are: resource documents by a pattern that ends in ``.yaml`` or ``.yml``, code by one that ends in a
suffix of code or that already stands for an entry of the bundle.

Sources: 000 §12.4 and the ChangesetPolicy of its time; DESIGN §6: off by default, and an empty list allows
nothing.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Self

from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.entries import is_code
from goondan_tasks.bundle.inventory import is_document_name
from goondan_tasks.changesets.globs import matches

#: what is worth a look where no policy says it
USUAL_FILES = ("goondan.yaml", "resources/**", "prompts/**", "tools/**", "extensions/**")


@dataclass(frozen=True, slots=True)
class ChangesetRules:
    """What one party may change: files that every one of the lists of globs has."""

    is_enabled: bool = True
    lists: tuple[tuple[str, ...], ...] = ()
    #: whether what protects may be changed, too: see :mod:`goondan_tasks.changesets.permissions`
    allows_policy_changes: bool = True

    @classmethod
    def of(cls, bundle: Bundle, agent: str, *, swarm: str | None = None) -> Self:
        """Return the rules for an agent, as one revision of the bundle has them.

        Raises:
            ConfigError: there is no such Swarm.
        """
        policy = bundle.swarm(swarm).spec.policy.changesets
        own = bundle.agents[agent].spec.changesets if agent in bundle.agents else None
        narrower = (own.allowed.files,) if own else ()
        return cls(policy.enabled, (policy.allowed.files, *narrower), policy.allow_policy_changes)

    def narrowed(self, other: Self) -> Self:
        """Return the rules that allow what both allow."""
        return replace(
            self,
            is_enabled=self.is_enabled and other.is_enabled,
            lists=(*self.lists, *other.lists),
            allows_policy_changes=self.allows_policy_changes and other.allows_policy_changes,
        )

    def allow(self, path: str) -> bool:
        """Say whether a file, by its path from the bundle's folder, may be changed."""
        return self._allow(path, lambda _: True)

    def allow_document(self, path: str) -> bool:
        """Say whether a file may be changed that declares resources."""
        return self._allow(path, is_document_name)

    def allow_code(self, path: str, entries: Collection[str]) -> bool:
        """Say whether a file may be changed that is code; ``entries`` are those of the bundle before."""
        return self._allow(path, lambda glob: is_code(glob) or any(matches(glob, entry) for entry in entries))

    def _allow(self, path: str, counts: Callable[[str], bool]) -> bool:
        return self.is_enabled and all(
            any(matches(glob, path) and counts(glob) for glob in globs) for globs in self.lists
        )

    def objection(self, path: str) -> str | None:
        """Return why a file may not be changed; ``None`` if it may."""
        return None if self.allow(path) else "the policy does not allow it"

    @property
    def recommended_files(self) -> tuple[str, ...]:
        """The globs of the narrowest list."""
        return self.lists[-1] if self.lists else USUAL_FILES


#: a person at the command line, who may write the repository anyway
UNRESTRICTED = ChangesetRules()
