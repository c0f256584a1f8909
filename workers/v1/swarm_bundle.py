"""``ctx.swarm_bundle`` and ``api.swarm_bundle`` of the older version: see its ``SwarmBundle``."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from workers.extensions.swarm_bundle import SwarmBundleDesk
from workers.v1.request_object import fields_of


@dataclass(frozen=True, slots=True)
class V1SwarmBundle:
    """The bundle as one call may change it, asked with the documents' request objects (002 §11.2)."""

    desk: SwarmBundleDesk

    def open_changeset(
        self, request: Mapping[str, Any] | str | None = None, *, reason: str | None = None
    ) -> Any:
        """Open a changeset; the answer is a JSON object.

        Raises:
            ChangesetError: the bundle cannot be changed here, or the policy does not allow it.
            TypeError: the request has another field, or says the same as an argument.
        """
        return self.desk.open_changeset(fields_of(request, "reason", {"reason": reason})["reason"])

    def commit_changeset(
        self,
        request: Mapping[str, Any] | str | None = None,
        message: str | None = None,
        *,
        changeset_id: str | None = None,
    ) -> Any:
        """Commit a changeset; the answer is a JSON object. Raises as :meth:`open_changeset`."""
        asked = fields_of(request, "changeset_id", {"changeset_id": changeset_id, "message": message})
        if not isinstance(asked["changeset_id"], str):
            raise TypeError(f"changesetId must be a text, not {asked['changeset_id']!r:.200}")
        return self.desk.commit_changeset(asked["changeset_id"], asked["message"])

    def get_active_ref(self) -> Any:
        """Return the ref of the revision that is active now; raises as :meth:`open_changeset`."""
        return self.desk.get_active_ref()
