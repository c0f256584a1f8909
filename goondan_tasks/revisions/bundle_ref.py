"""What names one revision of a bundle: the same ref always means the same files.

``git:<40 hex>`` is a commit, for a bundle inside a git repository; ``sha256:<64 hex>`` is a digest of its
content, for any other. (A repository of git's newer object format has 64 hex digits after ``git:``, too.)
Sources: the SwarmBundleRef of 000 §12.4, DESIGN §3.
"""

import re
from dataclasses import dataclass
from typing import Literal, Self, cast

from goondan_tasks.errors import BundleRevisionUnavailableError

Scheme = Literal["git", "sha256"]

_REF = re.compile(r"(?P<scheme>git):(?P<digest>[0-9a-f]{40}|[0-9a-f]{64})|sha256:(?P<content>[0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class BundleRef:
    """The name of one revision."""

    scheme: Scheme
    digest: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read what :meth:`__str__` wrote.

        Raises:
            BundleRevisionUnavailableError: it is no ref.
        """
        match = _REF.fullmatch(text)
        if match is None:
            raise BundleRevisionUnavailableError(f"{text[:100]!r} names no revision of a bundle.")
        return cls(cast(Scheme, match["scheme"] or "sha256"), match["digest"] or match["content"])

    def __str__(self) -> str:
        return f"{self.scheme}:{self.digest}"
