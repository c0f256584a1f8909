"""What failures of one kind have in common, so that a thousand of them are one row.

The kind of a failure is its tool, its code, and the first line of its message, in which numbers, ids and
quoted texts are replaced.
"""

import re
from dataclasses import dataclass
from hashlib import sha256

from goondan_tasks.contract.messages import ToolCallError

#: how many characters of a message count; a pattern must not search an output of megabytes
_LONGEST = 300
_ID = r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b"
_QUOTED = r"'[^']*'|\"[^\"]*\"|`[^`]*`|\u201c[^\u201d]*\u201d"
_VARIABLE = re.compile(rf"(?P<quoted>(?<!\w)(?:{_QUOTED}))|(?P<id>{_ID})|(?P<number>\d+(?:[.,:]\d+)*)")
_MARKS = {"quoted": "\N{HORIZONTAL ELLIPSIS}", "id": "<id>", "number": "<n>"}


@dataclass(frozen=True, slots=True)
class FailureKind:
    """A kind of failures."""

    tool: str
    code: str
    #: the first line of the message, without what differs from one failure to the next
    message: str

    @classmethod
    def of(cls, tool: str, error: ToolCallError | None) -> "FailureKind":
        """Return the kind of the failure of a tool."""
        return cls(tool, "", "") if error is None else cls.of_text(tool, error.code, error.message)

    @classmethod
    def of_text(cls, tool: str, code: str, message: str) -> "FailureKind":
        """Return the kind of a failure with that message."""
        line = message.strip().partition("\n")[0][:_LONGEST]
        text = _VARIABLE.sub(lambda found: _MARKS[found.lastgroup or "number"], line)
        return cls(tool, code, " ".join(text.split()))

    @property
    def fingerprint(self) -> str:
        """The kind in 12 hexadecimal digits."""
        text = "\0".join((self.tool, self.code, self.message))
        return sha256(text.encode("utf-8", "backslashreplace")).hexdigest()[:12]
