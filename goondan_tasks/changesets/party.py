"""Who opens and commits changesets."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from goondan_tasks.bundle import Bundle
from goondan_tasks.changesets.policy import UNRESTRICTED, ChangesetRules
from goondan_tasks.changesets.working_files import plain_name

#: the directory of an instance's changesets in its workdir
FOLDER = ".changesets"
#: files that git and its extensions take orders from
_OF_GIT = {".gitattributes", ".gitmodules", ".lfsconfig"}


@dataclass(frozen=True, slots=True)
class Party:
    """An agent in one of its instances, or a person, who has no instance."""

    #: where its changesets get their directories
    directory: Path = Path(FOLDER)
    rules: ChangesetRules = UNRESTRICTED
    agent: str | None = None
    #: whose changesets, and no others, it can commit; a person can commit all
    instance_key: str | None = None

    def bound_by(self, bundle: Bundle, swarm: str | None) -> Self:
        """Return the party as the rules of another revision bind it, too; a person they do not.

        Raises:
            ConfigError: the bundle has no such Swarm.
        """
        if self.agent is None:
            return self
        rules = ChangesetRules.of(bundle, self.agent, swarm=swarm)
        return replace(self, rules=self.rules.narrowed(rules))

    @property
    def is_bound(self) -> bool:
        """Whether a policy says what it may change."""
        return self.agent is not None and self.rules != UNRESTRICTED

    def objection(self, path: str) -> str | None:
        """Return why it may not change a file, by its path from the bundle's folder; ``None`` if it may.

        An agent's ``.gitattributes`` would say what programs the files of the live folder go through, its
        ``.gitmodules`` from where git fetches others' code, its ``.lfsconfig`` from where files.
        """
        if self.agent is not None and plain_name(path.rpartition("/")[2]) in _OF_GIT:
            return "git runs or fetches what it names, so only a person may change it"
        return self.rules.objection(path)


PERSON = Party()
