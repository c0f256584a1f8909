"""The built-in extension swarm-bundle: every outcome of a changeset, as a model sees it."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from goondan_tasks.contract.messages import ToolCallResult
from goondan_tasks.testing import LocalStack
from tests.git_bundle import GitBundle, make_bundle

AGENTS = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec: { tools: [Tool/bash, Tool/file-system, Tool/older], extensions: [Extension/swarm-bundle] }
---
apiVersion: agents.example.io/v1alpha1
kind: Tool
metadata: { name: older }
spec:
  runtime: python
  entry: ./older.py
  exports:
    - { name: bundle.open, description: Open a changeset., parameters: { type: object } }
    - { name: bundle.commit, description: Commit a changeset., parameters: { type: object } }
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
#: tools of the older version, as 002 §11.2 writes them
OLDER = """\
async def open_changeset(ctx, input):
    return await ctx.swarm_bundle.open_changeset({"reason": input.get("reason")})


def commit_changeset(ctx, input):
    return ctx.swarm_bundle.commit_changeset(input)


handlers = {"bundle.open": open_changeset, "bundle.commit": commit_changeset}
"""
PROMPT = "one\ntwo\nthree\n"


@pytest.fixture(scope="module")
def den(tmp_path_factory: pytest.TempPathFactory) -> GitBundle:
    """Make a bundle in git."""
    files = {"goondan.yaml": AGENTS, "older.py": OLDER, "prompts/coder.md": PROMPT, "prompts/poet.md": PROMPT}
    return make_bundle(tmp_path_factory.mktemp("den") / "repo", files=files)


@pytest.fixture(scope="module")
def stack(den: GitBundle, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalStack]:
    environment = {"GOONDAN_CACHE_DIR": str(tmp_path_factory.mktemp("cache"))}
    with LocalStack(den.folder, environment=environment) as running:
        yield running


class Author:
    """An agent in an instance of its own, that calls its tools."""

    def __init__(self, stack: LocalStack, agent: str, instance: str) -> None:
        self._stack, self.agent, self._instance = stack, agent, instance

    def call(self, tool: str, **args: Any) -> ToolCallResult:
        return self._stack.client.call(self.agent, tool, args, instance_key=self._instance, timeout=60)

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
def test_agent_edits_bundle_with_its_usual_tools(stack: LocalStack, den: GitBundle) -> None:
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
def test_changes_forbidden_by_swarm_or_agent_are_rejected(
    stack: LocalStack, den: GitBundle, agent: str, file: str
) -> None:
    head = den.head
    author = Author(stack, agent, f"bold-{agent}")
    changeset_id, workdir = author.opened()
    author.write(f"{workdir}/{file}", "kind: Nothing\n")

    committed = author.commit(changeset_id)

    assert committed["status"] == "rejected"
    assert (committed["error"]["code"], committed["error"]["violatedFiles"]) == ("POLICY_VIOLATION", [file])
    assert committed["error"]["helpUrl"] == "https://docs.goondan.ai/errors/POLICY_VIOLATION"
    assert (den.head, Path(workdir).is_dir()) == (head, True)


@pytest.mark.requirement("changeset.outcome-visible")
def test_change_breaking_bundle_is_rejected_with_findings(stack: LocalStack, den: GitBundle) -> None:
    coder = Author(stack, "coder", "careless")
    changeset_id, workdir = coder.opened()
    coder.write(f"{workdir}/goondan.yaml", AGENTS.replace("Tool/bash", "Tool/bahs"))
    broken = coder.commit(changeset_id)
    coder.write(f"{workdir}/goondan.yaml", AGENTS + "# mended\n")
    mended = coder.commit(changeset_id)

    assert (broken["status"], broken["error"]["code"]) == ("rejected", "BUNDLE_INVALID")
    assert "bahs" in broken["error"]["findings"][0]["message"]
    assert mended["status"] == "ok"


def test_unknown_changeset_and_failing_git_are_reported(stack: LocalStack, den: GitBundle) -> None:
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


def test_tools_of_older_version_change_bundle_too(stack: LocalStack, den: GitBundle) -> None:
    coder = Author(stack, "coder", "older")
    opened = coder.call("bundle.open", reason="a test").output
    coder.write(f"{opened['workdir']}/prompts/coder.md", "older\n")

    committed = coder.call("bundle.commit", changesetId=opened["changesetId"], message="as before").output

    assert (committed["status"], committed["newRef"]) == ("ok", f"git:{den.head}")
    assert den.committed("prompts/coder.md") == "older"


def test_one_of_two_conflicting_commits_must_merge(stack: LocalStack, den: GitBundle) -> None:
    authors = [Author(stack, "coder", "c"), Author(stack, "poet", "p")]
    opened = [author.opened() for author in authors]
    for author, (_, workdir) in zip(authors, opened, strict=True):
        author.write(f"{workdir}/prompts/poet.md", f"{author.agent}'s\n")

    with ThreadPoolExecutor(2) as both:
        outcomes = list(both.map(lambda one: one[0].commit(one[1][0]), zip(authors, opened, strict=True)))
    [late] = [number for number, outcome in enumerate(outcomes) if outcome["status"] != "ok"]
    author, (changeset_id, workdir) = authors[late], opened[late]
    marked = author.call("file-system__read", path=f"{workdir}/prompts/poet.md").output["content"]
    author.write(f"{workdir}/prompts/poet.md", "coder's\npoet's\n")
    merged = author.commit(changeset_id)

    assert outcomes[1 - late]["status"] == "ok"
    assert (outcomes[late]["status"], outcomes[late]["error"]["code"]) == ("conflict", "MERGE_CONFLICT")
    assert outcomes[late]["error"]["conflictingFiles"] == ["prompts/poet.md"]
    assert all(text in marked for text in ("<<<<<<<", "coder's", "poet's"))
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
