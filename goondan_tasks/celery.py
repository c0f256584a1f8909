"""The Celery app: ``celery -A goondan_tasks worker -Q agent.coder``.

Importing this module reads nothing: the environment and the bundle are looked at when Celery first
asks for its configuration.
"""

from typing import Any

from celery import Celery

from broker_config.options import celery_options
from broker_config.settings import Settings
from goondan_tasks.bundle import load_bundle


def _configuration() -> dict[str, Any]:
    settings = Settings.load()
    agents = load_bundle(settings.bundle).agent_names(settings.swarm) if settings.bundle else ()
    return celery_options(settings, agents)


app = Celery("goondan")
app.add_defaults(_configuration)
