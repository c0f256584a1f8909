"""The bodies of the tasks, which workers never run."""

import pytest
from celery.app.task import Task

from goondan_tasks.contract.errors import ConfigError
from workers import tasks


@pytest.mark.parametrize(
    "task", [tasks.tool_call, tasks.delegate, tasks.delegate_result, tasks.event], ids=lambda task: task.name
)
def test_eagerly_run_celery_task_says_what_to_do(task: "Task[..., None]") -> None:
    with pytest.raises(ConfigError, match="carried out by a worker") as refused:
        task.apply(args=({"toolName": "bash__exec", "args": {}},), throw=True)
    assert "task_always_eager" in refused.value.suggestion
