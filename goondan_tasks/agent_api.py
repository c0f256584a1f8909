"""The API for authors of agents: :mod:`goondan_tasks.authoring.agent_api`, by its public path."""

from goondan_tasks.authoring.agent_api import *  # noqa: F403
