"""Three-way merge of trees, path by path: pure, but for the content of files that both sides changed.

Renames are a removal and an addition; nothing guesses.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from goondan_tasks.revisions.repository import Changes, Entries, Entry

#: merges the blobs of base, ours and theirs: the new blob (perhaps with marks), and whether it is clean;
#: ``None`` if there are no lines to be merged
MergeContent = Callable[[str, Entry | None, Entry, Entry], tuple[str, bool] | None]


@dataclass(frozen=True, slots=True)
class Merge:
    """What has to be changed in the others' tree, and what a person has to decide."""

    #: to be applied to theirs
    changes: dict[str, Entry | None] = field(default_factory=dict)
    #: paths of conflicts; the entry holds both sides, marked, or ``None`` if there are no lines to mark
    conflicts: dict[str, Entry | None] = field(default_factory=dict)


def merge(base: Entries, ours: Changes, theirs: Entries, merge_content: MergeContent) -> Merge:
    """Merge our changes of ``base`` into ``theirs``."""
    merged = Merge()
    for path, entry in sorted(ours.items()):
        before, other = base.get(path), theirs.get(path)
        if other == before:
            merged.changes[path] = entry
        elif other != entry:
            _merge_both(merged, path, (before, entry, other), merge_content)
    for path in list(_clashes(merged.changes, theirs)):
        merged.conflicts[path] = None
    return merged


def _merge_both(
    merged: Merge,
    path: str,
    versions: tuple[Entry | None, Entry | None, Entry | None],
    merge_content: MergeContent,
) -> None:
    before, ours, theirs = versions
    content = None
    if ours and theirs and ours.is_file and theirs.is_file and (before is None or before.is_file):
        content = merge_content(path, before, ours, theirs)
    if ours is None or theirs is None or content is None:
        merged.conflicts[path] = None
        return
    blob, is_clean = content
    entry = Entry(theirs.mode if before and ours.mode == before.mode else ours.mode, blob)
    (merged.changes if is_clean else merged.conflicts)[path] = entry


def _clashes(changes: Mapping[str, Entry | None], theirs: Entries) -> Iterator[str]:
    """Yield the paths of ours that would be a file where the other tree has a directory, or inside a file."""
    final = {path for path in theirs if changes.get(path, True)} | {
        p for p, entry in changes.items() if entry
    }
    directories = {parent for path in final for parent in parents(path)}
    for path, entry in changes.items():
        if entry and (path in directories or any(parent in final for parent in parents(path))):
            yield path


def parents(path: str) -> Iterator[str]:
    """Yield the directories that a path is in, the innermost first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path
