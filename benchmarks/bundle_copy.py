"""``benchmarks/bundle``, or a copy of it with as many agents as a worker is to have queues."""

import shutil
from collections.abc import Sequence
from pathlib import Path

from benchmarks.shape import HANDOFF_QUEUES, LAYERED_QUEUES, STOCKED_QUEUE, USUAL_QUEUE

BUNDLE = Path(__file__).parent / "bundle"
#: a file may not have more than 100 documents
AGENTS_A_FILE = 50

_AGENT = """\
---
apiVersion: goondan.ai/v1
kind: Agent
metadata:
  name: {name}
spec:
  tools: [Tool/bench]
"""


def bundle_with(agents: Sequence[str], directory: Path) -> Path:
    """Return the bundle that has these agents; a copy in ``directory`` if they are not the usual ones."""
    if {*agents} <= {USUAL_QUEUE, STOCKED_QUEUE, *HANDOFF_QUEUES, *LAYERED_QUEUES}:
        return BUNDLE
    copy = directory / f"bundle-{len(agents)}-{agents[0]}"
    if not copy.exists():
        shutil.copytree(BUNDLE, copy)
        for start in range(0, len(agents), AGENTS_A_FILE):
            text = "".join(_AGENT.format(name=name) for name in agents[start : start + AGENTS_A_FILE])
            folder = copy / str(start)
            folder.mkdir()
            (folder / "agents.yaml").write_text(text, "utf-8")
    return copy
