"""The tasks. Celery imports this module by name (``include``); a producer never does.

Their bodies are never run: :class:`workers.pool.pool.CallPool` carries out the messages. ``inspect
registered`` and Flower show the tasks.
"""

from typing import Any, NoReturn

from broker_config.queues import DELEGATE_RESULT_TASK, DELEGATE_TASK, EVENT_TASK, TOOL_CALL_TASK
from goondan_tasks.celery import app
from goondan_tasks.contract.errors import ConfigError


@app.task(name=TOOL_CALL_TASK)
def tool_call(call: Any = None) -> None:
    """Carry out a call."""
    _refuse()


@app.task(name=DELEGATE_TASK)
def delegate(message: Any = None) -> None:
    """Let an agent handle a request."""
    _refuse()


@app.task(name=DELEGATE_RESULT_TASK)
def delegate_result(message: Any = None) -> None:
    """Let an agent handle an answer."""
    _refuse()


@app.task(name=EVENT_TASK)
def event(message: Any = None) -> None:
    """Let an agent handle an event."""
    _refuse()


def _refuse() -> NoReturn:
    """Refuse to be run by Celery itself, as with ``task_always_eager``.

    Raises:
        ConfigError: always.
    """
    raise ConfigError(
        "A call is carried out by a worker of its agent, not where it is submitted.",
        suggestion="Turn task_always_eager off; goondan_tasks.testing has stacks for tests.",
    )
