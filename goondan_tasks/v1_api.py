"""The API of the older version: :mod:`goondan_tasks.authoring.v1_api`, by its public path."""

from goondan_tasks.authoring.v1_api import *  # noqa: F403
