"""The types of tools in TypeScript: the compiler takes the documents' examples, and finds mistakes."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.integration.goondan_process import environment, goondan
from tests.node_packages import node, node_modules

BUNDLES = Path(__file__).parent.parent / "bundles"
EMBASSY, LIGHTHOUSE = BUNDLES / "embassy", BUNDLES / "lighthouse"


@pytest.fixture
def started(tmp_path: Path) -> Path:
    """What ``goondan init --typescript`` writes, with the compiler beside it."""
    modules = node_modules("typescript")
    bundle = tmp_path / "bundle"
    done = goondan("init", str(bundle), "--typescript", env=environment())
    assert done.exit_code == 0, done.stderr
    (bundle / "node_modules").symlink_to(modules)
    return bundle


def compile_all(bundle: Path) -> str:
    """Return what the compiler says; nothing is right."""
    compiler = bundle / "node_modules" / "typescript" / "bin" / "tsc"
    done = subprocess.run(
        [node(), str(compiler), "--project", str(bundle)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return done.stdout + done.stderr


def test_the_documents_examples_compile(started: Path) -> None:
    for file in EMBASSY.rglob("*.ts"):
        place = started / file.relative_to(EMBASSY)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, place)

    assert compile_all(started) == ""


def test_the_documents_extensions_compile_with_the_api_of_their_version(started: Path) -> None:
    for file in (LIGHTHOUSE / "extensions").glob("*.ts"):
        api, module = "ExtensionApi", "@goondan/types"
        if file.name.startswith("older-"):
            api, module = "V1ExtensionApi as ExtensionApi", "@goondan/core"
        text = f"import type {{ {api} }} from '{module}';\n{file.read_text('utf-8')}"
        (started / "tools" / file.name).write_text(text, "utf-8")

    assert compile_all(started) == ""


def test_the_compiler_finds_what_a_handler_must_not_do(started: Path) -> None:
    faults = {
        "ctx.oauth;": "Property 'oauth' does not exist",
        "ctx.runtime.catalog();": "'ctx.runtime' is possibly 'undefined'",
        "return new Date();": "Type 'Date' is not assignable",
        "ctx.workdir = '';": "read-only property",
    }
    tool = (started / "tools" / "text.ts").read_text("utf-8")
    for number, line in enumerate(faults):
        text = tool.replace("    ctx.logger", f"    {line}\n    ctx.logger")
        (started / "tools" / f"fault-{number}.ts").write_text(text, "utf-8")

    said = compile_all(started)

    for number, fault in enumerate(faults.values()):
        assert re.search(rf"tools/fault-{number}\.ts.*(\n .*)*{re.escape(fault)}", said), said
