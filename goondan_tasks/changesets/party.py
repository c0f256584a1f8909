"""Who opens and commits changesets."""

from dataclasses import dataclass
from pathlib import Path

from goondan_tasks.changesets.policy import UNRESTRICTED, ChangesetRules

#: the directory of an instance's changesets in its workdir
FOLDER = ".changesets"


@dataclass(frozen=True, slots=True)
class Party:
    """An agent in one of its instances, or a person, who has no instance."""

    #: where its changesets get their directories
    directory: Path = Path(FOLDER)
    rules: ChangesetRules = UNRESTRICTED
    agent: str | None = None
    #: whose changesets, and no others, it can commit; a person can commit all
    instance_key: str | None = None


PERSON = Party()
