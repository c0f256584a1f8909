"""An agent brings no resource and no code that its policy does not name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from goondan_tasks.authoring.changesets_api import CommitResult
from goondan_tasks.bundle import load_bundle
from goondan_tasks.changesets.policy import ChangesetRules, Principal
from tests.git_bundle import GitBundle, make_bundle
from tests.unit.goondan_tasks.bundle.writing import HANDLERS

TEXTS = ("prompts/**",)
EVIL = "from pathlib import Path\nPath({alarm!r}).touch()\nhandlers = {{'exec': print, 'run': print}}\n"


def tool(name: str, entry: str, *, labels: str = "{}", export: str = "exec") -> str:
    return (
        "apiVersion: goondan.ai/v1\nkind: Tool\n"
        f"metadata: {{ name: {name}, labels: {labels} }}\n"
        f"spec: {{ entry: {entry}, exports: [{{ name: {export}, parameters: {{ type: object }} }}] }}\n"
    )


ECHO = tool("echo", "./tools/echo.py", labels="{ tier: base }", export="run")
AGENT = """\
apiVersion: goondan.ai/v1
kind: Agent
metadata: { name: coder }
spec:
  tools: [Tool/bash, { selector: { kind: Tool, matchLabels: { tier: base } } }]
  extensions: [Extension/logging, { selector: { kind: Extension, matchLabels: { tier: base } } }]
"""
GUARD = """\
apiVersion: goondan.ai/v1
kind: Extension
metadata: { name: guard, labels: { tier: base } }
spec: { entry: ./tools/guard.py }
"""
SWARM = """\
apiVersion: goondan.ai/v1
kind: Swarm
metadata: {{ name: den }}
spec:
  entryAgent: Agent/coder
  agents: [Agent/coder]
  policy: {{ changesets: {{ enabled: true, allowed: {{ files: {files} }} }} }}
