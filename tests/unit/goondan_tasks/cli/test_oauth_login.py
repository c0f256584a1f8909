"""Whom ``goondan oauth login`` wakes."""

from pathlib import Path

import pytest

from goondan_tasks.bundle import load_bundle
from goondan_tasks.cli.oauth_login import Login, resume_of
from goondan_tasks.errors import AgentNotFoundError
from tests.unit.goondan_tasks.bundle.writing import write

BUNDLE = """apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: planner }
spec: {}
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: sales }
spec: { entryAgent: Agent/planner, agents: [Agent/planner] }
"""


def test_an_agent_is_woken_in_the_swarm_that_its_workers_ask_in(tmp_path: Path) -> None:
    bundle = load_bundle(write(tmp_path, {"goondan.yaml": BUNDLE}))

    resume = resume_of(bundle, None, Login("app", "U1", agent="planner", instance="thread-1"))

    assert resume is not None
    assert (resume.swarm, resume.agent_name, resume.instance_key) == ("sales", "planner", "thread-1")
    assert resume_of(bundle, None, Login("app", "U1")) is None
    with pytest.raises(AgentNotFoundError, match="planer"):
        resume_of(bundle, None, Login("app", "U1", agent="planer"))
