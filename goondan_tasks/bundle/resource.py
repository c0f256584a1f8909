"""What the resources of all kinds have."""

from typing import Literal

from pydantic import Field

from goondan_tasks.bundle.fields import NonEmpty, ResourceModel

API_VERSION = "goondan.ai/v1"
#: the older version, whose resources may be mixed with current ones (DESIGN §6)
V1_API_VERSION = "agents.example.io/v1alpha1"


class Metadata(ResourceModel):
    name: NonEmpty
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)


class Resource(ResourceModel):
    api_version: Literal["goondan.ai/v1", "agents.example.io/v1alpha1"]
    kind: str
    metadata: Metadata

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def is_v1(self) -> bool:
        """Whether it is of the older version, so that its code gets the older context and api (002)."""
        return self.api_version == V1_API_VERSION
