"""The Celery app: ``celery -A goondan_tasks worker -Q agent.coder``.

Importing this module reads nothing: the environment and the bundle are looked at when Celery first
asks for its configuration.
"""

import sys
from typing import Any

from celery import Celery

from broker_config.broker_connection import Amqp
from broker_config.options import celery_options
from broker_config.settings import Settings
from goondan_start import require_ours
from goondan_tasks.revisions.bootstrap import bootstrap_bundle


def _configuration() -> dict[str, Any]:
    if "celery.bin.celery" in sys.modules:  # its command line imports the workers; producers have none
        require_ours("workers")
    settings = Settings.load()
    bundle = bootstrap_bundle(settings.bundle, settings) if settings.bundle else None
    agents = bundle.agent_names(settings.swarm) if bundle else ()
    return celery_options(settings, agents)


app = Celery("goondan", amqp=Amqp)
app.add_defaults(_configuration)
