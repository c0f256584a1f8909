"""The records on the wire: :mod:`goondan_tasks.contract.messages`, by its public path."""

from goondan_tasks.contract.messages import *  # noqa: F403
