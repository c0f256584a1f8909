"""The resources that an agent is run with, its overrides applied (002 §5.3)."""

from goondan_tasks.bundle import BoundExtension, Bundle
from goondan_tasks.bundle.resources import (
    AgentResource,
    ExtensionResource,
    ExtensionSpec,
    Metadata,
    SwarmResource,
)
from goondan_tasks.v1_api import EffectiveConfig


def effective_config(bundle: Bundle, swarm: SwarmResource, agent: AgentResource) -> EffectiveConfig:
    """Return what an agent is run with, in whatever revision."""
    tools = {bound.tool.name: bound.tool for bound in bundle.bound_tools(agent.name).values()}
    extensions = (extension_resource(bundle, bound) for bound in bundle.bound_extensions(agent.name))
    return EffectiveConfig(swarm, agent, tuple(tools.values()), tuple(extensions))


def extension_resource(bundle: Bundle, bound: BoundExtension) -> ExtensionResource:
    """Return an agent's Extension, with the config that it has there; a built-in one has no labels."""
    declared = bundle.extensions.get(bound.name)
    if declared is None:
        return ExtensionResource.model_construct(
            api_version="agents.example.io/v1alpha1" if bound.is_v1 else "goondan.ai/v1",
            kind="Extension",
            metadata=Metadata(name=bound.name),
            spec=ExtensionSpec.model_construct(entry=str(bound.entry_path), config=bound.config),
        )
    return declared.model_copy(update={"spec": declared.spec.model_copy(update={"config": bound.config})})
