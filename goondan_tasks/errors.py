"""The error tree: :mod:`goondan_tasks.contract.errors`, by its public path."""

from goondan_tasks.contract.errors import *  # noqa: F403
