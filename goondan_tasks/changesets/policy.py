"""Which files a changeset may change: those that the Swarm and the Agent both allow.

A pattern that allows a folder of texts must not admit code or settings. So a wildcard admits only texts and
images. Resource documents need a pattern that ends in ``.yaml`` or ``.yml``; anything else needs a pattern
that names it, by its suffix or, without a suffix or with a leading dot, by its whole name, or one that
already matches an entry of the bundle with the same suffix.

Sources: 000 §12.4 and the ChangesetPolicy of its time; DESIGN §6: off by default, and an empty list allows
nothing.
"""

import functools
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Self

from goondan_tasks.bundle import Bundle
from goondan_tasks.bundle.inventory import is_document_name

#: recommended files if no policy limits them
USUAL_FILES = ("goondan.yaml", "resources/**", "prompts/**", "tools/**", "extensions/**")
#: the directory of an instance's changesets in its workdir
FOLDER = ".changesets"
#: files that control git and its extensions
_OF_GIT = {".gitattributes", ".gitmodules", ".lfsconfig"}
#: files that nothing runs or reads as settings, whatever their folder
_TEXTS = {".md", ".markdown", ".txt", ".rst", ".adoc", ".csv", ".tsv", ".png", ".jpg", ".jpeg", ".gif"}
#: texts by their suffix that tools read as settings
_SETTINGS = ("*requirements*.txt", "*constraints*.txt", "cmakelists.txt")
#: characters that file systems ignore in a name, or git takes for the end of a part (its utf8.c and path.c)
_UNSEEN = dict.fromkeys([*range(0x200C, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF])


def matches(glob: str, path: str) -> bool:
    """Return whether ``glob`` matches ``path``.

    The rules are minimatch's with ``dot: true``: a glob matches a whole path; ``*`` and ``?`` stay inside one
    part, ``**`` as a whole part matches any number of parts; ``[abc]``, ``[A-Z]``, ``[!a]``.
    Braces and a leading ``!`` are literal, so that a pattern of another dialect allows nothing.
    """
    return _match(tuple(glob.removeprefix("./").replace("[^", "[!").split("/")), tuple(path.split("/")))


def is_text(path: str) -> bool:
    """Return whether a file, by its name, is a text or an image, and neither code nor settings."""
    name = PurePosixPath(path.lower())
    is_settings = any(fnmatchcase(name.name, glob) for glob in _SETTINGS)
    return name.suffix in _TEXTS and not is_settings and plain_name(name.name) == name.name.casefold()


def _names(glob: str, path: str) -> bool:
    """Return whether the last part of a glob names a file's kind, or the file if its name has no kind."""
    last, file = glob.rpartition("/")[2], PurePosixPath(path)
    if not file.suffix or file.name.startswith("."):
        return last == file.name
    return last.endswith(file.suffix)


def plain_name(name: str) -> str:
    """Return a name as the most lenient file system reads it: HFS+ and NTFS ignore some characters."""
    return name.translate(_UNSEEN).partition(":")[0].rstrip(" .").casefold()


@functools.lru_cache(maxsize=4096)
def _match(globs: tuple[str, ...], parts: tuple[str, ...]) -> bool:
    if not globs:
        return not parts
    first, *rest = globs
    if first != "**":
        return bool(parts) and fnmatchcase(parts[0], first) and _match(tuple(rest), parts[1:])
    if not rest:
        return bool(parts)
    return any(_match(tuple(rest), parts[skipped:]) for skipped in range(len(parts)))


@dataclass(frozen=True, slots=True)
class ChangesetRules:
    """The files that a principal may change: those that every list of globs allows."""

    is_enabled: bool = True
    lists: tuple[tuple[str, ...], ...] = ()
    #: whether permissions and limits may be changed too; see :mod:`goondan_tasks.changesets.check`
    allows_policy_changes: bool = True

    @classmethod
    def of(cls, bundle: Bundle, agent: str, *, swarm: str | None = None) -> Self:
        """Return the rules for an agent in one revision; raises ConfigError if it has no such Swarm."""
        policy = bundle.swarm(swarm).spec.policy.changesets
        own = bundle.agents[agent].spec.changesets if agent in bundle.agents else None
        narrower = (own.allowed.files,) if own else ()
        return cls(policy.enabled, (policy.allowed.files, *narrower), policy.allow_policy_changes)

    def narrowed(self, other: Self) -> Self:
        return replace(
            self,
            is_enabled=self.is_enabled and other.is_enabled,
            lists=(*self.lists, *other.lists),
            allows_policy_changes=self.allows_policy_changes and other.allows_policy_changes,
        )

    def allow(self, path: str) -> bool:
        """Return whether a file, by its path from the bundle's folder, may be changed."""
        return self._allow(path, lambda _: True)

    def allow_document(self, path: str) -> bool:
        """Return whether a file that declares resources may be changed."""
        return self._allow(path, is_document_name)

    def allow_code(self, path: str, entries: Collection[str]) -> bool:
        """Return whether a file of code or settings may be changed; ``entries`` are the bundle's before."""
        suffix = PurePosixPath(path).suffix
        alike = [entry for entry in entries if suffix and PurePosixPath(entry).suffix == suffix]

        def counts(glob: str) -> bool:
            is_named = not is_text(path) and _names(glob, path)
            return is_named or any(matches(glob, entry) for entry in alike)

        return self._allow(path, counts)

    def _allow(self, path: str, counts: Callable[[str], bool]) -> bool:
        return self.is_enabled and all(
            any(matches(glob, path) and counts(glob) for glob in globs) for globs in self.lists
        )

    @property
    def recommended_files(self) -> tuple[str, ...]:
        """The globs of the narrowest list."""
        return self.lists[-1] if self.lists else USUAL_FILES


#: for a person at the command line, who can write the repository anyway
UNRESTRICTED = ChangesetRules()


@dataclass(frozen=True, slots=True)
class Principal:
    """The author of changesets: an agent in one of its instances, or a person."""

    #: the parent of its changesets' directories
    directory: Path = Path(FOLDER)
    rules: ChangesetRules = UNRESTRICTED
    agent: str | None = None
    #: the instance whose changesets it can commit; a person can commit all
    instance_key: str | None = None

    @property
    def is_bound(self) -> bool:
        """Whether a policy limits its changes."""
        return self.agent is not None and self.rules != UNRESTRICTED

    def objection(self, path: str) -> str | None:
        """Return why it may not change a file, by its path from the bundle's folder; ``None`` if it may.

        An agent's ``.gitattributes`` could name programs that filter the files of the live folder, its
        ``.gitmodules`` and ``.lfsconfig`` places from which git fetches.
        """
        if self.agent is not None and plain_name(path.rpartition("/")[2]) in _OF_GIT:
            return "git runs or fetches what this file names, so only a person may change it"
        return None if self.rules.allow(path) else "the policy does not allow it"


PERSON = Principal()
