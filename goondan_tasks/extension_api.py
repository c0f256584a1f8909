"""The API for authors of extensions: :mod:`goondan_tasks.authoring.extension_api`, by its public path."""

from goondan_tasks.authoring.extension_api import *  # noqa: F403
