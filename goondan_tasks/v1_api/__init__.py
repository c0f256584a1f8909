"""What the author of a tool or an extension of the older version sees (002; 000 §12).

The older version is that of resources with ``apiVersion: agents.example.io/v1alpha1``. A tool is a Python
file with ``handlers``, whose functions are called with ``(ctx, input)``; an Extension's entry is a Python
file with ``register(api)``. Names are the document's own, in snake_case.

::

    def post_message(ctx, input):
        token = ctx.oauth.get_access_token({"oauthAppRef": {"kind": "OAuthApp", "name": "slack-bot"}})
        if token.status == "authorization_required":
            return {"status": token.status, "authorizationUrl": token.authorization_url}
        ...

    handlers = {"slack.postMessage": post_message}
"""

from goondan_tasks.bundle.catalog import McpSource, ToolSource
from goondan_tasks.v1_api.extension_api import ExtensionInstance, Pipelines, Tools, V1ExtensionApi
from goondan_tasks.v1_api.pipeline_contexts import (
    StepPipelineContext,
    ToolCallExecContext,
    TurnPipelineContext,
)
from goondan_tasks.v1_api.records import (
    EffectiveConfig,
    LlmResult,
    Step,
    SwarmInstance,
    ToolCall,
    ToolError,
    ToolResult,
    Turn,
    V1CatalogItem,
)
from goondan_tasks.v1_api.services import EventBus, OAuthApi, SwarmBundle
from goondan_tasks.v1_api.tool_context import V1Handler, V1ToolContext

__all__ = [
    "EffectiveConfig",
    "EventBus",
    "ExtensionInstance",
    "LlmResult",
    "McpSource",
    "OAuthApi",
    "Pipelines",
    "Step",
    "StepPipelineContext",
    "SwarmBundle",
    "SwarmInstance",
    "ToolCall",
    "ToolCallExecContext",
    "ToolError",
    "ToolResult",
    "ToolSource",
    "Tools",
    "Turn",
    "TurnPipelineContext",
    "V1CatalogItem",
    "V1ExtensionApi",
    "V1Handler",
    "V1ToolContext",
]
