"""Hooks into a Celery worker, installed when Celery includes this module."""

import warnings
from typing import Any

from celery.signals import setup_logging

from broker_config.settings import Settings
from goondan_tasks.celery import app
from goondan_tasks.contract.logs import configure_logging
from workers.extensions.events import running_log_fields
from workers.kept_lines import keep_line
from workers.pool.consumer import Reservations
from workers.pool.drain import Drain
from workers.pool.heartbeat import Heartbeat
from workers.pool.monitoring import TaskEvents
from workers.pool.remote_control import take_over

app.steps["consumer"].update({Heartbeat, Drain, Reservations, TaskEvents})
take_over()


@setup_logging.connect
def _configure_logging(**_: Any) -> None:
    configure_logging(Settings.load(), running_log_fields, keep_line)
    # Python warns once for each place; the line of each call says that its handler has forgotten an `await`
    warnings.filterwarnings("always", "coroutine .* was never awaited", RuntimeWarning)
