"""Built-in extension ``swarm-bundle``: tools with which an agent changes its own bundle.

The agent opens a changeset, edits the files in its directory with ``bash`` and ``file-system``, and commits
it (000 §12.4, 002 §11.2).
"""

from typing import Any

from pydantic import BaseModel, ConfigDict

from goondan_tasks.extension_api import ExtensionApi
from goondan_tasks.tool_api import JsonObject, ToolContext

#: a commit waits for earlier commits and for the validation of the changed bundle
TIMEOUT_SECONDS = 600

OPEN: JsonObject = {
    "name": "swarm-bundle__open-changeset",
    "description": (
        "Begin to change the swarm itself: its prompts, tools and configuration. The answer has a "
        "changesetId and a workdir, a directory with the bundle's files. Edit them there; "
        "hint.bundleRootInWorkdir is the bundle's folder in it, hint.recommendedFiles say what may be "
        "changed, and hint.warning, if present, says what is already wrong with them. The swarm "
        "itself does not change until the changeset is committed."
    ),
    "parameters": {
        "type": "object",
        "properties": {"reason": {"type": "string", "description": "What the change is for"}},
        "additionalProperties": False,
    },
}
COMMIT: JsonObject = {
    "name": "swarm-bundle__commit-changeset",
    "description": (
        "Commit a changeset. With status ok it is committed and proposed, and its directory is gone: it is "
        "active from the next step on, unless the workers cannot load it and keep the bundle that they run. "
        "With rejected (not allowed, or the changed bundle is not valid), conflict (others have changed the "
        "same lines) or failed, error says why; the directory stays: correct it and commit again."
    ),
    "parameters": {
        "type": "object",
        "properties": {
            "changesetId": {"type": "string", "minLength": 1, "description": "The id from open-changeset"},
            "message": {"type": "string", "description": "What was changed, and why"},
        },
        "required": ["changesetId"],
        "additionalProperties": False,
    },
}


class SwarmBundleConfig(BaseModel):
    """The extension's config, which has no fields."""

    model_config = ConfigDict(extra="forbid")


def register(api: ExtensionApi, config: dict[str, Any]) -> None:
    """Register both tools."""
    SwarmBundleConfig.model_validate(config)

    async def open_changeset(ctx: ToolContext, input: JsonObject) -> Any:
        return await api.swarm_bundle.open_changeset(input.get("reason"))

    async def commit_changeset(ctx: ToolContext, input: JsonObject) -> Any:
        return await api.swarm_bundle.commit_changeset(input["changesetId"], input.get("message"))

    policy = {"timeoutSeconds": TIMEOUT_SECONDS}
    api.tools.register(OPEN, open_changeset, policy=policy)
    api.tools.register(COMMIT, commit_changeset, policy=policy)
