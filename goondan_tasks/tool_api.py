"""The API for authors of tools: :mod:`goondan_tasks.authoring.tool_api`, by its public path."""

from goondan_tasks.authoring.tool_api import *  # noqa: F403
