"""What goes wrong with a changeset, in the codes of the documents."""

from typing import Literal

from goondan_tasks.errors import GoondanError

#: ``BUNDLE_INVALID`` is ours: the documents do not have a changed bundle checked
ChangesetCode = Literal[
    "CHANGESET_NOT_FOUND", "GIT_ERROR", "POLICY_VIOLATION", "MERGE_CONFLICT", "BUNDLE_INVALID"
]


class ChangesetError(GoondanError):
    """The changeset cannot be used."""

    code = "GIT_ERROR"
    suggestion = "Read the message, and open another changeset if this one is of no use."

    def __init__(self, message: str, *, code: ChangesetCode, suggestion: str | None = None) -> None:
        super().__init__(message, code=code, suggestion=suggestion)
