"""The built-in extension swarm-bundle: every outcome of a changeset, as a model sees it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.git_bundle import GitBundle, make_bundle

AGENTS = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { tools: [Tool/bash, Tool/file-system], extensions: [Extension/swarm-bundle] }
---
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: poet }
spec:
  tools: [Tool/file-system]
  extensions: [Extension/swarm-bundle]
  changesets: { allowed: { files: ["prompts/**"] } }
---
apiVersion: goondan.ai/v1
kind: Swarm
metadata: { name: den }
spec:
  entryAgent: Agent/coder
  agents: [Agent/coder, Agent/poet]
  policy: { changesets: { enabled: true, allowed: { files: ["prompts/**", "goondan.yaml"] } } }
"""
PROMPT = "one\ntwo\nthree\n"


@pytest.fixture(scope="module")
def den(tmp_path_factory: pytest.TempPathFactory) -> GitBundle:
    """Make a bundle in git."""
    files = {"goondan.yaml": AGENTS, "prompts/coder.md": PROMPT, "prompts/poet.md": PROMPT}
    return make_bundle(tmp_path_factory.mktemp("den") / "repo", files=files)


@pytest.fixture(scope="module")
def stack(den: GitBundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    environment = {"GOONDAN_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    with LocalStack(den.folder, environment=environment) as running:
        yield running


class Author:
    """An agent in an instance of its own, that calls its tools."""

    def __init__(self, stack: LocalStack, agent: str, instance: str) -> None:
        self._stack, self._agent, self._instance = stack, agent, instance

    def call(self, tool: str, **args: Any) -> ToolCallResult:
        return self._stack.client.call(self._agent, tool, args, instance_key=self._instance, timeout=60)

    def opened(self) -> tuple[str, str]:
        """Open a changeset; return its id and its directory."""
        opened = self.call("swarm-bundle__open-changeset", reason="a test").output
        return opened["changesetId"], opened["workdir"]

    def write(self, path: str, content: str) -> None:
        written = self.call("file-system__write", path=path, content=content)
        assert written.status == "ok", written.error

    def commit(self, changeset_id: str) -> Any:
        committed = self.call("swarm-bundle__commit-changeset", changesetId=changeset_id, message="a test")
        assert committed.status == "ok", committed.error
        return committed.output


@pytest.mark.requirement("changeset.pattern")
def test_an_agent_edits_the_bundle_with_its_usual_tools(stack: LocalStack, den: GitBundle) -> None:
    coder = Author(stack, "coder", "usual")
    changeset_id, workdir = coder.opened()
    shell = coder.call("bash__exec", command="echo four >> prompts/coder.md", cwd=workdir)

    committed = coder.commit(changeset_id)

    assert shell.output["exitCode"] == 0, shell
    assert (committed["status"], committed["newRef"]) == ("ok", f"git:{den.head}")
    assert committed["summary"]["filesChanged"] == ["prompts/coder.md"]
    assert den.committed("prompts/coder.md") == f"{PROMPT}four"
    assert den.git("log", "-1", "--format=%an %s") == "coder a test"
    assert not Path(workdir).exists()


def test_no_change_is_ok_and_nothing_is_committed(stack: LocalStack, den: GitBundle) -> None:
    head = den.head
    coder = Author(stack, "coder", "idle")

    committed = coder.commit(coder.opened()[0])

    assert (committed["status"], committed["newRef"], den.head) == ("ok", f"git:{head}", head)


@pytest.mark.parametrize(("agent", "file"), [("coder", "tools/new.py"), ("poet", "goondan.yaml")])
def test_what_the_swarm_or_the_agent_does_not_allow_is_rejected(
    stack: LocalStack, den: GitBundle, agent: str, file: str
) -> None:
    head = den.head
    author = Author(stack, agent, f"bold-{agent}")
    changeset_id, workdir = author.opened()
    author.write(f"{workdir}/{file}", "kind: Nothing\n")

    committed = author.commit(changeset_id)

    assert committed["status"] == "rejected"
    assert (committed["error"]["code"], committed["error"]["violatedFiles"]) == ("POLICY_VIOLATION", [file])
    assert (den.head, Path(workdir).is_dir()) == (head, True)


@pytest.mark.requirement("changeset.outcome-visible")
def test_a_bundle_that_would_be_broken_is_rejected_with_its_findings(
    stack: LocalStack, den: GitBundle
) -> None:
    coder = Author(stack, "coder", "careless")
    changeset_id, workdir = coder.opened()
    coder.write(f"{workdir}/goondan.yaml", AGENTS.replace("Tool/bash", "Tool/bahs"))
    broken = coder.commit(changeset_id)
    coder.write(f"{workdir}/goondan.yaml", AGENTS + "# mended\n")
    mended = coder.commit(changeset_id)

    assert (broken["status"], broken["error"]["code"]) == ("rejected", "BUNDLE_INVALID")
    assert "bahs" in broken["error"]["findings"][0]["message"]
    assert mended["status"] == "ok"


def test_an_unknown_id_and_a_git_that_fails_are_told(stack: LocalStack, den: GitBundle) -> None:
    coder = Author(stack, "coder", "unlucky")
    changeset_id, workdir = coder.opened()
    coder.write(f"{workdir}/prompts/coder.md", "mine\n")
    unknown = [coder.commit(name) for name in ("cs-1-00000000", "../../etc", changeset_id + "0")]
    (den.folder / "prompts/coder.md").write_text("a person's, not committed\n", encoding="utf-8")
    failed = coder.commit(changeset_id)
    den.git("checkout", "--quiet", "--", ".")

    assert {(one["status"], one["error"]["code"]) for one in unknown} == {("failed", "CHANGESET_NOT_FOUND")}
    assert (failed["status"], failed["error"]["code"]) == ("failed", "GIT_ERROR")
    assert coder.commit(changeset_id)["status"] == "ok"


def test_of_two_that_change_the_same_lines_the_second_merges(stack: LocalStack, den: GitBundle) -> None:
    coder, poet = Author(stack, "coder", "c"), Author(stack, "poet", "p")
    (first, hers), (second, his) = coder.opened(), poet.opened()
    coder.write(f"{hers}/prompts/poet.md", "coder's\n")
    poet.write(f"{his}/prompts/poet.md", "poet's\n")

    outcomes = coder.commit(first), poet.commit(second)
    marked = poet.call("file-system__read", path=f"{his}/prompts/poet.md").output["content"]
    poet.write(f"{his}/prompts/poet.md", "coder's\npoet's\n")
    merged = poet.commit(second)

    assert [outcome["status"] for outcome in outcomes] == ["ok", "conflict"]
    assert outcomes[1]["error"]["code"] == "MERGE_CONFLICT"
    assert outcomes[1]["error"]["conflictingFiles"] == ["prompts/poet.md"]
    assert "<<<<<<<" in marked
    assert (merged["status"], den.committed("prompts/poet.md")) == ("ok", "coder's\npoet's")


def test_another_instance_s_changeset_is_not_found(stack: LocalStack) -> None:
    changeset_id, _ = Author(stack, "coder", "mine").opened()

    other = Author(stack, "coder", "yours").commit(changeset_id)

    assert other["error"]["code"] == "CHANGESET_NOT_FOUND"


@pytest.mark.parametrize(
    "args", [{}, {"changesetId": ""}, {"changesetId": 7}, {"changesetId": "x", "force": True}]
)
def test_arguments_that_are_none_are_refused(stack: LocalStack, args: dict[str, Any]) -> None:
    refused = Author(stack, "coder", "wild").call("swarm-bundle__commit-changeset", **args)

    assert refused.error is not None
    assert refused.error.code == "E_TOOL_INVALID_ARGS"
