"""The types of tools in TypeScript: the compiler takes the documents' examples, and finds mistakes."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.goondan_process import environment, goondan
from tests.node_packages import FOLDERS, node, node_modules

BUNDLES = Path(__file__).parent.parent / "bundles"
TYPESCRIPT_BUNDLE, JAVASCRIPT_EXTENSIONS_BUNDLE = BUNDLES / "typescript", BUNDLES / "javascript-extensions"


#: what a handler must not do, and what the compiler says of it
FAULTS = {
    "ctx.oauth;": "Property 'oauth' does not exist",
    "ctx.runtime.catalog();": "'ctx.runtime' is possibly 'undefined'",
    "return new Date();": "Type 'Date' is not assignable",
    "ctx.workdir = '';": "read-only property",
}


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Compile what ``goondan init --typescript`` writes, the documents' examples, and faults, all at once."""
    modules = node_modules("typescript")
    bundle = tmp_path_factory.mktemp("types") / "bundle"
    done = goondan("init", str(bundle), "--typescript", env=environment())
    assert done.exit_code == 0, done.stderr
    (bundle / "node_modules").symlink_to(modules)
    write_examples(bundle)
    tool = (bundle / "tools" / "text.ts").read_text("utf-8")
    for number, line in enumerate(FAULTS):
        text = tool.replace("    ctx.logger", f"    {line}\n    ctx.logger")
        (bundle / "tools" / f"fault-{number}.ts").write_text(text, "utf-8")
    compiler = bundle / "node_modules" / "typescript" / "bin" / "tsc"
    compiled = subprocess.run(
        [node(), str(compiler), "--project", str(bundle)],
        cwd=bundle,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return compiled.stdout + compiled.stderr


def write_examples(bundle: Path) -> None:
    """Write the documents' tools, and their extensions with the API of their version."""
    for file in TYPESCRIPT_BUNDLE.rglob("*.ts"):
        place = bundle / file.relative_to(TYPESCRIPT_BUNDLE)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)
    for file in (JAVASCRIPT_EXTENSIONS_BUNDLE / "extensions").glob("*.ts"):
        api, module = "ExtensionApi", "@goondan/types"
        if file.name.startswith("older-"):
            api, module = "V1ExtensionApi as ExtensionApi", "@goondan/core"
        text = f"import type {{ {api} }} from '{module}';\n{file.read_text('utf-8')}"
        (bundle / "tools" / file.name).write_text(text, "utf-8")


def test_generated_files_and_documented_examples_compile(said: str) -> None:
    assert [line for line in said.splitlines() if not line.startswith(("tools/fault-", " "))] == []


def test_compiler_finds_each_fault_of_handler(said: str) -> None:
    for number, fault in enumerate(FAULTS.values()):
        assert re.search(rf"tools/fault-{number}\.ts.*(\n .*)*{re.escape(fault)}", said), said


def test_client_and_programs_that_use_it_compile() -> None:
    modules = node_modules("typescript")
    compiled = subprocess.run(
        [
            node(),
            str(modules / "typescript" / "bin" / "tsc"),
            *("--project", str(FOLDERS / "client")),
            *("--typeRoots", str(modules / "@types")),
        ],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (compiled.returncode, compiled.stdout) == (0, "")
