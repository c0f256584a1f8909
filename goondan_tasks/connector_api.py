"""The API for authors of connectors: :mod:`goondan_tasks.authoring.connector_api`, by its public path."""

from goondan_tasks.authoring.connector_api import *  # noqa: F403