"""
REGISTER = "def register(api):\n    pass\n"


def older(name: str) -> str:
    """Return a Tool of the older version, whose export is called say.it whatever the Tool is called."""
    text = tool(name, "./tools/older.py", export="say.it").replace("entry:", "runtime: python, entry:")
    return text.replace("goondan.ai/v1", "agents.example.io/v1alpha1")


def make(root: Path, patterns: tuple[str, ...]) -> GitBundle:
    """Make a bundle whose agent stands in goondan.yaml, its tools and extensions in resources."""
    swarm = SWARM.format(files=list(patterns))
    files = {
        "goondan.yaml": f"{AGENT}---\n{swarm}",
        "resources/echo.yaml": ECHO,
        "resources/guard.yaml": GUARD,
        "resources/older.yaml": older("older"),
        "resources/watch.yaml": GUARD.replace("guard", "watch", 1),
        "tools/echo.py": HANDLERS,
        "tools/guard.py": REGISTER,
        "tools/older.py": "handlers = {'say.it': print}\n",
        "prompts/coder.md": "one\n",
        "prompts/linked.txt": tool("linked", "./tools/echo.py", export="run"),
        "prompts/helper.txt": "COLOUR = 'green'\n",
        "scripts/deploy.py": HANDLERS,
    }
    bundle = make_bundle(root, files=files)
    links = {
        "resources/linked.yaml": "../prompts/linked.txt",
        "tools/helper.py": "../prompts/helper.txt",
        "tools/current": "../tools",
    }
    for path, target in links.items():
        (bundle.folder / path).symlink_to(target)
    bundle.commit({}, "Links")
    return bundle


@dataclass(frozen=True, slots=True)
class Attack:
    """What an agent puts into its directory, and which of its files are named in the refusal."""

    patterns: tuple[str, ...]
    refused: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    removed: tuple[str, ...] = ()


def attempt(bundle: GitBundle, place: Path, attack: Attack) -> CommitResult:
    rules = ChangesetRules.of(load_bundle(bundle.folder), "coder")
    principal, changesets = Principal(place / "work", rules, "coder", "issue-42"), bundle.changesets()
    opened = changesets.open(principal)
    folder = Path(opened.workdir)
    for path in attack.removed:
        (folder / path).unlink()
    for path, text in attack.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text.replace("EVIL", EVIL.format(alarm=str(place / "alarm"))))
    for path, target in attack.links.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).unlink(missing_ok=True)
        (folder / path).symlink_to(target)
    return changesets.commit(opened.changeset_id, principal=principal)


YAML = ("resources/**/*.yaml",)


def attack(
    patterns: tuple[str, ...],
    *,
    files: Mapping[str, str] | None = None,
    links: Mapping[str, str] | None = None,
) -> Attack:
    """Return an attack whose every file and link is to be refused."""
    files, links = files or {}, links or {}
    return Attack(patterns, tuple(sorted({*files, *links})), files, links)


#: under prompts/** alone, then with resource documents, then with code, but each without the other
ATTACKS = {
    "a tool": attack(TEXTS, files={"prompts/t.yaml": tool("new", "./prompts/e.py"), "prompts/e.py": "EVIL"}),
    "a tool of existing code": Attack(
        TEXTS,
        ("prompts/t.yml", "scripts/deploy.py"),
        {"prompts/t.yml": tool("new", "./scripts/deploy.py", export="run")},
    ),
    "the built-in tool": attack(
        TEXTS, files={"prompts/t.yaml": tool("bash", "./prompts/e.py"), "prompts/e.py": "EVIL"}
    ),
    "documents": attack(
        TEXTS,
        files={
            "prompts/tools.yaml": ECHO,
            "prompts/goondan.yaml": "",  # declares nothing yet
            "prompts/compose.yaml": "a: 1\n",  # of another program
        },
    ),
    "a document that is broken": attack(TEXTS, files={"prompts/agents.yaml": "kind: ["}),
    "everything, by two stars": attack(
        ("*", "**"),
        files={
            "prompts/t.yaml": ECHO,
            ".env": "HTTPS_PROXY=http://evil\n",
            "requirements-dev.txt": "evil\n",
        },
    ),
    "submodules": attack(("**",), files={".gitmodules": "[submodule]\n"}),
    "code beside the prompts": attack(
        TEXTS,
        files={
            "prompts/e.py": "EVIL",
            "prompts/e.pyc": "x",
            "prompts/__pycache__/e.cpython-311.pyc": "x",
            "prompts/e.so": "x",
            "prompts/e.MJS": "x",
        },
    ),
    "what a linked document says": attack(
        TEXTS, files={"prompts/linked.txt": tool("bash", "./tools/echo.py", export="run")}
    ),
    "what a linked module says": attack(TEXTS, files={"prompts/helper.txt": "EVIL"}),
    "settings beside an entry": attack(("tools/**",), files={"tools/.env": "A=1\n"}),
    "programs among scripts": attack(
        ("scripts/**",),
        files=dict.fromkeys(
            (
                "scripts/run.bash",
                "scripts/run.pl",
                "scripts/run",
                "scripts/Makefile",
                "scripts/GNUmakefile",
                "scripts/a.mk",
                "scripts/x.json",
                "scripts/x.html",
                "scripts/CMakeLists.txt",
            ),
            "EVIL",
        ),
    ),
    "a linked document and a linked module": attack(
        TEXTS, links={"prompts/t.yaml": "../resources/echo.yaml", "prompts/e.py": "helper.txt"}
    ),
    "links to a directory and to nothing": attack(
        TEXTS, links={"prompts/d": "../tools", "prompts/n": "later"}
    ),
    "another target of a linked directory": attack(("tools/c*",), links={"tools/current": "../scripts"}),
    "links to git, and out of the repository": attack(
        TEXTS,
        links={
            "prompts/g": "../.git/hooks",
            "prompts/capitals": "../.GIT/config",
            "prompts/unseen": "../.g\u200cit",
            "prompts/stream": "../.git::$INDEX_ALLOCATION",
            "prompts/out": "../../other",
        },
    ),
    "git's own names": attack(
        TEXTS,
        files={
            "prompts/.git./config": "x",
            "prompts/.gitattributes": "* filter=x\n",
            "prompts/.lfsconfig": "[lfs]\n",
        },
    ),
    "filters in capitals": attack(TEXTS, files={"prompts/.GITATTRIBUTES": "* filter=x\n"}),
    "an entry among the prompts": Attack(
        (*YAML, *TEXTS),
        ("prompts/e.py",),
        {"resources/t.yaml": tool("new", "./prompts/e.py"), "prompts/e.py": "EVIL"},
    ),
    "an entry that is there already": Attack(
        YAML, ("scripts/deploy.py",), {"resources/t.yaml": tool("new", "./scripts/deploy.py", export="run")}
    ),
    "another entry of a tool": Attack(
        YAML,
        ("scripts/deploy.py",),
        {"resources/echo.yaml": ECHO.replace("./tools/echo.py", "./scripts/deploy.py")},
    ),
    "an entry by way of a linked directory": Attack(
        (*YAML, "tools/**", "prompts/**"),
        ("prompts/e.py", "tools/x"),
        {"resources/t.yaml": tool("new", "./tools/x/e.py"), "prompts/e.py": "EVIL"},
        links={"tools/x": "../prompts"},
    ),
    "a module that entries import": attack(("tools/data/**",), files={"tools/data/__init__.py": "EVIL"}),
    "the built-in tools and the built-in extension": Attack(
        (*YAML, "tools/**"),
        ("resources/b.yaml", "resources/l.yaml", "resources/unused.yaml"),
        {
            "resources/b.yaml": tool("bash", "./tools/e.py"),
            "resources/unused.yaml": tool("http-fetch", "./tools/e.py"),
            "resources/l.yaml": GUARD.replace("guard, labels: { tier: base }", "logging"),
            "tools/e.py": "EVIL",
        },
    ),
    "a tool and an extension that a selector selects": Attack(
        (*YAML, "tools/**"),
        ("resources/e.yaml", "resources/s.yaml"),
        {
            "resources/s.yaml": tool("new", "./tools/e.py", labels="{ tier: base }"),
            "resources/e.yaml": GUARD.replace("guard", "spy", 1),
            "tools/e.py": "EVIL",
        },
    ),
    "the name of another tool's export": attack(YAML, files={"resources/zzz.yaml": older("zzz")}),
    "a guard that a selector selects no more": attack(
        YAML, files={"resources/guard.yaml": GUARD.replace("tier: base", "tier: none")}
    ),
}


@pytest.mark.parametrize("attack", ATTACKS.values(), ids=ATTACKS)
def test_unlisted_code_is_refused_and_never_run(tmp_path: Path, attack: Attack) -> None:
    bundle = make(tmp_path / "repo", attack.patterns)
    before = bundle.head

    result = attempt(bundle, tmp_path, attack)

    assert result.error is not None, result
    assert (result.status, result.error.code, bundle.head) == ("rejected", "POLICY_VIOLATION", before)
    assert result.error.violated_files == attack.refused
    assert not (tmp_path / "alarm").exists()


RESOURCE = tool("new", "./tools/echo.py", export="run")
#: among the prompts already: it is a resource, or a module, as soon as a link of such a name leads to it
ASLEEP = {"prompts/b.txt": RESOURCE, "prompts/b/linked.txt": RESOURCE, "prompts/echo.py": HANDLERS}
#: links that a person has made, and a change of what lies on the way
CHAINS = {
    "a link on the way to a document": (
        {"resources/more.yaml": "../prompts/way", "prompts/way": "coder.md"},
        Attack(TEXTS, ("prompts/way",), links={"prompts/way": "b.txt"}),
    ),
    "one of many links on the way to a document": (
        {
            "resources/linked.yaml": "../prompts/1",
            "prompts/1": "2",
            "prompts/2": "3",
            "prompts/3": "linked.txt",
        },
        Attack(TEXTS, ("prompts/2",), links={"prompts/2": "b.txt"}),
    ),
    "a link on the way to a module": (
        {"tools/more.py": "../prompts/way", "prompts/way": "helper.txt"},
        Attack(TEXTS, ("prompts/way",), links={"prompts/way": "b.txt"}),
    ),
    "a link in place of a directory on the way to a document, where code is allowed": (
        {
            "resources/linked.yaml": "../prompts/way/linked.txt",
            "prompts/way": ".",
            "tools/echo.py": "../prompts/echo.py",
        },
        Attack(TEXTS, ("prompts/way",), links={"prompts/way": "b"}),
    ),
    "a link whose file becomes a directory": (
        {"prompts/way": "coder.md"},
        Attack(
            TEXTS,
            ("prompts/coder.md", "prompts/way"),
            {"prompts/coder.md/new.md": "two\n"},
            removed=("prompts/coder.md",),
        ),
    ),
    "a link whose file is gone": (
        {"prompts/way": "coder.md"},
        Attack(TEXTS, ("prompts/coder.md", "prompts/way"), removed=("prompts/coder.md",)),
    ),
}


def link(bundle: GitBundle, links: Mapping[str, str]) -> None:
    for path, target in links.items():
        (bundle.folder / path).unlink(missing_ok=True)
        (bundle.folder / path).symlink_to(target)
    bundle.commit(ASLEEP, "More links")


@pytest.mark.parametrize(("links", "attack"), CHAINS.values(), ids=CHAINS)
def test_each_link_to_file_is_judged_as_file(tmp_path: Path, links: dict[str, str], attack: Attack) -> None:
    bundle = make(tmp_path / "repo", attack.patterns)
    link(bundle, links)
    before = bundle.head

    result = attempt(bundle, tmp_path, attack)

    assert result.error is not None, result
    assert (result.status, result.error.code, bundle.head) == ("rejected", "POLICY_VIOLATION", before)
    assert result.error.violated_files == attack.refused


def test_document_named_link_to_text_is_refused(tmp_path: Path) -> None:
    bundle = make(tmp_path / "repo", TEXTS)
    files = {"prompts/a.txt": "harmless\n", "prompts/b.txt": RESOURCE}
    links = {"prompts/way": "a.txt", "prompts/x.yaml": "way"}

    first = attempt(bundle, tmp_path, Attack(TEXTS, (), files, links))

    assert first.error is not None, first
    assert first.error.code == "POLICY_VIOLATION"
    assert first.error.violated_files == ("prompts/a.txt", "prompts/way", "prompts/x.yaml")


def test_link_to_entry_allows_no_code_beside_it(tmp_path: Path) -> None:
    bundle = make(tmp_path / "repo", TEXTS)
    link(bundle, {"prompts/way": "../scripts/deploy.py", "tools/echo.py": "../prompts/way"})

    result = attempt(bundle, tmp_path, Attack(TEXTS, (), {"prompts/e.py": "EVIL"}))

    assert result.error is not None, result
    assert result.error.violated_files == ("prompts/e.py",)


#: what the patterns name is allowed, whatever else stands in the same folders
ALLOWED = {
    "a text": Attack(TEXTS, (), {"prompts/coder.md": "two\n", "prompts/new/other.md": "three\n"}),
    "settings by their suffix": Attack(
        ("prompts/**/*.yaml",), (), {"prompts/compose.yaml": "services: {}\n"}
    ),
    "settings by their name": Attack(
        ("scripts/Makefile", ".env"), (), {"scripts/Makefile": "a:\n", ".env": "A=1\n"}
    ),
    "a link to a text": Attack(TEXTS, (), links={"prompts/same.md": "coder.md"}),
    "a description": Attack(
        YAML, (), {"resources/echo.yaml": ECHO.replace("name: run", "name: run, description: Says it")}
    ),
    "a tool of code that is an entry": Attack(
        (*YAML, "tools/**"),
        (),
        {"resources/new.yaml": tool("new", "./tools/new.py"), "tools/new.py": EVIL.format(alarm="/dev/null")},
    ),
    "code by its suffix": Attack(("scripts/**/*.py",), (), {"scripts/more.py": HANDLERS}),
    "a new export of a tool": Attack(
        (*YAML, "tools/**"),
        (),
        {
            "resources/echo.yaml": ECHO.replace("exports: [", "exports: [{ name: again, parameters: {} }, "),
            "tools/echo.py": HANDLERS.replace('"run": run', '"run": run, "again": run'),
        },
    ),
    "a tool that the agent selects, where the agent is named, too": Attack(
        ("*.yaml", *YAML, "tools/**"),
        (),
        {
            "resources/s.yaml": tool("new", "./tools/new.py", labels="{ tier: base }"),
            "tools/new.py": EVIL.format(alarm="/dev/null"),
        },
    ),
}


@pytest.mark.parametrize("change", ALLOWED.values(), ids=ALLOWED)
def test_change_named_by_policy_is_committed(tmp_path: Path, change: Attack) -> None:
    result = attempt(make(tmp_path / "repo", change.patterns), tmp_path, change)

    assert result.status == "ok", result.error


def test_every_pattern_list_must_name_file_kind() -> None:
    rules = ChangesetRules(lists=(("**/*.yaml", "tools/**"), ("**",)))

    assert not rules.allow_document("resources/a.yaml")
    assert rules.allow_code("tools/new.py", ["tools/old.py"])
    assert not rules.allow_code("tools/new.py", [])
