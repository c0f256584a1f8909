"""Globs of file paths, as the policies of changesets have them.

The rules are minimatch's with ``dot: true``: a glob means a whole path; ``*`` and ``?`` stay inside one
part of it, ``**`` as a part of its own means any number of parts; ``[abc]``, ``[A-Z]``, ``[!a]``. Braces
and a leading ``!`` mean themselves, so that what is not understood allows nothing.
"""

import functools
from fnmatch import fnmatchcase


def matches(glob: str, path: str) -> bool:
    """Say whether ``glob`` means ``path``."""
    return _match(tuple(glob.removeprefix("./").replace("[^", "[!").split("/")), tuple(path.split("/")))


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
